// Package upstream connects through an operator's HTTP proxy, by CONNECT to an
// address. The proxy resolves no name, so a policy's decision on an address is a
// decision on the destination.
package upstream

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// defaultPort is the port of a URL without one: Squid's.
	defaultPort = "3128"
	// dialTimeout is the timeout of a Dial: the connection to the proxy, and its answer.
	dialTimeout = 30 * time.Second
	// maxHead bounds the head of that answer, in bytes.
	maxHead = 16 << 10
)

// Proxy is an HTTP proxy, spoken to in plain text. Its methods are safe for
// concurrent use. Formatting it does not show the password.
type Proxy struct {
	address string        // host:port
	user    *url.Userinfo // nil: none
	timeout time.Duration
}

// Parse reads http://[USER:PASSWORD@]HOST[:PORT]. Its errors do not repeat the
// text, which may hold a password.
func Parse(text string) (*Proxy, error) {
	scheme, _, ok := strings.Cut(text, "://")
	switch {
	case !ok:
		return nil, errors.New("it must begin with http://, as http://proxy.example:3128 does")
	case strings.EqualFold(scheme, "https"):
		return nil, errors.New("a proxy that is itself reached by TLS (https://) is not supported: name its plain port with http://; TLS connections through it stay encrypted from end to end")
	case !strings.EqualFold(scheme, "http"):
		return nil, errors.New("only an HTTP proxy is supported: it must begin with http://, as http://proxy.example:3128 does")
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("it is not a URL http://[USER:PASSWORD@]HOST[:PORT]; write characters such as @, :, /, # and % in a user or password as %40, %3A, %2F, %23 and %25")
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || n == 0:
		return nil, fmt.Errorf("the port %q is not a number from 1 to 65535", port)
	case u.Hostname() == "":
		return nil, errors.New("it names no host, as http://proxy.example:3128 does")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("nothing may follow http://[USER:PASSWORD@]HOST[:PORT]; write characters such as / and # in a user or password as %2F and %23")
	case u.User != nil && strings.Contains(u.User.Username(), ":"):
		return nil, errors.New("a user may hold no colon: the proxy would take the text after it for the password")
	}
	return &Proxy{net.JoinHostPort(u.Hostname(), strconv.FormatUint(n, 10)), u.User, dialTimeout}, nil
}

// String returns the proxy's HOST:PORT.
func (p *Proxy) String() string { return p.address }

// URL returns the proxy's URL for variables such as https_proxy, with port and
// password.
func (p *Proxy) URL() string {
	return (&url.URL{Scheme: "http", User: p.user, Host: p.address}).String()
}

// Error is a proxy's failure to connect. Its text names neither the proxy nor a
// password, so that a Tenant may read it.
type Error struct {
	Status int // of the proxy's answer; zero: no answer
	reason string
	cause  error
}

func (e *Error) Error() string { return e.reason }

// Unwrap returns the underlying error; it may name the proxy.
func (e *Error) Unwrap() error { return e.cause }

// Dial connects to an address through the proxy, within 30 seconds and ctx. Reads
// from the connection begin with the far end's first byte. The error is an *Error.
func (p *Proxy) Dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.address)
	if err != nil {
		return nil, &Error{reason: "the upstream proxy cannot be reached: " + plain(ctx, err), cause: err}
	}
	tunnel := conn.(*net.TCPConn)
	disarm := context.AfterFunc(ctx, func() { _ = tunnel.SetDeadline(time.Unix(1, 0)) })
	err = p.connect(tunnel, to)
	if !disarm() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		tunnel.Close()
		var told *Error
		if !errors.As(err, &told) {
			told = &Error{reason: "the upstream proxy does not answer: " + plain(ctx, err), cause: err}
		}
		return nil, told
	}
	return tunnel, nil
}

// connect requests a tunnel. An error other than *Error is one of the connection.
func (p *Proxy) connect(conn net.Conn, to netip.AddrPort) error {
	at := netip.AddrPortFrom(to.Addr().Unmap(), to.Port()).String()
	request := "CONNECT " + at + " HTTP/1.1\r\nHost: " + at + "\r\nUser-Agent: cloud-sandbox\r\n"
	if p.user != nil {
		password, _ := p.user.Password()
		request += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(p.user.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
		return err
	}
	head, err := readHead(conn)
	if err != nil {
		return err
	}
	status, ok := statusOf(head)
	if !ok {
		return &Error{reason: "the upstream proxy does not answer as an HTTP proxy does"}
	}
	return CheckStatus(p.user, status)
}

// CheckStatus returns an *Error unless status, a proxy's answer to CONNECT, means
// success. user is the user that the proxy was given; nil: none.
func CheckStatus(user *url.Userinfo, status int) error {
	// The proxy's own words are not repeated.
	reason := strings.TrimSpace(fmt.Sprintf("the upstream proxy does not connect: %d %s", status, http.StatusText(status)))
	switch {
	case status >= http.StatusOK && status < http.StatusMultipleChoices:
		return nil
	case status == http.StatusForbidden:
		reason = "the upstream proxy refuses the connection (403 Forbidden)"
	case status == http.StatusProxyAuthRequired && user == nil:
		reason = "the upstream proxy wants a user and a password, and the server has none for it (407 Proxy Authentication Required)"
	case status == http.StatusProxyAuthRequired:
		reason = "the upstream proxy does not accept the server's user and password (407 Proxy Authentication Required)"
	}
	return &Error{Status: status, reason: reason}
}

// readHead reads up to the empty line after a head and no byte more: the next bytes
// are the far end's.
func readHead(conn io.Reader) ([]byte, error) {
	head := make([]byte, 0, 512)
	for next := []byte{0}; len(head) < maxHead; {
		if _, err := io.ReadFull(conn, next); err != nil {
			return nil, err
		}
		head = append(head, next[0])
		if bytes.HasSuffix(head, []byte("\n\r\n")) || bytes.HasSuffix(head, []byte("\n\n")) {
			return head, nil
		}
	}
	return nil, &Error{reason: fmt.Sprintf("the upstream proxy does not answer as an HTTP proxy does: the head of its answer has more than %d KiB", maxHead>>10)}
}

// statusOf reads the first line of a head, HTTP/1.x STATUS REASON. The rest is
// irrelevant to a tunnel.
func statusOf(head []byte) (status int, ok bool) {
	line, _, _ := strings.Cut(string(head), "\n")
	version, rest, _ := strings.Cut(strings.TrimSuffix(line, "\r"), " ")
	code, _, _ := strings.Cut(rest, " ")
	if _, _, known := http.ParseHTTPVersion(version); !known || len(code) != 3 {
		return 0, false
	}
	status, err := strconv.Atoi(code)
	return status, err == nil && status >= 100
}

// plain describes a network error without the addresses in it.
func plain(ctx context.Context, err error) string {
	var name *net.DNSError
	var number syscall.Errno
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case ctx.Err() != nil:
		return "the connection is no longer needed"
	case errors.As(err, &name):
		return "its name is not found"
	case errors.As(err, &number):
		return number.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it ended the connection"
	}
	return "the connection broke"
}
