package contexts

import (
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// Where lines are written in pieces they are passed on as lines; what stays the
// beginning of one comes all the same.
func TestStreamOfLines(t *testing.T) {
	for _, tt := range []struct {
		lines  bool
		writes []string
		want   []string
	}{
		{true, []string{"[1] \"a\"", "\n"}, []string{"[1] \"a\"\n"}},
		{true, []string{"? "}, []string{"? "}},
		{false, []string{"a\n"}, []string{"a\n"}},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var got []string
		s := newStream(r)
		s.lines = tt.lines
		came := make(chan bool, 10)
		s.to(func(data []byte) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(data))
			came <- true
		})
		go s.run()
		for _, text := range tt.writes {
			if _, err := io.WriteString(w, text); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-came: // while the pipe is still open
		case <-time.After(10 * time.Second):
			t.Fatalf("%q: nothing came", tt.writes)
		}
		w.Close()
		<-s.closed
		mu.Lock()
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q came as %q, want %q", tt.writes, got, tt.want)
		}
		mu.Unlock()
	}
}
