package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// drawn draws into a file, and returns what that says.
func drawn(t *testing.T, draw func([]byte, string) error, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "drawn.svg")
	if err := draw([]byte(text), file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(string(b))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return string(b)
		} else if err != nil {
			t.Fatalf("it is no XML: %v\n%s", err, b)
		}
	}
}

func TestSimulation(t *testing.T) {
	svg := drawn(t, drawSimulation, `{"Title": "1,000 nodes", "MaxRatio": 1.3, "Samples": [{"Minute": 1, "Min": 0.1, "Mean": 0.2, "Max": 0.25}, {"Minute": 2, "Min": 0.5, "Mean": 0.6, "Max": 0.7}], "Events": [{"Minute": 1.5, "What": "a burst"}]}`)
	for _, want := range []string{"1,000 nodes", "| a burst", "1.3 times the mean", "fullest node", "emptiest node"} {
		if !strings.Contains(svg, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	if err := drawSimulation([]byte(`{"Title": "none"}`), filepath.Join(t.TempDir(), "x.svg")); err == nil {
		t.Error("a simulation without samples is drawn")
	}
}

func TestFlame(t *testing.T) {
	svg := drawn(t, flame, "# run `1+1`\nserver;main.main;a<b> 60\nserver;main.main 20\nlink shard;x y z 20\nother processes;make 900\n")
	for _, want := range []string{
		"CPU flame chart: run 1+1", "100 samples", "900 more were of other processes", ">server 80 %<", ">link shard 20 %<",
		"<title>a&lt;b&gt;: 60.0 %</title>", "<title>main.main: 80.0 %</title>",
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("%q is not in\n%s", want, svg)
		}
	}
	if strings.Contains(svg, "make") {
		t.Error("other processes are drawn")
	}
	for _, bad := range []string{"", "# nothing\n", "a;b\n", "a;b x\n", "other processes;make 3\n"} {
		if err := flame([]byte(bad), filepath.Join(t.TempDir(), "x")); err == nil {
			t.Errorf("%q is drawn", bad)
		}
	}
}

func TestTimeline(t *testing.T) {
	svg := drawn(t, drawTimeline, `{"title": "op", "ms": 4, "cores": 2, "lanes": [{"name": "server", "cpu_ms": 2.5, "slices": [[0, 1000, 0], [1000.1, 2000, 0], [3000, 3500, 1]]}]}`)
	if one, two := strings.Count(svg, `fill="`+coreColor(0)), strings.Count(svg, `fill="`+coreColor(1)); one != 2 || two != 2 {
		t.Errorf("%d marks of core 0 and %d of core 1, want one each and one in the legend:\n%s", one, two, svg)
	}
	for _, want := range []string{">server<", ">2.50 ms<", ">4 ms<", "one request of 4 ms"} {
		if !strings.Contains(svg, want) {
			t.Errorf("%q is not in\n%s", want, svg)
		}
	}
	if err := drawTimeline([]byte(`{"title": "op"}`), filepath.Join(t.TempDir(), "x")); err == nil {
		t.Error("nothing is drawn")
	}
}

func TestTicks(t *testing.T) {
	for most, want := range map[float64][]float64{4.79: {0, 1, 2, 3, 4}, 129: {0, 20, 40, 60, 80, 100, 120}, 1: {0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}} {
		if got := ticks(most); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", most, got, want)
		}
	}
}

func TestFit(t *testing.T) {
	for _, tt := range []struct {
		words string
		width float64
		want  string
	}{{"abc", 100, "abc"}, {"abcdefghij", 36, "abcde…"}, {"abcdefghij", 12, ""}} {
		if got := fit(tt.words, tt.width, 10); got != tt.want {
			t.Errorf("%q in %v: %q, want %q", tt.words, tt.width, got, tt.want)
		}
	}
}
