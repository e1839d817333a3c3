package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Headers of a delivery.
const (
	headerSignature = "Cloud-Sandbox-Signature" // t=SECONDS,v1=HEX
	headerEvent     = "Cloud-Sandbox-Event"     // the kind
	headerDelivery  = "Cloud-Sandbox-Delivery"  // the ID, the same for each try
)

// receiver is one URL.
type receiver struct {
	id     string // as a Webhook of the Store
	url    string
	secret []byte
	client *http.Client
	more   chan struct{} // has room for one: an Event may be due
}

// idOf returns the ID of the Webhook with a URL, so that the Store does not need the
// URL.
func idOf(url string) string {
	sum := sha256.Sum256([]byte(url))
	return "w" + hex.EncodeToString(sum[:])[:20]
}

// name returns the scheme and host of the receiver's URL, for the log: the rest of
// the URL may be a secret.
func (r *receiver) name() string {
	u, err := url.Parse(r.url)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// body is the JSON of an event for receivers.
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
	Name      string            `json:"name,omitempty"`
	Template  string            `json:"template,omitempty"`
	Snapshot  string            `json:"snapshot_id,omitempty"`
	Parent    string            `json:"parent_id,omitempty"`
	Build     string            `json:"build_id,omitempty"`
	Version   int64             `json:"version,omitempty"`
	Operation string            `json:"operation,omitempty"`
	Reason    string            `json:"reason,omitempty"`
	Missing   int64             `json:"missing"`
}

func bodyOf(d sandbox.Delivery) body {
	e := d.Event
	return body{
		ID: e.ID, Type: e.Kind, FirstAt: e.At.Format(time.RFC3339Nano), LastAt: d.Last.Format(time.RFC3339Nano), Count: e.Count,
		Tenant: string(e.Tenant), User: e.User, Key: e.Key, Remote: e.Remote, Sandbox: e.Sandbox, Name: e.Name, Template: e.Template,
		Snapshot: e.Snapshot, Parent: e.Parent, Build: e.Build, Version: e.Version, Operation: e.Operation, Reason: e.Reason, Missing: d.Missing,
	}
}

// finalError is an answer after which a retry is useless.
type finalError struct{ status int }

func (e *finalError) Error() string { return fmt.Sprintf("it answers %d", e.status) }

func isFinal(err error) bool {
	var f *finalError
	return errors.As(err, &f)
}

// send makes one try. Its errors name only the host of the URL.
func (r *receiver) send(ctx context.Context, d sandbox.Delivery) error {
	text, err := json.Marshal(bodyOf(d))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(text))
	if err != nil {
		return withoutURL(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "cloud-sandbox")
	req.Header.Set(headerEvent, string(d.Event.Kind))
	req.Header.Set(headerDelivery, d.Event.ID)
	req.Header.Set(headerSignature, Signature(r.secret, time.Now(), text))
	resp, err := r.client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	const enough = 64 << 10 // to reuse the connection
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, enough))
	return judge(resp.StatusCode)
}

// judge returns nil for a status that means acceptance.
func judge(status int) error {
	switch {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500:
		return fmt.Errorf("it answers %d", status)
	}
	return &finalError{status}
}

// withoutURL removes the URL from an error of net/http.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// Signature returns the value of Cloud-Sandbox-Signature for a body sent at a time:
// the time, and the HMAC-SHA-256 of the time, a dot and the body.
func Signature(secret []byte, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(t + "."))
	mac.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// newClient returns a client that follows no redirects and has a timeout.
func newClient() *http.Client {
	return &http.Client{
		Timeout: sendTime,
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			MaxIdleConnsPerHost: atOnce, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: sendTime, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
