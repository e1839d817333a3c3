package traffic_test

import (
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
)

func message(text string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text)))) + text
}

// A stream of Connect that breaks off inside ends with a message that says so, where it
// breaks between two; whatever else breaks off does so for the client too.
func TestBrokenStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var kind, sent string
	w.listen(3000, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", kind)
		for i := range len(sent) { // in the smallest pieces
			_, _ = rw.Write([]byte(sent[i : i+1]))
			_ = http.NewResponseController(rw).Flush()
		}
		panic(http.ErrAbortHandler)
	}))
	end := `{"error":{"code":"unavailable","message":"the connection to sandbox ` + w.id + ` ended before the stream completed"}}`
	for _, tt := range []struct {
		name, kind, sent string
		ends             bool
	}{
		{"between messages", "application/connect+json", message(`{"a":1}`) + message(""), true},
		{"within one", "application/connect+json", message("a") + message("b")[:5], false},
		{"within a head", "application/connect+proto", message("a")[:3], false},
		{"plain text", "text/plain", "abc", false},
	} {
		kind, sent = tt.kind, tt.sent
		resp, err := http.DefaultClient.Do(w.request("GET", "/", 3000, nil))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var got strings.Builder
		_, err = io.Copy(&got, resp.Body)
		resp.Body.Close()
		want := tt.sent
		if tt.ends {
			want += "\x02" + message(end)[1:]
		}
		if got.String() != want || (err == nil) != tt.ends {
			t.Errorf("%s: %q, %v; want %q", tt.name, got.String(), err, want)
		}
	}
}
