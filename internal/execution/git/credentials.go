package git

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Bounds of credentials, in bytes.
const (
	maxUsername = 256
	maxPassword = 4096
)

// Credentials are valid for one call and one host. They reach git through a pipe that
// ends with the call. They appear in no argument, environment variable or file.
type Credentials struct {
	Username string // empty: "git", which works for tokens
	Password string // or a token
	Host     string // that may receive them, with a port if there is one; empty: the host of the URL

	protocol string // set by forURL
}

// Check rejects credentials that git's protocol cannot carry.
func (c *Credentials) Check() error {
	switch {
	case c.Password == "" || len(c.Password) > maxPassword:
		return sandbox.Errorf(sandbox.Invalid, "credentials.password needs 1 to %d bytes", maxPassword)
	case len(c.Username) > maxUsername:
		return sandbox.Errorf(sandbox.Invalid, "credentials.username has more than %d bytes", maxUsername)
	case strings.ContainsAny(c.Username+c.Password, "\x00\r\n"):
		return sandbox.Errorf(sandbox.Invalid, "credentials must not hold line breaks or zero bytes")
	case c.Host != "" && !hostPattern.MatchString(c.Host):
		return sandbox.Errorf(sandbox.Invalid, "credentials.host must be a host, with a port if it needs one")
	}
	return nil
}

// hostPattern keeps a host from injecting script text.
var hostPattern = regexp.MustCompile(`^([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?$`)

// forURL returns the credentials restricted to the host of a repository's URL.
func (c *Credentials) forURL(raw string) (*Credentials, error) {
	if c == nil {
		return nil, nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, sandbox.Errorf(sandbox.Invalid, "credentials are for https and http, and the repository is at another kind of URL")
	}
	if !hostPattern.MatchString(u.Host) {
		return nil, sandbox.Errorf(sandbox.Invalid, "the repository's URL has no host that credentials could be sent to")
	}
	if c.Host != "" && !strings.EqualFold(c.Host, u.Host) {
		return nil, sandbox.Errorf(sandbox.Denied, "the repository is at %s, and the credentials are for %s only", u.Host, c.Host)
	}
	lent := *c
	lent.Host, lent.protocol = u.Host, u.Scheme
	if lent.Username == "" {
		lent.Username = "git"
	}
	return &lent, nil
}

// wrapper moves its input to descriptor 3, which only the helper reads.
const wrapper = `exec 3<&0 </dev/null; exec "$@"`

// helper answers git's request for this protocol and host from descriptor 3, and stores
// nothing.
func (c *Credentials) helper() string {
	return `!f() { test "$1" = get || exit 0; p=; h=; while IFS= read -r l && test -n "$l"; do case "$l" in ` +
		`protocol=` + c.protocol + `) p=1;; host='` + strings.ToLower(c.Host) + `'|host='` + c.Host + `') h=1;; esac; done; ` +
		`test "$p$h" = 11 && cat <&3; }; f`
}

// attach makes git ask for the credentials in req, which runs git with args. Helpers and
// hooks that the repository or the user configured are disabled, so they cannot see or
// store the credentials. Nothing outlives the call.
func (c *Credentials) attach(req *execution.RunRequest, args []string) {
	req.Args = append([]string{
		"/bin/sh", "-c", wrapper, "sh", "git", "-c", "core.askPass=", "-c", "credential.helper=", "-c", "credential.helper=" + c.helper(),
		"-c", "credential.useHttpPath=false", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
		"-c", "maintenance.auto=false",
	}, args...)
	req.Stdin = []byte("username=" + c.Username + "\npassword=" + c.Password + "\n")
}

// hide redacts the password in git's output.
func (c *Credentials) hide(s string) string {
	if c == nil {
		return s
	}
	for _, secret := range []string{c.Password, url.QueryEscape(c.Password), url.PathEscape(c.Password)} {
		s = strings.ReplaceAll(s, secret, "***")
	}
	return s
}
