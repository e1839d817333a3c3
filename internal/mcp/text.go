package mcp

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxText is the most bytes of output that one result shows.
const maxText = 32 << 10

// capture keeps the beginning and the end of output that is too long for a result.
// Its memory is bounded accordingly.
type capture struct {
	head, tail []byte
	all        int64 // bytes that were written
}

// Bytes kept of the beginning and of the end: errors are mostly at the end.
const (
	headText = maxText / 4
	tailText = maxText - headText
)

func (c *capture) write(p []byte) {
	c.all += int64(len(p))
	if n := min(len(p), headText-len(c.head)); n > 0 {
		c.head = append(c.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > tailText {
		p = p[len(p)-tailText:]
	}
	// The tail grows to twice its size before it is cut, so that small writes are cheap.
	if c.tail = append(c.tail, p...); len(c.tail) > 2*tailText {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-tailText:]...)
	}
}

// String returns the output, with a note where it was cut.
func (c *capture) String() string {
	tail := c.tail[max(0, len(c.tail)-tailText):]
	left := c.all - int64(len(c.head)+len(tail))
	if left == 0 {
		return strings.ToValidUTF8(string(c.head)+string(tail), "\ufffd")
	}
	return strings.ToValidUTF8(string(c.head), "") +
		fmt.Sprintf("\n[... %d bytes of output are left out here ...]\n", left) +
		strings.ToValidUTF8(string(tail), "")
}

// lastLine returns the last line of the output that is not empty.
func (c *capture) lastLine() string {
	const most = 200
	end := c.tail
	if len(end) == 0 {
		end = c.head
	}
	line := strings.TrimSpace(strings.ToValidUTF8(string(end[max(0, len(end)-4*most):]), ""))
	line = line[strings.LastIndexByte(line, '\n')+1:]
	return clip(line, most)
}

// shorten cuts s to at most most bytes, with a note.
func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	kept := clip(s, most)
	return kept + fmt.Sprintf("\n[... %d bytes are left out: ask for less ...]", len(s)-len(kept))
}

// clip returns the beginning of s: whole characters of at most most bytes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
