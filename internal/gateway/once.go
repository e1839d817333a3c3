package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// idempotencyLife is how long the stored answer to a request with an Idempotency-Key is
	// replayed.
	idempotencyLife = 24 * time.Hour
	// idempotencySweep is the interval of removing old answers.
	idempotencySweep  = time.Hour
	idempotent        = rpc.IdempotencyKey
	maxAnswer         = 64 << 10 // bytes of a stored answer
	maxIdempotentBody = 16 << 20 // bytes of a request body, which is compared with its repeats
)

var idempotencyPattern = regexp.MustCompile(`^[\x21-\x7e]{1,255}$`)

// holder identifies this process among the processes that share a Store.
var holder = rand.Text()

// idempotently makes a request idempotent within idempotencyLife, for each
// Idempotency-Key of its Tenant. The first request is carried out, and a repeat gets its answer. A failed
// request is forgotten, so that a repeat tries again. A repeat is carried out again for
// the same resource if it is unknown whether the first request took effect, or if its
// answer is too large to store or holds a credential. Requests without the header pass.
// Calls of Connect have messages as answers, and use callIdempotently.
func (s *Server) idempotently(rt route, w *writer, r *http.Request, who sandbox.Identity) (err error) {
	keys := r.Header.Values(idempotent)
	if len(keys) == 0 || !rt.op.Idempotent || rt.surface == connectSurface {
		return rt.answer(w, r, who)
	}
	if err := checkIdempotencyKeys(keys); err != nil {
		return err
	}
	if b, ok := r.Body.(*body); ok && b.max < 0 {
		b.gather(r, maxIdempotentBody)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxIdempotentBody+1))
	switch {
	case err != nil:
		return err
	case len(body) > maxIdempotentBody:
		return sandbox.Errorf(sandbox.TooLarge, "with an %s a body may have at most %d bytes", idempotent, maxIdempotentBody)
	}
	first, began, again, err := s.beginIdempotent(r.Context(), who.Tenant, keys[0], requestHash(body, r.Method, r.URL.Path, r.URL.RawQuery))
	switch {
	case err != nil:
		return sandbox.NotBegun(err)
	case !began:
		return repeat(w, first)
	}
	held := &heldWriter{writer: w}
	end := outcome{failure: errPanicked} // unless it returns
	defer func() {
		s.settle(r.Context(), first, end)
		if end.failure != errPanicked {
			err = cmp.Or(err, held.pass())
		}
	}()
	unkept := false
	bounded := *r.WithContext(rest.WithUnkept(rest.WithResource(r.Context(), first.Resource, again), func() { unkept = true }))
	bounded.Body = io.NopCloser(bytes.NewReader(body))
	err = rt.answer(held, &bounded, who)
	answer := held.body.Bytes()
	if rt.op.ShowsSecret {
		answer = withoutSecret(answer)
	}
	end = outcome{held.code, answer, unkept || held.passes, err}
	return err
}

// callIdempotently is idempotently for a call of Connect. It refuses streams of operations that take
// effect once. For a unary call it either fills repeated with the answer of an earlier
// call and returns true, or makes the call with do.
func (s *Server) callIdempotently(ctx context.Context, c rpc.OnceCall, repeated proto.Message, do func(context.Context) (proto.Message, error)) (bool, error) {
	op := s.procedures[c.Procedure]
	if !op.Idempotent {
		_, err := do(ctx)
		return false, err
	}
	if c.Request == nil {
		return false, sandbox.Errorf(sandbox.Invalid, "%s is a stream and takes no %s: send it without the header, or use REST", c.Procedure, idempotent)
	}
	if err := checkIdempotencyKeys(c.Keys); err != nil {
		return false, err
	}
	request, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.Request)
	if err != nil {
		return false, err
	}
	first, began, again, err := s.beginIdempotent(ctx, c.Tenant, c.Keys[0], requestHash(request, c.Procedure))
	switch {
	case err != nil:
		return false, sandbox.NotBegun(err)
	case !began:
		return true, proto.Unmarshal(first.Answer, repeated)
	}
	end := outcome{failure: errPanicked} // unless it returns
	defer func() { s.settle(ctx, first, end) }()
	made, failure := do(rest.WithResource(ctx, first.Resource, again))
	var answer []byte
	if failure == nil {
		if op.ShowsSecret {
			made = withoutSecretField(made)
		}
		answer, err = proto.Marshal(made)
	}
	end = outcome{http.StatusOK, answer, false, cmp.Or(failure, err)}
	return false, failure
}

func checkIdempotencyKeys(keys []string) error {
	if len(keys) != 1 || !idempotencyPattern.MatchString(keys[0]) {
		return sandbox.Errorf(sandbox.Invalid, "send one %s of 1 to 255 visible ASCII characters", idempotent)
	}
	return nil
}

// beginIdempotent returns the idempotency record of the first request with a key. began is
// true if the caller must carry that request out, and false if the record has an
// answer. again says that an earlier attempt to carry it out may have had an effect.
func (s *Server) beginIdempotent(ctx context.Context, tenant sandbox.TenantID, key string, request sandbox.KeyHash) (first sandbox.IdempotencyRecord, began, again bool, err error) {
	mine := sandbox.IdempotencyRecord{
		Tenant: tenant, Key: key, Request: request, Resource: sandbox.NewSandboxID(),
		At: time.Now().UTC().Truncate(time.Microsecond), Holder: holder,
	}
	alone := s.underWay.enter(tenant, key)
	defer func() {
		if !began {
			s.underWay.leave(tenant, key)
		}
	}()
	for range 2 {
		// The audit entry of the request follows.
		first, began, err = s.Store.BeginIdempotent(sandbox.CommitLater(ctx), mine, mine.At.Add(-idempotencyLife))
		if err != nil || began || !alone || first.Holder != holder || first.Request != mine.Request || first.Status != 0 {
			break
		}
		// An earlier request of this process has ended without a record of its outcome.
		if err = s.Store.ReleaseIdempotent(ctx, first); err != nil {
			break
		}
	}
	switch {
	case err != nil:
		return first, false, false, unbegun(err)
	case began:
		return first, true, first.Resource != mine.Resource, nil
	case first.Request != mine.Request:
		return first, false, false, sandbox.Errorf(sandbox.Conflict, "this %s was used for another request: use a new one", idempotent)
	case first.Status == 0:
		return first, false, false, rest.ErrUnderWay
	}
	return first, false, false, nil
}

// unbegun is the error of a request whose key could not be recorded, so that it was not
// carried out, and may be sent again even if the record may have been written.
func unbegun(err error) error {
	if sandbox.CodeOf(err) != sandbox.Unavailable {
		return err
	}
	// The text alone: an ErrUncertain in err is about the record, not the request.
	return sandbox.NotBegun(sandbox.Errorf(sandbox.Unavailable, "the %s could not be recorded, and nothing was done", idempotent).WithCause(errors.New(err.Error())))
}

// underWay counts the requests with an Idempotency-Key that this process carries out, or
// is about to, by their keys. The zero value has none.
type underWay struct {
	mu   sync.Mutex
	keys map[onceKey]int
}

type onceKey struct {
	tenant sandbox.TenantID
	key    string
}

// enter adds a request, and reports whether it is the only one with its key.
func (u *underWay) enter(tenant sandbox.TenantID, key string) (alone bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.keys == nil {
		u.keys = map[onceKey]int{}
	}
	k := onceKey{tenant, key}
	u.keys[k]++
	return u.keys[k] == 1
}

// leave removes a request.
func (u *underWay) leave(tenant sandbox.TenantID, key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	k := onceKey{tenant, key}
	if u.keys[k]--; u.keys[k] == 0 {
		delete(u.keys, k)
	}
}

// requestHash identifies a request: it hashes the texts that name the operation, and
// the body.
func requestHash(body []byte, named ...string) sandbox.KeyHash {
	h := sha256.New()
	for _, part := range named {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	h.Write(body)
	return sandbox.KeyHash(h.Sum(nil))
}

// repeat replays the answer of the first request.
func repeat(w *writer, first sandbox.IdempotencyRecord) error {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set(rpc.Replayed, "true")
	w.WriteHeader(first.Status)
	_, err := w.Write(first.Answer)
	return err
}

// errPanicked is the failure of a request whose handler panicked.
var errPanicked = errors.New("the handler panicked")

// outcome is the result of a request with an Idempotency-Key.
type outcome struct {
	status  int
	answer  []byte
	unkept  bool // the answer must not be stored
	failure error
}

func (o outcome) succeeded() bool {
	return o.failure == nil && o.status >= 200 && o.status <= 299
}

// settle records the outcome of a request. An answer is stored together with the audit
// entry of the request, which is written when the answer begins. A repeat of a request that
// may have taken effect, and whose answer is not stored, runs again for the same resource,
// and so does one whose outcome could not be recorded. The client may be gone by now.
func (s *Server) settle(ctx context.Context, o sandbox.IdempotencyRecord, end outcome) {
	leave := func() { s.underWay.leave(o.Tenant, o.Key) }
	if end.succeeded() && !end.unkept && len(end.answer) <= maxAnswer {
		o.Status, o.Answer = end.status, end.answer
		auditingOf(ctx).finishes(func(ctx context.Context, e sandbox.AuditEntry, started []string) error {
			_, err := s.Store.FinishIdempotent(ctx, o, e, started...)
			return err
		}, leave)
		return
	}
	defer leave()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var err error
	switch {
	case end.succeeded(), end.failure != nil && unsure(end.failure):
		err = s.Store.ReleaseIdempotent(ctx, o)
	default:
		err = s.Store.DropIdempotent(ctx, o)
	}
	if err != nil {
		s.Log.Warn("releasing an idempotency key failed", telemetry.KeyError, err)
	}
}

// unsure reports whether a failed request may have taken effect, or may still do so.
func unsure(failure error) bool {
	switch sandbox.CodeOf(failure) {
	case sandbox.Internal, sandbox.Unavailable, sandbox.Timeout:
		return true
	}
	return errors.Is(failure, rest.ErrUnderWay)
}

// withoutSecret removes the secret from the answer to a Key's creation or rotation: it
// is shown once and never stored. A repeat shows everything else.
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

// withoutSecretField is withoutSecret for a message. A message without the field stays
// as it is.
func withoutSecretField(answer proto.Message) proto.Message {
	answer = proto.Clone(answer)
	if field := answer.ProtoReflect().Descriptor().Fields().ByName("secret"); field != nil {
		answer.ProtoReflect().Clear(field)
	}
	return answer
}

// heldWriter is a writer that holds an answer back until all of it is known, so that it is
// stored before it begins. It passes on one that exceeds maxAnswer, or is flushed, since
// that is not stored.
type heldWriter struct {
	*writer
	code   int // status; 0: nothing has been written
	body   bytes.Buffer
	passes bool
}

func (h *heldWriter) WriteHeader(code int) { h.code = cmp.Or(h.code, code) }

func (h *heldWriter) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	if !h.passes && h.body.Len()+len(p) <= maxAnswer {
		return h.body.Write(p)
	}
	if err := h.pass(); err != nil {
		return 0, err
	}
	return h.writer.Write(p)
}

// FlushError passes on the held part of the answer, and flushes it.
func (h *heldWriter) FlushError() error {
	h.WriteHeader(http.StatusOK)
	if err := h.pass(); err != nil {
		return err
	}
	return h.writer.FlushError()
}

// pass passes on the held part of the answer.
func (h *heldWriter) pass() error {
	if h.passes {
		return nil
	}
	h.passes = true
	if h.code != 0 {
		h.writer.WriteHeader(h.code)
	}
	if h.body.Len() == 0 {
		return h.unrecorded
	}
	_, err := h.writer.Write(h.body.Bytes())
	return err
}

// forgetOnces removes old answers until ctx ends.
func (s *Server) forgetOnces(ctx context.Context) {
	tick := time.NewTicker(idempotencySweep)
	defer tick.Stop()
	for {
		if _, err := s.Store.DeleteIdempotent(ctx, time.Now().Add(-idempotencyLife)); err != nil && ctx.Err() == nil {
			s.Log.Warn("removing old answers to idempotency keys failed", telemetry.KeyError, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
