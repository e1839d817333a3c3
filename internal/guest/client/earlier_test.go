package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
)

// A Guest is asked once which protocol it knows, and by a request of its own only if the
// first one has a body that can be sent once. The token goes to envd's port alone.
func TestProtocolIsAskedOnce(t *testing.T) {
	stat, err := proto.Marshal(&guestv1.StatResponse{Entry: &guestv1.FileEntry{Name: "f", Path: "/f"}})
	if err != nil {
		t.Fatal(err)
	}
	const files, service = "/files", "/cloudsandbox.guest.v1.FilesService/Stat"
	for _, tt := range []struct {
		name    string
		earlier bool
		write   bool // the first call is a write
		want    []string
	}{
		{"a read first", false, false, []string{"control " + service, "control PUT " + files, "control " + service}},
		{"a write first", false, true, []string{"control GET " + files, "control PUT " + files, "control " + service, "control PUT " + files}},
		{"a read first, earlier", true, false, []string{
			"control " + service, "envd /filesystem.Filesystem/Stat", "envd POST " + files, "envd /filesystem.Filesystem/Stat", "envd /filesystem.Filesystem/Stat",
		}},
		{"a write first, earlier", true, true, []string{
			"control GET " + files, "envd POST " + files, "envd /filesystem.Filesystem/Stat", "envd /filesystem.Filesystem/Stat", "envd POST " + files, "envd /filesystem.Filesystem/Stat",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var mu sync.Mutex
			var got []string
			answer := func(port string, token string, absent bool) *httptest.Server {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					what := port + " " + r.URL.Path
					if r.URL.Path == files {
						what = port + " " + r.Method + " " + files
					}
					mu.Lock()
					got = append(got, what)
					mu.Unlock()
					switch {
					case r.Header.Get("X-Access-Token") != token:
						t.Errorf("%s has the token %q", what, r.Header.Get("X-Access-Token"))
					case absent:
						http.NotFound(w, r)
					case r.URL.Path == files && r.Method == http.MethodGet: // without a path
						w.Header().Set("Content-Type", "application/json")
						w.WriteHeader(http.StatusBadRequest)
					case r.URL.Path == files && string(body) != "text":
						t.Errorf("%s has the body %q", what, body)
					case r.URL.Path == files && port == "control":
						w.Header().Set("Content-Type", "application/proto")
						_, _ = w.Write(stat[2:]) // the entry
					case r.URL.Path == files:
						w.Header().Set("Content-Type", "application/json")
						_, _ = io.WriteString(w, "[]")
					default:
						w.Header().Set("Content-Type", "application/proto")
						_, _ = w.Write(stat)
					}
				}))
				t.Cleanup(s.Close)
				return s
			}
			servers := map[uint16]*httptest.Server{
				sandbox.GuestPort: answer("control", "", tt.earlier), sandbox.EnvdPort: answer("envd", "the token", false),
			}
			c := New(func(ctx context.Context, port uint16) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", servers[port].Listener.Addr().String())
			}, WithToken("the token"))
			t.Cleanup(c.Close)
			read := func() {
				if e, err := c.Stat(t.Context(), "/f"); err != nil || e.Path != "/f" {
					t.Errorf("Stat = %+v, %v", e, err)
				}
			}
			write := func() {
				if e, err := c.WriteFile(t.Context(), "/f", struct{ io.Reader }{strings.NewReader("text")}, 4); err != nil || e.Path != "/f" {
					t.Errorf("WriteFile = %+v, %v", e, err)
				}
			}
			calls := []func(){read, write, read}
			if tt.write {
				calls = []func(){write, read, write}
			}
			for _, call := range calls {
				call()
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("the Guest got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// closing is a body that knows whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// A request whose probe fails is closed, as http.RoundTripper demands.
func TestBodyIsClosedWhenTheProbeFails(t *testing.T) {
	body := &closing{Reader: strings.NewReader("text")}
	calls := &fileCalls{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no guest")
	}}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url(sandbox.GuestPort)+"/files", body)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := calls.RoundTrip(r); err == nil {
		resp.Body.Close()
		t.Error("a request without a guest was answered")
	}
	if !body.closed {
		t.Error("the body is open")
	}
}
