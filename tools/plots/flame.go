package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// call is a function in a flame chart, with those it called.
type call struct {
	name   string
	count  int // samples
	called map[string]*call
}

func (c *call) add(stack []string, count int) {
	c.count += count
	if len(stack) == 0 {
		return
	}
	if c.called == nil {
		c.called = map[string]*call{}
	}
	next := c.called[stack[0]]
	if next == nil {
		next = &call{name: stack[0]}
		c.called[stack[0]] = next
	}
	next.add(stack[1:], count)
}

// others are the processes that a chart is not about.
const others = "other processes"

// leaveOut takes a kind of process out, and returns how many samples were of it.
func (c *call) leaveOut(kind string) int {
	out := c.called[kind]
	if out == nil {
		return 0
	}
	delete(c.called, kind)
	c.count -= out.count
	return out.count
}

// parseFolded reads stacks, the outermost call first, with their counts, and the
// title in the first line.
func parseFolded(text []byte) (title string, root *call, err error) {
	root = &call{name: "all"}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, "# "); ok {
			title = rest
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		if i < 0 {
			return "", nil, fmt.Errorf("a stack without a count: %q", line)
		}
		count, err := strconv.Atoi(line[i+1:])
		if err != nil {
			return "", nil, err
		}
		root.add(strings.Split(line[:i], ";"), count)
	}
	if root.count == 0 {
		return "", nil, fmt.Errorf("%q has no samples", title)
	}
	return title, root, lines.Err()
}

// Measures of a flame chart.
const (
	flameWidth  = 1200.0
	flameRow    = 17.0
	flameFont   = 11.0
	flameHead   = 44.0
	flameMargin = 8.0
	// leastShare is the share of all samples below which a call is not drawn, and
	// mostDepth how many calls of a stack are.
	leastShare = 0.004
	mostDepth  = 34
)

// flame draws where processors spent their time: each call as wide as its share,
// above it what it called, and at the bottom what kind of process it was.
func flame(text []byte, file string) error {
	title, root, err := parseFolded(text)
	if err != nil {
		return err
	}
	left := root.leaveOut(others)
	if root.count == 0 {
		return fmt.Errorf("%q has only samples of %s", title, others)
	}
	depth := min(deepest(root), mostDepth)
	height := flameHead + float64(depth+1)*flameRow + flameMargin
	d := newDrawing(flameWidth, height)
	d.text(flameMargin, 20, 14, fit(plain("CPU flame chart: "+title), flameWidth-2*flameMargin, 14), false)
	words := fmt.Sprintf("%d samples while it took place; a box is as wide as its share of them, calls stand on their callers", root.count)
	if left > 0 {
		words += fmt.Sprintf("; %d more were of %s", left, others)
	}
	d.text(flameMargin, 36, 11, words, false)
	c := chart{drawing: d, all: float64(root.count), bottom: height - flameMargin - flameRow, depth: depth}
	c.draw(root, flameMargin, 0, "")
	return d.save(file)
}

// deepest is how many calls deep c goes, of those that are drawn.
func deepest(root *call) int {
	var below func(c *call) int
	below = func(c *call) int {
		deep := 0
		for _, next := range c.called {
			if float64(next.count) >= leastShare*float64(root.count) {
				deep = max(deep, 1+below(next))
			}
		}
		return deep
	}
	return below(root)
}

type chart struct {
	*drawing
	all, bottom float64
	depth       int
}

func (c chart) draw(f *call, x float64, level int, kind string) {
	share := float64(f.count) / c.all
	if level > c.depth || share < leastShare {
		return
	}
	if level == 1 {
		kind = f.name
	}
	width := share * (flameWidth - 2*flameMargin)
	y := c.bottom - float64(level)*flameRow
	c.box(x, y, max(width-0.5, 0.5), flameRow-1, shade(kind, f.name), fmt.Sprintf("%s: %.1f %%", f.name, 100*share))
	words := f.name
	if level <= 1 {
		words = fmt.Sprintf("%s %.0f %%", f.name, 100*share)
	}
	c.text(x+3, y+flameRow-5, flameFont, fit(words, width-5, flameFont), false)
	next := slices.SortedFunc(maps.Values(f.called), func(a, b *call) int {
		return cmp.Or(b.count-a.count, strings.Compare(a.name, b.name))
	})
	for _, n := range next {
		c.draw(n, x, level+1, kind)
		x += float64(n.count) / c.all * (flameWidth - 2*flameMargin)
	}
}

// hues are the colors of kinds of processes, in degrees.
var hues = map[string]int{
	"client": 210, "launcher": 270, "server": 200, "link shard": 165, "sentry host": 45, "sentries (gVisor)": 20, "inside the sandboxes": 120, "kernel threads": 300,
}

// shade is the color of a call: that of its process, lighter or darker by its name.
func shade(kind, name string) string {
	hue, known := hues[kind]
	saturation := 75
	if !known {
		saturation = 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return fmt.Sprintf("hsl(%d, %d%%, %d%%)", hue, saturation, 72+int(h.Sum32()%14))
}

// plain is a title without the marks of Markdown.
func plain(title string) string { return strings.ReplaceAll(title, "`", "") }
