package ratelimit

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// An Address says where a Redis server is and how to log in there. It is printed without
// its user and password.
type Address struct {
	HostPort       string // HOST:PORT
	User, Password string // both may be empty; a User has a Password
	DB             int    // number of the database
	TLS            bool
}

const (
	plainScheme = "redis"
	tlsScheme   = "rediss"
	defaultPort = "6379"
	maxDB       = 1 << 16 // servers have 16 databases unless their operator wants more
)

func isAddress(item string) bool {
	return strings.HasPrefix(item, plainScheme+":") || strings.HasPrefix(item, tlsScheme+":")
}

// ParseAddress reads redis://[USER:PASSWORD@]HOST[:PORT][/DB], or rediss:// for TLS. The
// user may be empty; special characters of user and password are percent-encoded. The port
// is 6379 by default, the database 0. Errors quote nothing of text, which may hold a
// password.
func ParseAddress(text string) (Address, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != plainScheme && u.Scheme != tlsScheme || u.Hostname() == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return Address{}, errors.New("the address of Redis has the form redis://[USER:PASSWORD@]HOST[:PORT][/DB], or rediss:// for TLS, with special characters of the password percent-encoded: a comma is %2C")
	}
	a := Address{TLS: u.Scheme == tlsScheme}
	if u.User != nil {
		a.User = u.User.Username()
		a.Password, _ = u.User.Password()
		if a.Password == "" {
			return Address{}, errors.New("the address of Redis has no password before its @: write USER:PASSWORD@, or :PASSWORD@ for the default user")
		}
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return Address{}, errors.New("the port of Redis is not a number from 1 to 65535")
	}
	a.HostPort = net.JoinHostPort(u.Hostname(), port)
	if db := strings.TrimPrefix(u.Path, "/"); db != "" {
		n, err := strconv.ParseUint(db, 10, 32)
		if err != nil || n >= maxDB {
			return Address{}, errors.New("the path of the address of Redis is not the number of a database, like /0")
		}
		a.DB = int(n)
	}
	return a, nil
}

// String returns the address without user and password.
func (a Address) String() string {
	scheme := plainScheme
	if a.TLS {
		scheme = tlsScheme
	}
	return scheme + "://" + a.HostPort + "/" + strconv.Itoa(a.DB)
}

// GoString is String, so that no way to print an Address shows its password.
func (a Address) GoString() string { return a.String() }

// MarshalText is String, for logs.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }
