package traffic

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// maxSends bounds how often one request is sent to a Sandbox that is paused each time
// before it answers.
const maxSends = 4

// errCut reports that a Sandbox was paused, or rolled back to a checkpoint, before it
// answered a request that may have taken effect.
var errCut = errors.New("the sandbox was paused before it answered")

// roundTrip sends a request to the service inside. A request that a pause interrupted
// is sent again once the Sandbox runs, if it cannot have had an effect.
func (p *Proxy) roundTrip(r *http.Request) (*http.Response, error) {
	for sends := 1; ; sends++ {
		attempt := &attempt{}
		resp, err := p.send(attempt.of(r))
		if err == nil || sends == maxSends || r.Context().Err() != nil {
			return resp, err
		}
		rt, ok := routeOf(r.Context())
		if !ok {
			return nil, err
		}
		now, recordErr := p.record(r.Context(), rt.target.SandboxID)
		if recordErr != nil || now.State == sandbox.Running && now.Boot == rt.sandbox.Boot {
			return nil, err // the cause is not a pause
		}
		if !attempt.harmless(r) {
			return nil, fmt.Errorf("%w: %w", errCut, err)
		}
		if rt.sandbox, err = p.awake(r, rt.target, now); err != nil {
			return nil, err
		}
		r = r.WithContext(withRoute(r.Context(), rt))
		to := *r.URL
		to.Host = rt.host()
		r.URL = &to
	}
}

// attempt is one sending of a request.
type attempt struct {
	sent atomic.Bool // it got a connection
}

// of is the request to send: its body stays open until sending begins.
func (a *attempt) of(r *http.Request) *http.Request {
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { a.sent.Store(true) },
	}))
	if hasBody(r) {
		r.Body = &unsent{r.Body, a}
	}
	return r
}

// harmless reports whether the request can be sent again: it was never sent, or it only
// reads.
func (a *attempt) harmless(r *http.Request) bool {
	if !a.sent.Load() {
		return true
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return !hasBody(r)
	}
	return false
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// unsent is the body of an attempt. A transport closes it also when it could not
// connect.
type unsent struct {
	io.ReadCloser
	attempt *attempt
}

func (u *unsent) Close() error {
	if !u.attempt.sent.Load() {
		return nil
	}
	return u.ReadCloser.Close()
}
