package cli

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/login"
)

func (a *app) e2bCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "e2b",
		Short: "Connect programs that use E2B's SDKs to this server",
		Long: `Connect programs that use E2B's SDKs to this server.

They need environment variables and no change of code.`,
		Example: `  eval "$(cloud-sandbox e2b env)"`,
	}
	clientFlags(cmd)
	cmd.AddCommand(a.e2bEnvCommand())
	return cmd
}

func (a *app) e2bEnvCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print the environment variables that E2B's SDKs need, for a shell",
		Long: `Print the environment variables that E2B's SDKs need, for a shell.

E2B_API_KEY is the API key of this command, or else a new one with the name "e2b env".
With "cloud-sandbox serve --dev --tls", two files with certificates are kept in your
configuration folder, so that Python and Node.js trust the server.

Warnings on standard error name calls of the SDKs that will not work, for example
because this machine does not resolve names of the server, and how to fix that.`,
		Example: `  eval "$(cloud-sandbox e2b env)"
  cloud-sandbox e2b env --url https://box.example.com --json`,
		Args: Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := a.settings(cmd)
			if err != nil {
				return err
			}
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			settings, err := c.E2BSettings(cmd.Context())
			if err != nil {
				return err
			}
			vars := []variable{
				{"E2B_API_URL", server.URL}, {"E2B_SANDBOX_URL", server.URL}, {"E2B_VOLUME_API_URL", server.URL}, {"E2B_DOMAIN", settings.Domain},
			}
			if settings.Authority != "" {
				trusted, err := a.trustAuthority(settings.Authority, server.URL)
				if err != nil {
					return err
				}
				vars = append(vars, trusted...)
			}
			key := server.Key
			if !strings.HasPrefix(key, e2bKeyPrefix) { // the form that E2B's SDKs require
				made, err := c.CreateKey(cmd.Context(), v1.KeyRequest{Name: "e2b env"})
				if err != nil {
					return err
				}
				key = made.Secret
			}
			vars = append(vars, variable{"E2B_API_KEY", key})
			if err := printVariables(cmd, vars); err != nil {
				return err
			}
			for _, warning := range e2bWarnings(cmd.Context(), settings) {
				fmt.Fprintln(cmd.ErrOrStderr(), "cloud-sandbox: "+clean(warning))
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// e2bKeyPrefix begins every API key.
const e2bKeyPrefix = "e2b_"

// variable is an environment variable.
type variable struct{ name, value string }

// printVariables prints the variables for a POSIX shell, or as JSON.
func printVariables(cmd *cobra.Command, vars []variable) error {
	if wantsJSON(cmd) {
		object := map[string]string{}
		for _, v := range vars {
			object[v.name] = v.value
		}
		return printJSON(cmd, object)
	}
	for _, v := range vars {
		quoted := "'" + strings.ReplaceAll(v.value, "'", `'\''`) + "'"
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "export %s=%s\n", v.name, quoted); err != nil {
			return err
		}
	}
	return nil
}

// systemRoots are the certificate bundles of common systems; the first that exists is
// this system's.
var systemRoots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

// trustAuthority writes the files by which Python and Node.js trust an authority in
// addition to this system's, and returns the variables that name the files. Python
// needs one file with all authorities, Node.js one with only the added authority.
func (a *app) trustAuthority(authority, server string) ([]variable, error) {
	dir, err := login.Folder(a.getenv)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	base := filepath.Join(dir, "e2b-"+strings.NewReplacer(":", "-", "[", "", "]", "").Replace(u.Host))
	var roots []byte
	for _, file := range systemRoots {
		if roots, err = os.ReadFile(file); err == nil {
			break
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep the certificate of the server: %w", err)
	}
	own, all := base+"-authority.pem", base+"-roots.pem"
	for file, text := range map[string]string{own: authority, all: string(roots) + "\n" + authority} {
		if _, err := replaceFile(file, 0o600, strings.NewReader(text)); err != nil {
			return nil, fmt.Errorf("keep the certificate of the server: %w", err)
		}
	}
	return []variable{{"SSL_CERT_FILE", all}, {"NODE_EXTRA_CA_CERTS", own}}, nil
}

// e2bWarnings returns the settings that do not work yet, each with its remedy.
func e2bWarnings(ctx context.Context, s client.E2BSettings) []string {
	host, _, err := net.SplitHostPort(s.Domain)
	if err != nil {
		host = s.Domain
	}
	var all []string
	switch {
	case strings.HasSuffix(host, ".invalid"):
		all = append(all, "names from get_host() do not resolve: the server is reached by an IP address, which has no subdomains. Set CLOUD_SANDBOX_DOMAIN on the server, or reach it by a host name")
	case !resolves(ctx, "3000-x."+host) && (host == "localhost" || strings.HasSuffix(host, ".localhost")):
		all = append(all, "this machine does not resolve names below localhost, so names from get_host() work in browsers and curl only: install nss-myhostname (`sudo apt-get install libnss-myhostname`, or systemd's `myhostname` in the line `hosts:` of /etc/nsswitch.conf)")
	case !resolves(ctx, "3000-x."+host):
		all = append(all, fmt.Sprintf("this machine does not resolve names below %s, so names from get_host() do not work: let *.%[1]s point to the server in the DNS", host))
	}
	if !s.TLS {
		all = append(all, "the server has no TLS: use http:// with names from get_host(). SDKs that ignore E2B_SANDBOX_URL (e2b before 2.7, e2b-code-interpreter before 2.9, npm's before 2.7) need `cloud-sandbox serve --dev --tls`, or CLOUD_SANDBOX_TLS_CERT")
	}
	return all
}

// resolves reports whether programs on this machine can resolve a name. It uses the C
// library's resolver, as they do: Go's may differ.
func resolves(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if getent, err := exec.LookPath("getent"); err == nil {
		return exec.CommandContext(ctx, getent, "ahosts", name).Run() == nil
	}
	_, err := net.DefaultResolver.LookupHost(ctx, name)
	return err == nil
}
