package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/login"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

func (a *app) loginCommand() *cobra.Command {
	var name string
	var noBrowser, insecure bool
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Log in with a browser, for the commands that follow",
		Long: `Log in with a browser, for the commands that follow.

The server names the identity providers that it trusts: choose one that you trust
yourself. The browser must be on this machine: the provider redirects it to a port of
the loopback address. The tokens are kept in your configuration folder, readable only
by you, and renewed. A server on another machine must be reached by https: by http an
attacker on the network could name another provider.

Commands use the login for this server unless --api-key, --user-id or
CLOUD_SANDBOX_API_KEY is set.`,
		Example: `  cloud-sandbox login --url https://box.example.com
  cloud-sandbox login --url https://box.example.com --issuer corp --no-browser`,
		Args: Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, file, err := a.loginPlace(cmd)
			if err != nil {
				return err
			}
			if !insecure {
				if err := server.CheckPrivate(); err != nil {
					return usagef("%w; --insecure allows it", err)
				}
			}
			c := client.New(server)
			defer c.Close()
			p, err := chooseProvider(cmd.Context(), c, name)
			if err != nil {
				return err
			}
			l, err := login.Do(cmd.Context(), p, func(url string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "To log in to %s with %s, open\n\n  %s\n\n", clean(server.URL), clean(p.Issuer), clean(url))
				if !noBrowser {
					openBrowser(cmd.Context(), url)
				}
			})
			if err != nil {
				return err
			}
			if err := file.Change(server.URL, func(login.Login, bool) (login.Login, bool, error) { return l, true, nil }); err != nil {
				return err
			}
			return Print(cmd, struct {
				Server  string    `json:"server"`
				Issuer  string    `json:"issuer"`
				Expires time.Time `json:"expires_at"`
				Renews  bool      `json:"renews"`
			}{server.URL, p.Issuer, l.Expires, l.Refresh != ""}, "logged in to "+clean(server.URL))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	clientFlags(cmd)
	cmd.Flags().StringVar(&name, "issuer", "", "name of the identity provider, if the server has several")
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the address")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "allow http to another machine, although others on the network can read and change the traffic")
	return cmd
}

func (a *app) logoutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logout",
		Short: "Forget the login to a server",
		Long: `Forget the login to a server.

Its tokens are deleted from this machine. They are not revoked at the identity
provider, and stay valid until they expire.`,
		Example: `  cloud-sandbox logout --url https://box.example.com`,
		Args:    Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, file, err := a.loginPlace(cmd)
			if err != nil {
				return err
			}
			had := false
			err = file.Change(server.URL, func(_ login.Login, is bool) (login.Login, bool, error) {
				had = is
				return login.Login{}, false, nil
			})
			if err != nil {
				return err
			}
			if !had {
				return fmt.Errorf("you are not logged in to %s", server.URL)
			}
			return Print(cmd, struct {
				Server string `json:"server"`
			}{server.URL}, "logged out of "+clean(server.URL))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	clientFlags(cmd)
	return cmd
}

// loginPlace returns the settings of a command's server, and the file of logins.
func (a *app) loginPlace(cmd *cobra.Command) (config.Client, login.File, error) {
	server, err := a.settings(cmd)
	if err != nil {
		return server, login.File{}, err
	}
	file, err := login.NewFile(a.getenv)
	return server, file, err
}

// settings are the client's settings from flags and environment.
func (a *app) settings(cmd *cobra.Command) (config.Client, error) {
	flags := map[string]string{}
	cmd.Flags().Visit(func(f *pflag.Flag) { flags[f.Name] = f.Value.String() })
	cfg, err := config.LoadClient(flags, a.getenv)
	if err != nil {
		return cfg, usageError{err}
	}
	cfg.Version = cmd.Root().Version
	return cfg, nil
}

// chooseProvider finds a provider by name, or the only provider.
func chooseProvider(ctx context.Context, c *client.Client, name string) (v1.Provider, error) {
	all, err := c.Providers(ctx)
	if err != nil {
		return v1.Provider{}, err
	}
	var names []string
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	switch {
	case len(all) == 0:
		return v1.Provider{}, errors.New("this server has no identity provider to log in with: use an API key")
	case name != "":
		return v1.Provider{}, usagef("this server has no identity provider %q; it has %s", name, clean(strings.Join(names, ", ")))
	case len(all) > 1:
		return v1.Provider{}, usagef("this server has several identity providers: choose one by --issuer: %s", clean(strings.Join(names, ", ")))
	}
	return all[0], nil
}

// openBrowser opens a URL if it finds a program for it.
func openBrowser(ctx context.Context, url string) {
	program, err := exec.LookPath("xdg-open")
	if err != nil {
		return
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, url)
	if cmd.Start() == nil {
		go func() { _ = cmd.Wait() }() // it may outlive this command
	}
}

// tokens returns the tokens of the login at the server, each renewed before it ends;
// nil without a login.
func (a *app) tokens(cfg config.Client) (func(context.Context) (string, error), error) {
	if cfg.Key != "" || cfg.ByUser {
		return nil, nil
	}
	file, err := login.NewFile(a.getenv)
	if err != nil {
		return nil, nil // no login
	}
	if _, is, err := file.Get(cfg.URL); err != nil || !is {
		return nil, err
	}
	return func(ctx context.Context) (token string, err error) {
		l, is, err := file.Get(cfg.URL)
		if err != nil || is && l.Fresh(time.Now()) {
			return l.Token, err
		}
		err = file.Change(cfg.URL, func(l login.Login, is bool) (login.Login, bool, error) {
			if !is {
				return l, false, fmt.Errorf("you are not logged in to %s any more", cfg.URL)
			}
			if !l.Fresh(time.Now()) { // no other process renewed it meanwhile
				var err error
				if l, err = l.Renew(ctx); login.Over(err) {
					return l, false, fmt.Errorf("%w: log in again, `cloud-sandbox login --url %s`", err, cfg.URL)
				} else if err != nil {
					return l, false, err
				}
			}
			token = l.Token
			return l, true, nil
		})
		return token, err
	}, nil
}
