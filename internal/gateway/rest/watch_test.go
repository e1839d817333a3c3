package rest_test

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
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	path := "/api/v1/files/changes?path=.&sandbox_id=" + id
	var got struct {
		Cursor  string
		Reset   bool
		Changes []struct{ Type, Path, Cursor string }
	}
	f.Do("GET", path, "").Into(t, 200, &got)
	if got.Cursor != "c-0" || got.Reset || len(got.Changes) != 0 {
		t.Errorf("at first %+v", got)
	}
	f.Do("PUT", "/api/v1/files?path=a&sandbox_id="+id, "x")
	f.Do("GET", path+"&since=c-0", "").Into(t, 200, &got)
	if s := fmt.Sprint(got); s != "{c-1 false [{created /workspace/a c-1}]}" {
		t.Errorf("then %s", s)
	}
}

func TestWatchEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	go func() {
		f.Guest.Events <- gatewaytest.CreatedEvent
		f.Guest.Events <- &execution.WatchEvent{Position: &execution.WatchPosition{Cursor: "d-0", Reset: true}}
		f.Guest.Events <- nil
	}()
	a := f.Do("GET", "/api/v1/files/watch?path=.&since=old&sandbox_id="+id, "")
	want := "event: start\ndata: {\"path\":\"/workspace\",\"cursor\":\"c-0\",\"reset\":true}\n\n" +
		"id: c-1\nevent: change\ndata: {\"type\":\"created\",\"path\":\"/workspace/a\",\"cursor\":\"c-1\"}\n\n" +
		"id: d-0\nevent: reset\ndata: {\"path\":\"/workspace\",\"cursor\":\"d-0\",\"reset\":true}\n\n" +
		"event: error\ndata: {\"error\":{\"code\":\"not_found\",\"message\":\"it is not there any more\"}}\n\n"
	if a.Status != 200 || string(a.Body) != want {
		t.Errorf("%d\n%s\nwant\n%s", a.Status, a.Body, want)
	}
	if a := f.Do("HEAD", "/api/v1/files/watch?path=.&sandbox_id="+id, ""); a.Status != 200 || len(a.Body) != 0 {
		t.Errorf("HEAD: %d %s", a.Status, a.Body)
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
		HTTPClient: f.Client, HTTPHeader: http.Header{"Authorization": {"Bearer " + f.Token}},
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
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	query := "&sandbox_id=" + f.Acquire()
	conn := f.watch(ctx, t, f.URL, query)
	if w := next(ctx, t, conn); w.Event != "start" || w.Path != "/workspace" || w.Cursor != "c-0" {
		t.Errorf("first %+v", w)
	}
	f.Guest.Events <- gatewaytest.CreatedEvent
	if w := next(ctx, t, conn); w.Event != "change" || w.Type != "created" || w.Cursor != "c-1" {
		t.Errorf("then %+v", w)
	}
	f.Guest.Events <- nil
	if w := next(ctx, t, conn); w.Event != "error" || w.Error == nil || w.Error.Code != "not_found" {
		t.Errorf("the end %+v", w)
	}
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusInternalError {
		t.Errorf("after the end: %v", err)
	}
	// A client that leaves, or sends an unexpected message, ends its watch.
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
		conn := f.watch(ctx, t, f.URL, query)
		next(ctx, t, conn)
		if err := leave(conn); err != nil {
			t.Error(err)
		}
	}
	gatewaytest.WaitFor(t, "all are logged", func() bool { return strings.Count(f.Logs.String(), `"route":"/api/v1/files/watch"`) == 4 })
	_, resp, err := websocket.Dial(ctx, f.URL+"/api/v1/files/watch?path=/none"+query, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + f.Token}},
	})
	if err == nil || resp == nil || resp.StatusCode != 404 {
		t.Errorf("a directory that is not there: %v %v", resp, err)
	}
}

// A WebSocket, which the HTTP server knows nothing of any more, does not outlast
// the drain.
func TestDrainEndsSockets(t *testing.T) {
	f := newFixture(t, func(c *gateway.Config) { c.Drain = 50 * time.Millisecond })
	id := f.Acquire()
	ignore := goleak.IgnoreCurrent()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	addr, stop := f.Serve()
	f.Client = &http.Client{Transport: &http.Transport{}}
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
	f.Client.CloseIdleConnections()
	gatewaytest.LeavesNothing(t, ignore)
}
