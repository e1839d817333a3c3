package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

// What a Guest says of logs is bounded, and one that knows none has none.
func TestLogs(t *testing.T) {
	long := strings.Repeat("m", 2*guest.MaxLog)
	many := "[" + strings.TrimSuffix(strings.Repeat(`{"at":1,"level":"x","message":"m"},`, guest.MaxLogs+5), ",") + "]"
	for _, tt := range []struct {
		name, body string
		status     int
		count      int
		bad        bool
	}{
		{"two", `[{"at":2,"level":"error","message":"b"},{"at":1,"level":"loud","message":"a","fields":{"k":"v"}}]`, 200, 2, false},
		{"none known", "", 404, 0, false},
		{"too many", many, 200, guest.MaxLogs, false},
		{"many of nothing", `[{}` + strings.Repeat(",{}", maxLogs/4) + `]`, 200, guest.MaxLogs, false},
		{"cut off", `[{"message":"a"}`, 200, 0, true},
		{"too long", `[{"message":"` + long + `"}]`, 200, 1, false},
		{"no list", `{}`, 200, 0, true},
		{"an error", `[]`, 500, 0, true},
		{"without an end", `[` + strings.Repeat(" ", maxLogs), 200, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != guest.LogsPath {
					t.Errorf("asked for %s", r.URL.Path)
				}
				w.WriteHeader(tt.status)
				_, _ = fmt.Fprint(w, tt.body)
			}))
			defer srv.Close()
			c := New(func(ctx context.Context, _ uint16) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
			})
			defer c.Close()
			all, err := c.Logs(t.Context())
			if (err != nil) != tt.bad || len(all) != tt.count {
				t.Errorf("%d, %v", len(all), err)
			}
			for _, e := range all {
				if len(e.Message) > guest.MaxLog || e.Level != "info" && e.Level != "error" {
					t.Errorf("%.100v", e)
				}
			}
			if tt.name == "two" && (all[0].Message != "a" || all[0].Fields["k"] != "v" || all[1].Level != "error") {
				t.Errorf("%+v", all)
			}
		})
	}
}
