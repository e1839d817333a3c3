package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Headers of a delivery.
const (
	headerSignature = "Cloud-Sandbox-Signature" // t=SECONDS,v1=HEX
	headerEvent     = "Cloud-Sandbox-Event"     // the kind
	headerDelivery  = "Cloud-Sandbox-Delivery"  // the ID, the same for each try
)

// event is one that waits, or equal ones together.
type event struct {
	id          string
	what        sandbox.SecurityEvent // without its count
	count       int64
	first, last time.Time
}

// receiver is one URL with the events that wait for it.
type receiver struct {
	url    string
	secret []byte
	client *http.Client
	more   chan struct{} // has room for one: something waits

	mu      sync.Mutex
	queue   []*event                         // oldest first
	equal   map[sandbox.SecurityEvent]*event // those of queue, by what they tell
	waiting map[sandbox.EventKind]int        // how many of queue are of a kind
	missing int64                            // lost since the last that was told
}

// add has e wait, or counts it with an equal one that does; false when too many
// of its kind wait.
func (r *receiver) add(e sandbox.SecurityEvent, now time.Time) bool {
	count := max(e.Count, 1)
	e.Count = 0
	r.mu.Lock()
	defer r.mu.Unlock()
	if have := r.equal[e]; have != nil {
		have.count += count
		have.last = now
		return true
	}
	if r.waiting[e.Kind] >= maxWaiting {
		r.missing++
		return false
	}
	one := &event{id: "e" + strings.ToLower(rand.Text()[:20]), what: e, count: count, first: now, last: now}
	r.queue = append(r.queue, one)
	r.equal[e] = one
	r.waiting[e.Kind]++
	select {
	case r.more <- struct{}{}:
	default:
	}
	return true
}

// next takes the oldest event that has gathered its equals for long enough; nil:
// there is none before wait is over, or none at all when that is zero.
func (r *receiver) next(now time.Time, gather time.Duration) (e *event, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return nil, 0
	}
	e = r.queue[0]
	if left := gather - now.Sub(e.first); left > 0 {
		return nil, left
	}
	r.queue = r.queue[1:]
	delete(r.equal, e.what)
	r.waiting[e.what.Kind]--
	return e, 0
}

// back puts an event first that was not told.
func (r *receiver) back(e *event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append([]*event{e}, r.queue...)
	r.waiting[e.what.Kind]++
}

// sleep waits until something new waits, until ctx ends or, unless it is zero,
// for d.
func (r *receiver) sleep(ctx context.Context, d time.Duration) {
	var timeout <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-r.more:
	case <-timeout:
	case <-ctx.Done():
	}
}

// lose counts an event that nobody will hear of.
func (r *receiver) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing++
}

// name is where events go, for the log: what is behind the host may be a secret.
func (r *receiver) name() string {
	u, err := url.Parse(r.url)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// body is an event as receivers get it.
type body struct {
	ID        string            `json:"id"`
	Type      sandbox.EventKind `json:"type"`
	FirstAt   string            `json:"first_at"`
	LastAt    string            `json:"last_at"`
	Count     int64             `json:"count"`
	Tenant    string            `json:"tenant,omitempty"`
	User      string            `json:"user,omitempty"`
	Key       string            `json:"key_id,omitempty"`
	Remote    string            `json:"remote,omitempty"`
	Sandbox   string            `json:"sandbox_id,omitempty"`
	Operation string            `json:"operation,omitempty"`
	Reason    string            `json:"reason,omitempty"`
	Missing   int64             `json:"missing"`
}

// finalError is an answer that another try would not change.
type finalError struct{ status int }

func (e *finalError) Error() string { return fmt.Sprintf("it answers %d", e.status) }

func isFinal(err error) bool {
	var f *finalError
	return errors.As(err, &f)
}

// send makes one try. What it says of the URL is its host only.
func (r *receiver) send(ctx context.Context, e *event) error {
	r.mu.Lock()
	missing := r.missing
	r.mu.Unlock()
	text, err := json.Marshal(body{
		ID: e.id, Type: e.what.Kind, FirstAt: e.first.Format(time.RFC3339Nano), LastAt: e.last.Format(time.RFC3339Nano), Count: e.count,
		Tenant: string(e.what.Tenant), User: e.what.User, Key: e.what.Key, Remote: e.what.Remote, Sandbox: e.what.Sandbox,
		Operation: e.what.Operation, Reason: e.what.Reason, Missing: missing,
	})
	if err != nil {
		return err
	}
	if err := r.post(ctx, e, text); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing -= missing
	return nil
}

func (r *receiver) post(ctx context.Context, e *event, text []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(text))
	if err != nil {
		return withoutURL(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "cloud-sandbox")
	req.Header.Set(headerEvent, string(e.what.Kind))
	req.Header.Set(headerDelivery, e.id)
	req.Header.Set(headerSignature, Signature(r.secret, time.Now(), text))
	resp, err := r.client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	const enough = 64 << 10 // to use the connection again
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, enough))
	return judge(resp.StatusCode)
}

// judge is nil for an answer that says that the event was taken.
func judge(status int) error {
	switch {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500:
		return fmt.Errorf("it answers %d", status)
	}
	return &finalError{status}
}

// withoutURL takes the URL out of an error of net/http.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// Signature is what Cloud-Sandbox-Signature says of a body that is sent at a
// time: the time, and the HMAC-SHA-256 of the time, a dot and the body.
func Signature(secret []byte, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(t + "."))
	mac.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// newClient returns one that goes nowhere else than it is told, and does not wait
// for ever.
func newClient() *http.Client {
	return &http.Client{
		Timeout: sendTime,
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: sendTime, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
