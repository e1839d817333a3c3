package mcp

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A stream that is silent sends comments, so that proxies keep it; one that is not
// silent, or is no stream, does not. Nothing is written after its end.
func TestStreamIsKeptAlive(t *testing.T) {
	for _, tt := range []struct {
		name, kind string
		speaks     bool
		want       int // comments in a minute
	}{
		{"silent", "text/event-stream", false, 4},
		{"not silent", "text/event-stream", true, 0},
		{"no stream", "application/json", false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := httptest.NewRecorder()
				s := newStream(w)
				s.Header().Set("Content-Type", tt.kind)
				s.WriteHeader(http.StatusOK)
				s.keepAlive()
				for range 60 {
					if tt.speaks {
						_, _ = s.Write([]byte("data: x\n\n"))
					}
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if n := strings.Count(w.Body.String(), ": keep-alive\n\n"); n != tt.want {
					t.Errorf("%d comments in a minute, want %d", n, tt.want)
				}
				s.end()
				before := w.Body.Len()
				s.keepAlive()
				time.Sleep(time.Hour)
				synctest.Wait()
				if w.Body.Len() != before {
					t.Error("something was written after the end")
				}
			})
		})
	}
}
