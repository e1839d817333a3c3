package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Client configures how client commands reach a server.
type Client struct {
	// URL of the server, http or https, without a slash at its end.
	URL string
	// Key is the bearer of requests. Empty: the server, in dev mode on this machine,
	// mints a token for UserID.
	Key string
	// UserID is the user in dev mode; each has sandboxes of its own. ByUser: the user was
	// given explicitly.
	UserID string
	ByUser bool
	// Version is the version of the client program. The program sets it, and sends it
	// to servers.
	Version string
}

// Names of the flags that LoadClient knows.
const (
	FlagURL    = "url"
	FlagAPIKey = "api-key"
	FlagUserID = "user-id"
)

// Defaults of a Client. The curl examples and the SDK default to the same user, so that
// all see the same sandboxes.
const (
	DefaultURL    = "http://localhost:8080"
	DefaultUserID = "test"
)

// AddressFile holds the URL of a server with this data folder while it runs.
func AddressFile(data string) string { return filepath.Join(data, "run", "address") }

// LockFile is the file in the data folder that a server locks while it runs.
const LockFile = "lock"

// runningURL is the URL of the server that runs with the data folder; empty: none runs. A
// killed server leaves its address, which another program may use by now.
func runningURL(flags map[string]string, getenv func(string) string) (string, error) {
	data, err := DataFolder(flags, getenv)
	if err != nil {
		return "", err
	}
	f, err := os.Open(AddressFile(data))
	if err == nil && !Served(data) {
		f.Close()
		return "", nil
	}
	if err != nil {
		return "", nil // no server, or none of ours
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, 512))
	return strings.TrimSpace(string(raw)), err
}

// LoadClient returns the defaults, overridden by the running server's address, then the
// environment, then flags, and checked; flags and empty variables are as for Load. A data
// folder flag selects the server that runs with it; an error together with an address. A
// user flag overrides a key of the environment.
func LoadClient(flags map[string]string, getenv func(string) string) (Client, error) {
	told, err := runningURL(flags, getenv)
	if err != nil {
		return Client{}, err
	}
	if data := flags[FlagData]; data != "" {
		switch {
		case flags[FlagURL] != "":
			return Client{}, errors.New("--data and --url each name a server: give one")
		case getenv("CLOUD_SANDBOX_URL") != "":
			return Client{}, errors.New("--data and CLOUD_SANDBOX_URL each name a server: leave out the flag, or unset the variable")
		case told == "":
			return Client{}, fmt.Errorf("no server runs with the data folder %s: start one with `cloud-sandbox serve --data %s`, or name one with --url", data, data)
		}
	}
	c := Client{
		URL:    cmp.Or(flags[FlagURL], getenv("CLOUD_SANDBOX_URL"), told, DefaultURL),
		Key:    flags[FlagAPIKey],
		UserID: cmp.Or(flags[FlagUserID], getenv("CLOUD_SANDBOX_USER_ID"), DefaultUserID),
	}
	c.ByUser = flags[FlagUserID] != ""
	if c.Key == "" && !c.ByUser {
		c.Key = getenv("CLOUD_SANDBOX_API_KEY")
	}
	u, err := serverURL(c.URL)
	if err != nil {
		return c, err
	}
	c.URL = strings.TrimRight(u.String(), "/")
	for _, r := range c.Key {
		if r <= ' ' || r > '~' {
			return c, errors.New("the API key holds a space or another character that no key has: set CLOUD_SANDBOX_API_KEY to the key alone")
		}
	}
	return c, nil
}

// CheckKey returns an error with advice if the server needs a key and c has none.
func (c Client) CheckKey() error {
	u, err := url.Parse(c.URL)
	if err == nil && c.Key == "" && !loopback(strings.ToLower(u.Hostname())) {
		err = fmt.Errorf("no API key for %s: set CLOUD_SANDBOX_API_KEY, or log in with `cloud-sandbox login --url %s` (only a server in dev mode on this machine goes without)", c.URL, c.URL)
	}
	return err
}

// CheckPrivate returns an error if traffic to the server may be read or changed on the
// way.
func (c Client) CheckPrivate() error {
	u, err := url.Parse(c.URL)
	if err == nil && u.Scheme != "https" && !loopback(strings.ToLower(u.Hostname())) {
		err = fmt.Errorf("%s is another machine and not https: an attacker on the network could choose the identity provider that you log in to, and take your token", c.URL)
	}
	return err
}

func serverURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("%q is not the address of a server: write it as http://HOST:PORT or https://HOST", s)
	case u.User != nil:
		return nil, errors.New("the address of the server holds a user or password: leave it out and set CLOUD_SANDBOX_API_KEY")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the address of the server, %q, has a query or a fragment: leave out ? and # and the text after them", s)
	}
	return u, nil
}
