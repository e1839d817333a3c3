package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

const (
	// onceLife is how long the answer to a request with an Idempotency-Key is
	// given again.
	onceLife = 24 * time.Hour
	// onceSweep is how often old ones are removed.
	onceSweep  = time.Hour
	idempotent = "Idempotency-Key"
	maxAnswer  = 64 << 10 // bytes of an answer that is kept
	onceBody   = 16 << 20 // bytes of a request that is compared with its repeats
)

var idempotencyPattern = regexp.MustCompile(`^[\x21-\x7e]{1,255}$`)

// holder is this process among those that share a Store.
var holder = rand.Text()

// once has a request that creates something take effect once for each
// Idempotency-Key of its Tenant, within onceLife: the first one is carried out,
// a repeat gets its answer. A request that fails is forgotten, so that a repeat
// tries again; one of which nobody knows whether it took effect is carried out
// again for the same resource. Requests without the header pass.
func (s *Server) once(rt route, w *writer, r *http.Request, who sandbox.Identity) error {
	keys := r.Header.Values(idempotent)
	if len(keys) == 0 || !rt.op.Once || rt.door == connectDoor {
		return rt.answer(w, r, who)
	}
	if len(keys) != 1 || !idempotencyPattern.MatchString(keys[0]) {
		return sandbox.Errorf(sandbox.Invalid, "send one %s of 1 to 255 visible ASCII characters", idempotent)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, onceBody+1))
	switch {
	case err != nil:
		return err
	case len(body) > onceBody:
		return sandbox.Errorf(sandbox.TooLarge, "with an %s a body may have at most %d bytes", idempotent, onceBody)
	}
	mine := sandbox.Once{
		Tenant: who.Tenant, Key: keys[0], Request: requestHash(r, body), Resource: sandbox.NewSandboxID(),
		At: time.Now().UTC().Truncate(time.Microsecond), Holder: holder,
	}
	there, began, err := s.Store.BeginOnce(r.Context(), mine, mine.At.Add(-onceLife))
	switch {
	case err != nil:
		return err
	case !began:
		return repeat(w, there, mine)
	}
	bounded := *r.WithContext(rest.WithResource(r.Context(), there.Resource))
	bounded.Body = io.NopCloser(bytes.NewReader(body))
	kept := &keeping{writer: w}
	err = rt.answer(kept, &bounded, who)
	s.settle(r.Context(), there, rt, kept, err)
	return err
}

func requestHash(r *http.Request, body []byte) sandbox.KeyHash {
	h := sha256.New()
	for _, part := range []string{r.Method, r.URL.Path, r.URL.RawQuery} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	h.Write(body)
	return sandbox.KeyHash(h.Sum(nil))
}

// repeat answers a request whose key is known.
func repeat(w *writer, there, mine sandbox.Once) error {
	switch {
	case there.Request != mine.Request:
		return sandbox.Errorf(sandbox.Conflict, "this %s was used for another request: use a new one", idempotent)
	case there.Status == 0:
		return rest.ErrUnderWay
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Idempotent-Replayed", "true")
	w.WriteHeader(there.Status)
	_, err := w.Write(there.Answer)
	return err
}

// settle records what became of a request. The client may be gone by now.
func (s *Server) settle(ctx context.Context, o sandbox.Once, rt route, kept *keeping, failure error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var err error
	switch {
	case failure != nil && unsure(failure):
		err = s.Store.LetGoOnce(ctx, o)
	case failure != nil || kept.status < 200 || kept.status > 299 || kept.body.Len() > maxAnswer:
		err = s.Store.DropOnce(ctx, o)
	default:
		o.Status, o.Answer = kept.status, kept.body.Bytes()
		if rt.op.ShowsSecret {
			o.Answer = withoutSecret(o.Answer)
		}
		err = s.Store.FinishOnce(ctx, o)
	}
	if err != nil {
		s.Log.Warn("what became of a request with an idempotency key could not be recorded", "error", err)
	}
}

// unsure reports whether what a request asked for may be there, or still come,
// although it failed.
func unsure(failure error) bool {
	switch sandbox.CodeOf(failure) {
	case sandbox.Internal, sandbox.Unavailable, sandbox.Timeout:
		return true
	}
	return errors.Is(failure, rest.ErrUnderWay)
}

// withoutSecret takes the secret out of the answer to a Key's making or rotation: it is
// shown once and kept nowhere. A repeat shows everything else.
func withoutSecret(answer []byte) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(answer, &fields) != nil {
		return []byte("{}")
	}
	delete(fields, "key")
	out, err := json.Marshal(fields)
	if err != nil {
		return []byte("{}")
	}
	return append(out, '\n')
}

// keeping is a writer that keeps a copy of the body.
type keeping struct {
	*writer
	body bytes.Buffer
}

func (k *keeping) Write(p []byte) (int, error) {
	if k.body.Len() <= maxAnswer {
		k.body.Write(p)
	}
	return k.writer.Write(p)
}

// forgetOnces removes old answers until ctx ends.
func (s *Server) forgetOnces(ctx context.Context) {
	tick := time.NewTicker(onceSweep)
	defer tick.Stop()
	for {
		if _, err := s.Store.DeleteOnces(ctx, time.Now().Add(-onceLife)); err != nil && ctx.Err() == nil {
			s.Log.Warn("old answers could not be removed", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
