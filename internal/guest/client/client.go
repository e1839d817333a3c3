// Package client calls the Guest inside a Boot. The answers of a Guest are hostile
// input: sizes, counts and times are bounded here, and its errors are mapped to our
// Codes.
package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

const (
	// maxMessage bounds one message of a Guest.
	maxMessage = 16 << 20
	// maxHeader bounds the header of its answers, in bytes.
	maxHeader = 64 << 10
	// headTime bounds the wait for the header of an answer to a short call.
	headTime = 30 * time.Second
	// maxText bounds an error text of the Guest that is passed on, in bytes.
	maxText = 500
)

// Dial connects to a TCP port of one Boot.
type Dial func(ctx context.Context, port uint16) (net.Conn, error)

// Client calls the Guest of one Boot. Its methods are safe for concurrent use,
// return soon after their context ends, and return *sandbox.Error.
type Client struct {
	http    *http.Client
	token   string
	trusted string
	// Clients of services, each created on first use: their creation takes longer
	// than most calls.
	control   func() guestv1connect.GuestServiceClient
	contexts  func() guestv1connect.ContextServiceClient
	files     func() guestv1connect.FilesServiceClient
	processes func() guestv1connect.ProcessServiceClient
}

// Option changes a Client.
type Option func(*Client)

// WithToken sets the access token of the E2B services.
func WithToken(token string) Option { return func(c *Client) { c.token = token } }

// WithTrusted has programs in the Sandbox trust authorities in PEM, in addition to
// the authority of its Secrets.
func WithTrusted(pem string) Option { return func(c *Client) { c.trusted = pem } }

// New returns a client that connects by dial when it is first used.
func New(dial Dial, with ...Option) *Client {
	c := &Client{}
	for _, o := range with {
		o(c)
	}
	transport := &http.Transport{
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
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}
	c.http = &http.Client{
		Transport: &fileCalls{Transport: transport, token: c.token},
		// A Guest must not redirect us.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	options := connect.WithClientOptions(connect.WithReadMaxBytes(maxMessage), connect.WithAcceptCompression("gzip", nil, nil))
	calls := &http.Client{Transport: frames{c.http.Transport}, CheckRedirect: c.http.CheckRedirect}
	c.control = made(guestv1connect.NewGuestServiceClient, calls, options)
	c.files = made(guestv1connect.NewFilesServiceClient, calls, options)
	c.contexts = made(guestv1connect.NewContextServiceClient, calls, options)
	c.processes = made(guestv1connect.NewProcessServiceClient, calls, options)
	return c
}

// made returns a function that returns the client of a service. The client is created
// once.
func made[T any](client func(connect.HTTPClient, string, ...connect.ClientOption) T, calls connect.HTTPClient, options connect.ClientOption) func() T {
	return sync.OnceValue(func() T { return client(calls, url(sandbox.GuestPort), options) })
}

func url(port uint16) string { return "http://guest:" + strconv.Itoa(int(port)) }

// Close frees idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Health returns the owner that the Guest reports; an empty ID if it has none.
func (c *Client) Health(ctx context.Context) (sandboxID string, number int64, err error) {
	return c.health(ctx, &guestv1.HealthRequest{})
}

// NotifyRestored sends a restored Guest the time of its save. A zero time sends none and only
// checks that the Guest answers.
func (c *Client) NotifyRestored(ctx context.Context, savedAt time.Time) error {
	r := &guestv1.HealthRequest{}
	if !savedAt.IsZero() {
		r.SavedAtUnixNano = savedAt.UnixNano()
	}
	_, _, err := c.health(ctx, r)
	return err
}

func (c *Client) health(ctx context.Context, ask *guestv1.HealthRequest) (sandboxID string, number int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.control().Health(ctx, connect.NewRequest(ask))
	if err != nil {
		return "", 0, fail(ctx, err)
	}
	if r.Msg.SandboxId != "" && !sandbox.ValidSandboxID(r.Msg.SandboxId) {
		return "", 0, sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")
	}
	return r.Msg.SandboxId, r.Msg.BootNumber, nil
}

// Park readies a blank Boot to wait in a Pool. pids is the limit of processes that
// most owners there have.
func (c *Client) Park(ctx context.Context, pids int64) error {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	if _, err := c.control().Park(ctx, connect.NewRequest(&guestv1.ParkRequest{PidsLimit: pids})); err != nil {
		return fail(ctx, err)
	}
	return c.rehearse(ctx)
}

// rehearsals is how often a Bind is rehearsed: the second rehearsal still makes
// Bind faster.
const rehearsals = 2

// rehearse calls Bind without an owner, which the Guest refuses as its last step.
// So the code of a Bind is loaded in the Guest and in the kernel below it ahead of
// the real Bind, for which a caller waits.
func (c *Client) rehearse(ctx context.Context) error {
	for range rehearsals {
		_, err := c.control().Bind(ctx, connect.NewRequest(bindRequest(sandbox.Binding{})))
		if err = fail(ctx, err); err == nil {
			return sandbox.Errorf(sandbox.Unavailable, "the sandbox accepted an empty owner")
		}
		if !errors.Is(err, sandbox.Invalid) {
			return err
		}
	}
	return nil
}

// Warm opens a connection ahead of the first call.
func (c *Client) Warm(ctx context.Context) error {
	_, _, err := c.Health(ctx)
	return err
}

// Bind gives the Boot its owner; waits says that Ready must follow. Invalid means
// that the Binding is wrong, Conflict that the Boot belongs to another Sandbox.
func (c *Client) Bind(ctx context.Context, b sandbox.Binding) (waits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	ask := bindRequest(b)
	ask.Authority = b.Secrets.Authority + c.trusted
	r, err := c.control().Bind(ctx, connect.NewRequest(ask))
	if err != nil {
		return false, fail(ctx, err)
	}
	if int(r.Msg.Mounted) != len(b.Volumes) {
		return false, sandbox.Errorf(sandbox.Unsupported, "the sandbox was started by a version without volumes")
	}
	return r.Msg.Waits, nil
}

// bindRequest returns the request for b without the authorities.
func bindRequest(b sandbox.Binding) *guestv1.BindRequest {
	const entropyBytes = 64
	entropy := make([]byte, entropyBytes)
	_, _ = rand.Read(entropy)
	return &guestv1.BindRequest{
		SandboxId: b.SandboxID, BootNumber: b.BootNumber, AccessToken: b.AccessToken, Template: b.Template,
		Hostname: guest.Hostname, Env: b.Env, DefaultUser: b.User, DefaultCwd: b.Cwd, Timeline: b.Timeline,
		UnixNanos: time.Now().UnixNano(), Entropy: entropy, PidsLimit: b.Limits.Pids, Restored: b.Restored,
		Volumes: mounts(b.Volumes),
	}
}

func mounts(volumes []sandbox.VolumeBinding) []*guestv1.VolumeMount {
	var out []*guestv1.VolumeMount
	for _, v := range volumes {
		out = append(out, &guestv1.VolumeMount{Id: v.ID, Path: v.Path})
	}
	return out
}

// Ready waits until the Template's ready command succeeds, or until limit has
// passed; then it returns Invalid with the reason.
func (c *Client) Ready(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit+headTime)
	defer cancel()
	_, err := c.control().Ready(ctx, connect.NewRequest(&guestv1.ReadyRequest{TimeoutMillis: limit.Milliseconds()}))
	return fail(ctx, err)
}

// KillBiggest ends the Process that uses most memory.
func (c *Client) KillBiggest(ctx context.Context) error {
	_, err := c.control().KillBiggest(ctx, connect.NewRequest(&guestv1.KillBiggestRequest{}))
	return fail(ctx, err)
}

// Shutdown asks every process inside to end, waits up to grace, and ends the Guest.
func (c *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	_, err := c.control().Shutdown(ctx, connect.NewRequest(&guestv1.ShutdownRequest{GraceMillis: grace.Milliseconds()}))
	return fail(ctx, err)
}

// fail maps an error of a call to a Code. The Guest's text is shortened, and passed
// on only if it says what is wrong with the request.
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
		connect.CodeOutOfRange:         sandbox.TooLarge,
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

// tame makes a Guest's text safe to show: short, one line, text only.
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
