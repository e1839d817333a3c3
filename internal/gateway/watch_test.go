package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

func TestChanges(t *testing.T) {
	f := newFixture(t)
	path := "/api/v1/files/changes?path=.&sandbox_id=" + f.acquire()
	var got struct {
		Cursor  string
		Reset   bool
		Changes []struct{ Type, Path, Cursor string }
	}
	f.do("GET", path, "").into(t, 200, &got)
	if got.Cursor != "c-0" || got.Reset || len(got.Changes) != 0 {
		t.Errorf("at first %+v", got)
	}
	f.do("GET", path+"&since=c-0", "").into(t, 200, &got)
	if s := fmt.Sprint(got); s != "{c-1 false [{created /workspace/a c-1}]}" {
		t.Errorf("then %s", s)
	}
}

func TestWatchEvents(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	go func() {
		f.guest.changes <- created
		f.guest.changes <- &execution.WatchEvent{Position: &execution.WatchPosition{Cursor: "d-0", Reset: true}}
		f.guest.changes <- nil
	}()
	a := f.do("GET", "/api/v1/files/watch?path=.&since=old&sandbox_id="+id, "")
	want := "event: start\ndata: {\"path\":\"/workspace\",\"cursor\":\"c-0\",\"reset\":true}\n\n" +
		"id: c-1\nevent: change\ndata: {\"type\":\"created\",\"path\":\"/workspace/a\",\"cursor\":\"c-1\"}\n\n" +
		"id: d-0\nevent: reset\ndata: {\"path\":\"/workspace\",\"cursor\":\"d-0\",\"reset\":true}\n\n" +
		"event: error\ndata: {\"error\":{\"code\":\"not_found\",\"message\":\"it is not there any more\"}}\n\n"
	if a.status != 200 || string(a.body) != want {
		t.Errorf("%d\n%s\nwant\n%s", a.status, a.body, want)
	}
	if a := f.do("HEAD", "/api/v1/files/watch?path=.&sandbox_id="+id, ""); a.status != 200 || len(a.body) != 0 {
		t.Errorf("HEAD: %d %s", a.status, a.body)
	}
}

type watched struct {
	Event, Type, Path, Cursor string
	Reset                     bool
	Error                     *struct{ Code string }
}

// watch opens a WebSocket at a server's address.
func (f *fixture) watch(ctx context.Context, t *testing.T, url, query string) *websocket.Conn {
	t.Helper()
	conn, resp, err := websocket.Dial(ctx, url+"/api/v1/files/watch?path=."+query, &websocket.DialOptions{
		HTTPClient: f.client, HTTPHeader: http.Header{"Authorization": {"Bearer " + f.token}},
	})
	if err != nil {
		t.Fatalf("%v %v", resp, err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return conn
}

func next(ctx context.Context, t *testing.T, conn *websocket.Conn) (w watched) {
	t.Helper()
	if err := wsjson.Read(ctx, conn, &w); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWatchSocket(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	query := "&sandbox_id=" + f.acquire()
	conn := f.watch(ctx, t, f.url, query)
	if w := next(ctx, t, conn); w.Event != "start" || w.Path != "/workspace" || w.Cursor != "c-0" {
		t.Errorf("first %+v", w)
	}
	f.guest.changes <- created
	if w := next(ctx, t, conn); w.Event != "change" || w.Type != "created" || w.Cursor != "c-1" {
		t.Errorf("then %+v", w)
	}
	f.guest.changes <- nil
	if w := next(ctx, t, conn); w.Event != "error" || w.Error == nil || w.Error.Code != "not_found" {
		t.Errorf("the end %+v", w)
	}
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusInternalError {
		t.Errorf("after the end: %v", err)
	}
	// One that leaves, and one that says what nobody asked for, end their watch.
	for _, leave := range []func(*websocket.Conn) error{
		func(c *websocket.Conn) error { return c.Close(websocket.StatusNormalClosure, "") },
		func(c *websocket.Conn) error { return c.CloseNow() },
		func(c *websocket.Conn) error {
			if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
				return err
			}
			if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
				return err
			}
			return nil
		},
	} {
		conn := f.watch(ctx, t, f.url, query)
		next(ctx, t, conn)
		if err := leave(conn); err != nil {
			t.Error(err)
		}
	}
	waitFor(t, "all are logged", func() bool { return strings.Count(f.logs.String(), `"route":"/api/v1/files/watch"`) == 4 })
	_, resp, err := websocket.Dial(ctx, f.url+"/api/v1/files/watch?path=/none"+query, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + f.token}},
	})
	if err == nil || resp == nil || resp.StatusCode != 404 {
		t.Errorf("a directory that is not there: %v %v", resp, err)
	}
}

// A WebSocket, which the HTTP server knows nothing of any more, does not outlast
// the drain.
func TestDrainEndsSockets(t *testing.T) {
	f := newFixture(t, func(c *gateway.Config) { c.Drain = 50 * time.Millisecond })
	id := f.acquire()
	ignore := goleak.IgnoreCurrent()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	addr, stop := f.serve()
	f.client = &http.Client{Transport: &http.Transport{}}
	conn := f.watch(ctx, t, "http://"+addr.String(), "&sandbox_id="+id)
	next(ctx, t, conn)
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	if w := next(ctx, t, conn); w.Event != "error" || w.Error == nil || w.Error.Code != "unavailable" {
		t.Errorf("the end %+v", w)
	}
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("after the end: %v", err)
	}
	<-stopped
	f.client.CloseIdleConnections()
	leavesNothing(t, ignore)
}
