package mcp

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Output that is too long keeps its beginning and its end, and the note between them
// accounts for every byte.
func TestCapture(t *testing.T) {
	for _, tt := range []struct {
		name   string
		pieces []string
		left   int // bytes; 0: everything is shown
	}{
		{"none", nil, 0},
		{"short", []string{"a", "b\n"}, 0},
		{"as much as fits", []string{strings.Repeat("x", maxText)}, 0},
		{"one byte more", []string{strings.Repeat("x", maxText), "y"}, 1},
		{"in one piece", []string{strings.Repeat("x", 10*maxText)}, 9 * maxText},
		{"in small pieces", strings.SplitAfter(strings.Repeat("0123456\n", maxText), "\n"), 8*maxText - maxText},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c capture
			for _, p := range tt.pieces {
				c.write([]byte(p))
			}
			all := strings.Join(tt.pieces, "")
			got := c.String()
			if tt.left == 0 {
				if got != all {
					t.Errorf("%d bytes became %d", len(all), len(got))
				}
				return
			}
			want := all[:headText] + fmt.Sprintf("\n[... %d bytes of output are left out here ...]\n", tt.left) + all[len(all)-tailText:]
			if got != want {
				t.Errorf("%d bytes became %d, want %d", len(all), len(got), len(want))
			}
			if cap(c.tail) > 8*maxText {
				t.Errorf("it holds %d bytes", cap(c.tail))
			}
		})
	}
}

func TestCaptureKeepsCharactersWhole(t *testing.T) {
	var c capture
	c.write([]byte("x" + strings.Repeat("ä", 2*maxText)))
	if !utf8.ValidString(c.String()) || strings.Contains(c.String(), "\ufffd") {
		t.Error("a character was cut in two")
	}
}

func TestLastLine(t *testing.T) {
	for output, want := range map[string]string{
		"": "", "one\ntwo\n\n": "two", "one": "one", "a\n" + strings.Repeat("b", 300): strings.Repeat("b", 200),
	} {
		var c capture
		c.write([]byte(output))
		if got := c.lastLine(); got != want {
			t.Errorf("%q: %q, want %q", output, got, want)
		}
	}
}

func TestReadLines(t *testing.T) {
	long := strings.Repeat("l", maxLine+5)
	for _, tt := range []struct {
		name, file  string
		first, most int
		want, fails string
	}{
		{"whole", "a\nb\n", 1, 0, "     1\ta\n     2\tb", ""},
		{"without a line break at the end", "a\nb", 1, 0, "     1\ta\n     2\tb", ""},
		{"line breaks of Windows", "a\r\nb\r\n", 1, 0, "     1\ta\n     2\tb", ""},
		{"a part", "a\nb\nc\nd\n", 2, 2, "     2\tb\n     3\tc\n[there is more: continue with offset 4]", ""},
		{"up to the end", "a\nb\nc\n", 3, 1, "     3\tc", ""},
		{"beyond the end", "a\nb\n", 4, 0, "", "the file has 2 lines"},
		{"empty", "", 1, 0, "(the file is empty)", ""},
		{"a long line", long + "\nb\n", 1, 0, "     1\t" + long[:maxLine] + "\n[5 bytes of line 1 are left out]\n     2\tb", ""},
		{"not UTF-8", "a\xff\n", 1, 0, "     1\ta\ufffd", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readLines(bufio.NewReaderSize(strings.NewReader(tt.file), 64), tt.first, tt.most)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("error %v, want %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := got.Content[0].(*sdk.TextContent).Text; s != tt.want {
				t.Errorf("%q, want %q", s, tt.want)
			}
		})
	}
}

// A file of any length costs bounded memory and is shown in parts.
func TestReadLinesIsBounded(t *testing.T) {
	file := bytes.Repeat([]byte(strings.Repeat("x", 999)+"\n"), 1000)
	got, err := readLines(bufio.NewReader(bytes.NewReader(file)), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := got.Content[0].(*sdk.TextContent).Text
	if len(s) > maxFileText+2*maxLine || !strings.Contains(s, "continue with offset") {
		t.Errorf("%d bytes, ending in %q", len(s), s[len(s)-60:])
	}
}
