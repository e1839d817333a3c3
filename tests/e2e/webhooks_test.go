package e2e

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// hook is an operator's receiver that fails its first delivery.
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
	// Denials before the first count after the start are not reported.
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

// diary is a receiver that answers 502 until it is opened, and keeps the events that it
// accepts.
type diary struct {
	t *testing.T

	mu    sync.Mutex
	open  bool
	tries int
	took  []map[string]any
}

func (d *diary) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tries++
	if !d.open {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	var e map[string]any
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil || e["id"] != r.Header.Get("Cloud-Sandbox-Delivery") {
		d.t.Errorf("%v comes: %v", e, err)
	}
	d.took = append(d.took, e)
}

func (d *diary) set(open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = open
}

// about returns the types and reasons of the received events, in the order in which they
// happened. Duplicates by ID count once.
func (d *diary) about(key, value string) (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen, about := map[any]bool{}, []map[string]any{}
	for _, e := range d.took {
		if e[key] == value && !seen[e["id"]] {
			about = append(about, e)
		}
		seen[e["id"]] = true
	}
	at := func(e map[string]any) time.Time {
		first, err := time.Parse(time.RFC3339Nano, e["first_at"].(string))
		if err != nil {
			d.t.Errorf("an event of %v", e["first_at"])
		}
		return first
	}
	slices.SortFunc(about, func(a, b map[string]any) int { // some events belong to one change
		return cmp.Or(at(a).Compare(at(b)), strings.Compare(a["type"].(string), b["type"].(string)))
	})
	for _, e := range about {
		text := e["type"].(string)
		if e["reason"] != nil {
			text += "/" + e["reason"].(string)
		}
		all = append(all, text)
	}
	return all
}

// Events of sandboxes, snapshots and builds reach a receiver that was down, also across
// kills of the server. By its ID, each event counts once.
func TestWebhooksOutliveTheServer(t *testing.T) {
	t.Parallel()
	d := &diary{t: t}
	receiver := httptest.NewServer(d)
	defer receiver.Close()
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_WEBHOOKS=" + receiver.URL, "CLOUD_SANDBOX_WEBHOOK_SECRET=" + strings.Repeat("s3", 20),
		"CLOUD_SANDBOX_WEBHOOK_EVENTS=sandbox.*,snapshot.*,template.*,auth.failed",
	}})
	c := s.Client(t, "kept")
	again := func() {
		t.Helper()
		rig.Kill(t, s.One(t, rig.ServerRole))
		<-s.Done()
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
	}
	stranger := &rig.Client{URL: s.URL, Token: "wrong", HTTP: http.DefaultClient}
	if status, _, err := stranger.Do("GET", "/api/v1/sessions", nil); err != nil || status != http.StatusUnauthorized {
		t.Fatalf("a wrong token: %d, %v", status, err)
	}
	id := c.Create(t, rig.Body{"network": "none", "name": "box"}).ID
	again()
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", rig.Body{}, nil)
	again()
	var forked struct {
		Forks []struct {
			ID string `json:"sandbox_id"`
		}
	}
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/resume", rig.Body{}, nil)
	var snap struct {
		ID string `json:"snapshot_id"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/snapshots", rig.Body{"name": "good"}, &snap)
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/fork", rig.Body{"count": 1}, &forked)
	c.Must(t, "DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil)
	fork := forked.Forks[0].ID
	b := upload(t, c, `{"template":"broken","source":"tar:"}`, []byte("no archive"))
	rig.Within(t, time.Minute, "a try", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.tries > 3 })
	if len(d.about("tenant", "dev:kept")) != 0 {
		t.Error("something came while it was away")
	}
	follow(t, c, b.ID)
	c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
	rig.Within(t, time.Minute, "the end of the sandbox", func() bool { return c.Get(t, id).State == "ended" })
	again()
	d.set(true)

	life := func(key, value, want string) {
		t.Helper()
		rig.Within(t, 3*time.Minute, "the last event of "+value, func() bool {
			return len(d.about(key, value)) >= len(strings.Fields(want))
		})
		if got := strings.Join(d.about(key, value), " "); got != want {
			t.Errorf("of %s came\n%s, want\n%s", value, got, want)
		}
	}
	life("sandbox_id", id, "sandbox.created sandbox.paused sandbox.resumed snapshot.created snapshot.deleted sandbox.ended/released")
	life("snapshot_id", snap.ID, "snapshot.created snapshot.deleted")
	life("sandbox_id", fork, "sandbox.created sandbox.forked")
	life("parent_id", id, "sandbox.created sandbox.forked")
	life("build_id", b.ID, "template.failed/invalid")
	life("operation", "listSessions", "auth.failed/credential")
	rig.Within(t, time.Minute, "nothing waits", func() bool { return s.Metric("cloud_sandbox_webhook_events_waiting") == 0 })
}
