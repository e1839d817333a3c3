package gateway

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
)

// limit counts a request against its caller's rate limit and reports the limit's state
// in the headers: RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-10. A request over the limit is Exhausted.
func (s *Server) limit(rt route, w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	class := rt.op.Class
	if class == "" {
		return nil
	}
	d := s.limits.Take(callerOf(r, who), class, time.Now())
	if !d.Limited {
		return nil
	}
	window := int(math.Ceil(float64(d.Rule.Burst) / d.Rule.PerSecond))
	h := w.Header()
	h.Set("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=%d", class, d.Rule.Burst, window))
	h.Set("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", class, d.Remaining, wholeSeconds(d.Reset)))
	if d.OK {
		return nil
	}
	e := sandbox.Errorf(sandbox.Exhausted, "too many requests of the kind %q: %d at once and %g a second are allowed", class, d.Rule.Burst, d.Rule.PerSecond)
	e.RetryAfter = max(d.Wait, time.Second)
	return e
}

// recognize is identify with a rate limit: an address that keeps sending invalid
// credentials gets Exhausted. A valid credential is accepted regardless of others at
// its address: behind a proxy all clients share one.
func (s *Server) recognize(rt route, r *http.Request) (sandbox.Identity, error) {
	who, err := s.identify(rt, r)
	if !errors.Is(err, sandbox.Anonymous) {
		return who, err
	}
	if d := s.limits.Take(callerOf(r, sandbox.Identity{}), ratelimit.Token, time.Now()); !d.OK {
		e := sandbox.Errorf(sandbox.Exhausted, "too many credentials from this address were not valid: wait a little").WithCause(err)
		e.RetryAfter = max(d.Wait, time.Second)
		return who, e
	}
	return who, err
}

func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// callerOf is the key of a request's rate limit: its Key, its user within the Tenant,
// or without an Identity its address.
func callerOf(r *http.Request, who sandbox.Identity) string {
	switch {
	case who.Key != "":
		return "key:" + who.Key
	case who.Tenant != "":
		return "user:" + string(who.Tenant) + "/" + who.User
	}
	return "address:" + addressOf(r)
}
