// Package client speaks to the Guest inside a Boot. What the Guest answers is
// hostile input: sizes, counts and times are bounded here, and its errors are
// given Codes of ours.
package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem/filesystemconnect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

const (
	// maxMessage bounds one message of a Guest.
	maxMessage = 16 << 20
	// maxHeader bounds the head of its answers.
	maxHeader = 64 << 10
	// headTime bounds the wait for the head of an answer to a short call.
	headTime = 30 * time.Second
	// maxText bounds a sentence of its that is passed on.
	maxText = 500
)

// Dial connects to a TCP port of one Boot.
type Dial func(ctx context.Context, port uint16) (net.Conn, error)

// Client speaks to the Guest of one Boot. Its methods are safe for concurrent
// use, return soon after their context ends, and return *sandbox.Error.
type Client struct {
	http    *http.Client
	token   string
	control guestv1connect.GuestServiceClient
	files   filesystemconnect.FilesystemClient
}

// Option changes a Client.
type Option func(*Client)

// WithToken sets the access token of the E2B services.
func WithToken(token string) Option { return func(c *Client) { c.token = token } }

// New returns a client that connects by dial when it is first used.
func New(dial Dial, options ...Option) *Client {
	c := &Client{http: &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				_, port, err := net.SplitHostPort(addr)
				if err != nil {
					return nil, err
				}
				n, err := strconv.ParseUint(port, 10, 16)
				if err != nil {
					return nil, err
				}
				return dial(ctx, uint16(n))
			},
			MaxIdleConnsPerHost:    16,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: maxHeader,
			DisableCompression:     true,
		},
		// A Guest has no business sending us elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, o := range options {
		o(c)
	}
	limit := connect.WithReadMaxBytes(maxMessage)
	c.control = guestv1connect.NewGuestServiceClient(c.http, url(sandbox.GuestPort), limit)
	c.files = filesystemconnect.NewFilesystemClient(c.http, url(sandbox.EnvdPort), limit)
	return c
}

func url(port uint16) string { return "http://guest:" + strconv.Itoa(int(port)) }

// Close frees idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Health returns whom the Guest says it is bound to; an empty ID for nobody.
func (c *Client) Health(ctx context.Context) (sandboxID string, number int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.control.Health(ctx, connect.NewRequest(&guestv1.HealthRequest{}))
	if err != nil {
		return "", 0, fail(ctx, err)
	}
	if r.Msg.SandboxId != "" && !sandbox.ValidSandboxID(r.Msg.SandboxId) {
		return "", 0, sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")
	}
	return r.Msg.SandboxId, r.Msg.BootNumber, nil
}

// Bind opens the Boot's life under an owner. Invalid means that the Binding is
// wrong, Conflict that the Boot belongs to another Sandbox.
func (c *Client) Bind(ctx context.Context, b sandbox.Binding) error {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	const entropyBytes = 64
	entropy := make([]byte, entropyBytes)
	_, _ = rand.Read(entropy)
	_, err := c.control.Bind(ctx, connect.NewRequest(&guestv1.BindRequest{
		SandboxId: b.SandboxID, BootNumber: b.BootNumber, AccessToken: b.AccessToken, Template: b.Template,
		Hostname: guest.Hostname, Env: b.Env, DefaultUser: b.User, DefaultCwd: b.Cwd, Timeline: b.Timeline,
		UnixNanos: time.Now().UnixNano(), Entropy: entropy, PidsLimit: b.Pids,
	}))
	return fail(ctx, err)
}

// KillBiggest ends the Process that uses most memory.
func (c *Client) KillBiggest(ctx context.Context) error {
	_, err := c.control.KillBiggest(ctx, connect.NewRequest(&guestv1.KillBiggestRequest{}))
	return fail(ctx, err)
}

// Shutdown asks everything inside to end within grace, the Guest last.
func (c *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	_, err := c.control.Shutdown(ctx, connect.NewRequest(&guestv1.ShutdownRequest{GraceMillis: grace.Milliseconds()}))
	return fail(ctx, err)
}

// fail gives an error of a call a Code. The Guest's sentence is shortened and
// passed on only where it says what is wrong with the request.
func fail(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return ctx.Err()
	}
	var own *sandbox.Error
	if errors.As(err, &own) {
		return own
	}
	var remote *connect.Error
	if !errors.As(err, &remote) || !connect.IsWireError(err) {
		return away(err)
	}
	code, ok := map[connect.Code]sandbox.Code{
		connect.CodeInvalidArgument:    sandbox.Invalid,
		connect.CodeNotFound:           sandbox.NotFound,
		connect.CodeAlreadyExists:      sandbox.Conflict,
		connect.CodeFailedPrecondition: sandbox.Conflict,
		connect.CodePermissionDenied:   sandbox.Denied,
		connect.CodeResourceExhausted:  sandbox.Exhausted,
		connect.CodeUnimplemented:      sandbox.Unsupported,
	}[remote.Code()]
	if !ok {
		return away(err)
	}
	return sandbox.Errorf(code, "%s", tame(remote.Message()))
}

func away(err error) error {
	return sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer").WithCause(err)
}

// tame makes a Guest's sentence fit to be shown: short, one line, text only.
func tame(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "..."
	}
	if s == "" {
		return "the sandbox refused"
	}
	return s
}
