package pieces

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// words ends a piece after a space, or when it has eight bytes.
func words(b []byte, atEnd bool) int {
	const most = 8
	for i := range min(len(b), most) {
		if b[i] == ' ' {
			return i + 1
		}
	}
	if len(b) >= most || atEnd {
		return min(len(b), most)
	}
	return 0
}

func TestEach(t *testing.T) {
	for text, want := range map[string][]string{
		"":                       nil,
		" ":                      {" "},
		"one two three":          {"one ", "two ", "three"},
		"immeasurable":           {"immeasur", "able"},
		"12345678":               {"12345678"},
		"12345678 ":              {"12345678", " "},
		strings.Repeat("a ", 90): slices.Repeat([]string{"a "}, 90),
	} {
		for name, r := range map[string]io.Reader{
			"at once": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text)),
			"with the end": iotest.DataErrReader(strings.NewReader(text)),
		} {
			var got []string
			err := Each(r, 8, words, func(b []byte) error { got = append(got, string(b)); return nil })
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%q %s: %q, %v, want %q", text, name, got, err, want)
			}
		}
	}
}

func TestEachFails(t *testing.T) {
	broken := errors.New("broken")
	if err := Each(io.MultiReader(strings.NewReader("one "), iotest.ErrReader(broken)), 8, words, func([]byte) error { return nil }); !errors.Is(err, broken) {
		t.Errorf("reading: %v", err)
	}
	calls := 0
	if err := Each(strings.NewReader("one two"), 8, words, func([]byte) error { calls++; return broken }); !errors.Is(err, broken) || calls != 1 {
		t.Errorf("using: %v after %d calls", err, calls)
	}
}
