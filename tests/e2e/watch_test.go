package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// change is one event of a watch.
type change struct{ Event, Type, Path, Cursor string }

// heard reads events until all wanted events have come, and returns the last.
func heard(t *testing.T, next func() (change, error), want ...string) change {
	t.Helper()
	for {
		c, err := next()
		if err != nil {
			t.Fatalf("%v: %q are missing", err, want)
		}
		want = slices.DeleteFunc(want, func(w string) bool { return w == c.Event || w == c.Type+" "+c.Path })
		if len(want) == 0 {
			return c
		}
	}
}

func TestWatchFiles(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "watch")
	id := c.Acquire(t)
	c.Sh(t, id, "mkdir -p d/sub; sudo install -d -m 700 /root/closed")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	path := rig.Files("/watch", id, "d") + "&recursive=true"
	auth := http.Header{"Authorization": {"Bearer " + c.Token}}
	conn, _, err := websocket.Dial(ctx, c.URL+path, &websocket.DialOptions{HTTPHeader: auth})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	message := func() (m change, err error) { return m, wsjson.Read(ctx, conn, &m) }
	start := heard(t, message, "start")
	c.Sh(t, id, "echo 1 >d/sub/f; mkdir -p d/new/deep; echo 1 >d/new/deep/g; mv d/sub/f d/h; chmod 600 d/h; rm d/new/deep/g")
	heard(t, message, "created /workspace/d/sub/f", "created /workspace/d/new", "created /workspace/d/new/deep",
		"renamed /workspace/d/sub/f", "created /workspace/d/h", "attributes /workspace/d/h")

	// Replay from the start cursor, as server-sent events.
	req, _ := http.NewRequestWithContext(ctx, "GET", c.URL+path+"&since="+start.Cursor, nil)
	req.Header = auth
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	event := func() (m change, err error) {
		for lines.Scan() {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				m.Event = name
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return m, json.Unmarshal([]byte(data), &m)
			}
		}
		return m, lines.Err()
	}
	heard(t, event, "start", "created /workspace/d/sub/f", "renamed /workspace/d/sub/f", "attributes /workspace/d/h")
	c.Sh(t, id, "rm -r d")
	heard(t, event, "removed /workspace/d/h", "error")
	heard(t, message, "error")

	for path, want := range map[string]int{"none": 404, "/root/closed": 403, "/etc/hostname": 400} {
		for _, call := range []string{"/watch", "/changes"} {
			if code, raw, _ := c.Do("GET", rig.Files(call, id, path), nil); code != want {
				t.Errorf("%s of %s answers %d %.200s", call, path, code, raw)
			}
		}
	}
}

func TestChangesSince(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "changes")
	id := c.Acquire(t)
	var got struct {
		Cursor  string
		Reset   bool
		Changes []change
	}
	path := rig.Files("/changes", id, ".") + "&recursive=true"
	c.Must(t, "GET", path, nil, &got)
	first := got.Cursor
	c.Must(t, "PUT", rig.Files("", id, "x/y/z"), []byte("1"), nil)
	c.Sh(t, id, "for i in $(seq 200); do echo $i >x/$i; done")
	var told []string
	for end := time.Now().Add(30 * time.Second); !slices.Contains(told, "created /workspace/x/200") || !slices.Contains(told, "created /workspace/x/y/z"); {
		c.Must(t, "GET", path+"&since="+got.Cursor, nil, &got)
		for _, e := range got.Changes {
			told = append(told, e.Type+" "+e.Path)
		}
		if got.Reset || time.Now().After(end) {
			t.Fatalf("reset %v, told %q", got.Reset, told)
		}
	}
	c.Must(t, "GET", path+"&since="+first, nil, &got)
	if got.Reset || len(got.Changes) < 200 {
		t.Errorf("from the beginning: reset %v, %d changes", got.Reset, len(got.Changes))
	}
	c.Must(t, "GET", path+"&since=forgotten-1", nil, &got)
	if !got.Reset || len(got.Changes) != 0 {
		t.Errorf("an unknown cursor: %+v", got)
	}
}
