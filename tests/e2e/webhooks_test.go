package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// hook is an operator's receiver, which fails at first.
type hook struct {
	secret string

	mu     sync.Mutex
	tries  int
	events map[string]map[string]any // the latest of each type
	wrong  []string
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text, err := io.ReadAll(r.Body)
	stamp, signature, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Cloud-Sandbox-Signature"), "t="), ",v1=")
	mac := hmac.New(sha256.New, []byte(h.secret))
	mac.Write([]byte(stamp + "." + string(text)))
	var e map[string]any
	if err != nil || json.Unmarshal(text, &e) != nil || signature != hex.EncodeToString(mac.Sum(nil)) {
		h.wrong = append(h.wrong, string(text))
	}
	if h.tries++; h.tries == 1 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if kind, ok := e["type"].(string); ok {
		h.events[kind] = e
	}
}

// event is the latest event of a type; nil: none has come.
func (h *hook) event(kind string) map[string]any {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events[kind]
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	h := &hook{secret: strings.Repeat("s3", 20), events: map[string]map[string]any{}}
	receiver := httptest.NewServer(h)
	defer receiver.Close()
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_WEBHOOKS=" + receiver.URL + "/hook", "CLOUD_SANDBOX_WEBHOOK_SECRET=" + h.secret, "CLOUD_SANDBOX_QUOTA=sandboxes=1",
	}})
	c := s.Client(t, "hooked")
	const soon = time.Minute
	told := func(kind string) map[string]any {
		t.Helper()
		rig.Within(t, soon, "the event "+kind, func() bool { return h.event(kind) != nil })
		return h.event(kind)
	}

	stranger := &rig.Client{URL: s.URL, Token: "wrong", HTTP: http.DefaultClient}
	if status, _, err := stranger.Do("GET", "/api/v1/sessions", nil); err != nil || status != http.StatusUnauthorized {
		t.Fatalf("a wrong token: %d, %v", status, err)
	}
	if e := told("auth.failed"); e["reason"] != "credential" || e["operation"] != "listSessions" || e["remote"] == "" || e["tenant"] != nil {
		t.Errorf("%v", e)
	}
	id := c.Create(t, rig.Body{"network": "none"}).ID
	if status, _, err := c.Do("POST", "/api/v1/sessions", rig.Body{}); err != nil || status != http.StatusTooManyRequests {
		t.Fatalf("beyond the quota: %d, %v", status, err)
	}
	if e := told("quota.hit"); e["tenant"] != "dev:hooked" || e["operation"] != "createSession" || e["user"] != "hooked" {
		t.Errorf("%v", e)
	}
	c.Run(t, id, "python", "kept = []\nwhile True: kept.append(bytearray(1 << 20))", rig.Body{"timeout_seconds": 60})
	if e := told("limit.kill"); e["sandbox_id"] != id || e["reason"] != "oom" {
		t.Errorf("%v", e)
	}
	// What was refused before the first count after the start is not told.
	rig.Within(t, soon, "the event egress.denied", func() bool {
		c.Run(t, id, "bash", "exec 3<>/dev/tcp/1.1.1.1/80; true", rig.Body{"timeout_seconds": 20})
		return h.event("egress.denied") != nil
	})
	if e := told("egress.denied"); e["sandbox_id"] != id || e["tenant"] != "dev:hooked" || e["count"].(float64) < 1 {
		t.Errorf("%v", e)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.wrong) > 0 {
		t.Errorf("without a signature that holds came %q", h.wrong)
	}
}
