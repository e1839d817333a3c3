package frames

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// Files of any length survive framing, and bytes after them stay unread. A truncated file
// fails.
func TestFrames(t *testing.T) {
	for _, size := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 3 * maxFrame} {
		sent := bytes.Repeat([]byte("x"), size)
		body := io.MultiReader(Encode(iotest.HalfReader(bytes.NewReader(sent))), strings.NewReader("archive"))
		got, err := io.ReadAll(Decode(body))
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came as %d, %v", size, len(got), err)
		}
		if rest, err := io.ReadAll(body); err != nil || string(rest) != "archive" {
			t.Errorf("after %d bytes follows %q, %v", size, rest, err)
		}
	}
	for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF} {
		body := Encode(io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)))
		if _, err := io.ReadAll(body); !errors.Is(err, broken) {
			t.Errorf("files that break off with %v: %v", broken, err)
		}
	}
	if _, err := io.ReadAll(Decode(strings.NewReader("\x00\x00\x00\x09abc"))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame that breaks off: %v", err)
	}
}
