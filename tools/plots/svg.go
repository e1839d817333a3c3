package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"strings"
)

// drawing is an SVG under way. All its texts are of one font, and as wide as they
// are taken for, whatever font the reader has.
type drawing struct {
	bytes.Buffer
	width, height float64
}

// letter is the width of a letter in relation to the size of its font.
const letter = 0.6

func newDrawing(width, height float64) *drawing {
	d := &drawing{width: width, height: height}
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="Menlo, Consolas, 'DejaVu Sans Mono', monospace">`+"\n", width, height)
	fmt.Fprintf(d, `<rect width="%.0f" height="%.0f" fill="#ffffff"/>`+"\n", width, height)
	return d
}

// box draws a rectangle that says more when it is pointed at; empty: nothing more.
func (d *drawing) box(x, y, width, height float64, color, more string) {
	fmt.Fprintf(d, `<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" fill="%s">`, x, y, width, height, color)
	if more != "" {
		fmt.Fprintf(d, "<title>%s</title>", html.EscapeString(more))
	}
	d.WriteString("</rect>\n")
}

// text writes words at the left end of their base line; right: at its right end.
func (d *drawing) text(x, y, size float64, words string, right bool) {
	if words == "" {
		return
	}
	width := float64(len([]rune(words))) * size * letter
	if right {
		x -= width
	}
	fmt.Fprintf(d, `<text x="%.1f" y="%.1f" font-size="%.0f" textLength="%.1f" lengthAdjust="spacingAndGlyphs" fill="#1b1f24">%s</text>`+"\n", x, y, size, width, html.EscapeString(words))
}

func (d *drawing) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(d, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

func (d *drawing) save(file string) error {
	d.WriteString("</svg>\n")
	return os.WriteFile(file, d.Bytes(), 0o644)
}

// fit cuts words to what fits into a width; empty when nothing useful does.
func fit(words string, width, size float64) string {
	room := int(width / (size * letter))
	runes := []rune(words)
	switch {
	case len(runes) <= room:
		return words
	case room < 3:
		return ""
	default:
		return strings.TrimSpace(string(runes[:room-1])) + "…"
	}
}
