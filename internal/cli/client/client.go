// Package client speaks the public REST API for the command line. It is small on
// purpose: it has only the calls that commands need, as the contract api/openapi.yaml
// defines them.
package client

import (
	"bytes"
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// Bounds of answers that are read into memory, in bytes. Answers of sandboxes pass
// through the server, and the server itself may be untrusted.
const (
	maxError = 64 << 10
	maxReply = 128 << 20 // an execution's result holds output and pictures
)

// Client calls one server as one identity. Its methods are safe for concurrent use.
// Failures that the server reports are *sandbox.Error with the server's code; if the
// server does not answer, the code is Unavailable.
type Client struct {
	// Patience is the total time that a call waits and retries while the server answers
	// with Retry-After; zero: no retry. Waits, which may be nil, is called with the
	// length of each wait before it. Both are set before the first call.
	Patience time.Duration
	Waits    func(time.Duration)

	base    string
	userID  string
	version string // of the program; empty: unknown
	http    *http.Client

	tokens func(context.Context) (string, error) // of a login; nil: no login

	mu    sync.Mutex
	token string // empty: not minted yet
}

// New returns a Client; it sends nothing. Close frees its connections.
func New(c config.Client) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // bytes of files are passed on as they are
	transport.MaxIdleConnsPerHost = 128
	transport.MaxIdleConns = 0
	transport.ExpectContinueTimeout = 5 * time.Second
	transport.WriteBufferSize, transport.ReadBufferSize = 64<<10, 64<<10
	return &Client{
		base: c.URL, userID: c.UserID, version: c.Version, token: c.Key,
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// NewWithTokens is New with a token for each request.
func NewWithTokens(c config.Client, tokens func(context.Context) (string, error)) *Client {
	made := New(c)
	made.tokens = tokens
	return made
}

// NewOver returns a Client that sends its requests through way, which adds their
// credentials. Their URLs begin with base.
func NewOver(base string, way http.RoundTripper) *Client {
	return &Client{
		base: base, http: &http.Client{Transport: way},
		tokens: func(context.Context) (string, error) { return "", nil },
	}
}

// Providers lists the identity providers for a login.
func (c *Client) Providers(ctx context.Context) ([]v1.Provider, error) {
	resp, err := c.send(ctx, request{method: http.MethodGet, path: "/api/v1/auth/providers"}, "")
	if err != nil {
		return nil, err
	}
	var reply v1.Providers
	err = decode(resp, &reply)
	return reply.Providers, err
}

// Close frees idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// URL is the address of the server.
func (c *Client) URL() string { return c.base }

// bearer returns the API key, a login's token, or a dev mode token that is minted
// once.
func (c *Client) bearer(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokens != nil {
		return c.tokens(ctx)
	}
	if c.token != "" {
		return c.token, nil
	}
	var reply v1.Token
	body, err := json.Marshal(map[string]string{"user_id": c.userID, "role": "user"})
	if err != nil {
		return "", err
	}
	resp, err := c.send(ctx, request{method: http.MethodPost, path: "/api/v1/auth/token", body: bytes.NewReader(body), kind: jsonType}, "")
	if err != nil {
		var refused *sandbox.Error
		if errors.As(err, &refused) && refused.Code == sandbox.Denied {
			return "", sandbox.Errorf(sandbox.Denied, "%s; then set CLOUD_SANDBOX_API_KEY", refused.Detail)
		}
		return "", err
	}
	if err := decode(resp, &reply); err != nil {
		return "", err
	}
	c.token = reply.AccessToken
	return c.token, nil
}

const (
	idempotencyKey = "Idempotency-Key"

	jsonType  = "application/json"
	bytesType = "application/octet-stream"
)

// request is one call of the API.
type request struct {
	method string
	path   string // below the server's address
	query  url.Values
	body   io.Reader // nil: none
	size   int64     // of body in bytes; 0: not known, or a *bytes.Reader
	kind   string    // content type of body
	header http.Header
}

// do sends r with the caller's credentials, and again after the server's Retry-After.
// The caller closes the answer's body.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	token, err := c.bearer(ctx)
	if err != nil {
		return nil, err
	}
	r.keyed()
	for left := c.Patience; ; {
		resp, err := c.send(ctx, r, token)
		wait := comeBack(err, c.Patience-left, rand.Float64())
		if wait == 0 || wait > left || !r.rewind() {
			return resp, err
		}
		left -= wait
		if c.Waits != nil {
			c.Waits(wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// comeBack returns the backoff before a call that failed with err is retried; zero:
// no retry. The backoff is at least the server's Retry-After and grows with the time
// waited so far. Jitter of up to a tenth is added: chance, from 0 to 1, sets its
// size.
func comeBack(err error, waited time.Duration, chance float64) time.Duration {
	const most = 10 * time.Second // bound of the growing backoff
	var refused *sandbox.Error
	if !errors.As(err, &refused) || refused.Code != sandbox.Unavailable || refused.RetryAfter <= 0 {
		return 0
	}
	wait := max(refused.RetryAfter, min(waited/4, most))
	return wait + time.Duration(chance*float64(wait)/10)
}

// keyed gives r an idempotency key, if it creates a lasting object: an earlier try
// may have taken effect, though it was answered with an error.
func (r *request) keyed() {
	_, plain := r.body.(*bytes.Reader) // the server keeps the body of a request with a key
	if r.method != http.MethodPost || r.body != nil && !plain || r.header.Get(idempotencyKey) != "" {
		return
	}
	switch {
	case slices.Contains([]string{"/api/v1/sessions", "/api/v1/sandbox/acquire", processes, "/api/v1/keys", "/api/v1/secrets", "/api/v1/volumes"}, r.path),
		strings.HasSuffix(r.path, "/fork"), strings.HasSuffix(r.path, "/snapshots"), strings.HasSuffix(r.path, "/rotate"):
	default:
		return
	}
	if r.header = r.header.Clone(); r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(idempotencyKey, crand.Text())
}

// rewind readies r to be sent again; false when its body cannot be.
func (r request) rewind() bool {
	if r.body == nil {
		return true
	}
	body, ok := r.body.(*bytes.Reader)
	if !ok {
		return false
	}
	_, err := body.Seek(0, io.SeekStart)
	return err == nil
}

// call sends in as JSON, unless it is nil, and decodes the answer into out,
// unless that is nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	r := request{method: method, path: path, query: query}
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		r.body, r.kind = bytes.NewReader(body), jsonType
	}
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	return decode(resp, out)
}

// send sends r. An answer that is not 2xx is an error.
func (c *Client) send(ctx context.Context, r request, token string) (*http.Response, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, r.body)
	if err != nil {
		return nil, err
	}
	if r.size > 0 {
		req.ContentLength = r.size
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if c.version != "" {
		req.Header.Set("User-Agent", "cloud-sandbox/"+c.version)
	}
	if r.kind != "" {
		req.Header.Set("Content-Type", r.kind)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, failure(c.base, resp)
	}
	return resp, nil
}

// unreachable returns an error that explains why there was no answer.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var coded *sandbox.Error
	if errors.As(err, &coded) {
		return coded // of the body that was being sent
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return sandbox.Errorf(sandbox.Unavailable, "no server answers at %s (%v): start one with `cloud-sandbox serve --dev`, or set CLOUD_SANDBOX_URL", c.base, dial.Err)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the URL, which names paths
	}
	return sandbox.Errorf(sandbox.Unavailable, "the connection to %s broke: %v", c.base, err).WithCause(errLost)
}

// errLost is the cause of an answer that is missing or incomplete.
var errLost = errors.New("the connection was lost")

// Lost reports whether the answer to a request was lost, so that the request may have
// taken effect.
func Lost(err error) bool { return errors.Is(err, errLost) }

// failure returns the error in an answer that is not 2xx.
func failure(base string, resp *http.Response) error {
	var body v1.FailureBody
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err != nil || json.Unmarshal(raw, &body) != nil || body.Error.Code == "" {
		return sandbox.Errorf(sandbox.Unavailable, "%s answered %s, which is not an answer of Cloud Sandbox: check the address", base, resp.Status)
	}
	e := sandbox.Errorf(body.Error.Code, "%s", cmp.Or(body.Error.Message, resp.Status))
	wait := body.Error.RetryAfterSeconds
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); wait == 0 && err == nil {
		wait = n
	}
	e.RetryAfter = time.Duration(min(max(wait, 0), 86400)) * time.Second
	return e
}

// decode reads the whole answer into out, unless that is nil, and closes it.
func decode(resp *http.Response, out any) error {
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	switch {
	case err != nil:
		return broken(resp, err)
	case len(raw) > maxReply:
		return sandbox.Errorf(sandbox.TooLarge, "the server's answer has more than %d MiB", maxReply>>20)
	case out == nil:
		return nil
	}
	return parse(raw, out)
}

// parse decodes a server's answer.
func parse(raw []byte, out any) error {
	if err := json.Unmarshal(raw, out); err != nil {
		return sandbox.Errorf(sandbox.Internal, "this version of the command cannot read the server's answer: %v", err)
	}
	return nil
}

// broken returns the error of an answer that ended early: the end of the request's
// context, or a lost connection.
func broken(resp *http.Response, err error) error {
	if ctx := resp.Request.Context(); ctx.Err() != nil {
		return ctx.Err()
	}
	return sandbox.Errorf(sandbox.Unavailable, "the connection to the server was lost before its answer ended").WithCause(fmt.Errorf("%w: %w", errLost, err))
}
