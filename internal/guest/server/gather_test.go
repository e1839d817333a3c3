package server_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// flushes counts those that reach the connection.
type flushes struct {
	http.ResponseWriter
	n int
}

func (f *flushes) Flush() {
	f.n++
	f.ResponseWriter.(http.Flusher).Flush()
}

func TestGatheredJoinsFlushes(t *testing.T) {
	w := &flushes{ResponseWriter: httptest.NewRecorder()}
	server.Gathered(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 {
			io.WriteString(w, "a")
			w.(http.Flusher).Flush()
		}
	})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.n > 500 {
		t.Errorf("%d of 1000 flushes were not joined", w.n)
	}
}

// A message leaves although nothing follows it.
func TestGatheredFlushesSoon(t *testing.T) {
	proceed := make(chan struct{})
	s := httptest.NewServer(server.Gathered(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			io.WriteString(w, "line\n")
			w.(http.Flusher).Flush()
			select {
			case <-proceed:
			case <-r.Context().Done():
				return
			}
		}
		io.WriteString(w, "end")
	})))
	defer s.Close()
	r, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewReader(r.Body)
	for range 3 {
		if line, err := lines.ReadString('\n'); err != nil || line != "line\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		proceed <- struct{}{}
	}
	rest := new(strings.Builder)
	if _, err := io.Copy(rest, lines); err != nil || rest.String() != "end" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}
