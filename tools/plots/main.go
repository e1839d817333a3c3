// Command plots draws what a bench or a simulation left in a folder as SVG beside it: plots
// FOLDER.
// It is a module of its own, so that nothing else depends on what draws.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// report holds the parts of a report that are drawn.
type report struct {
	Machine string    `json:"machine"`
	At      time.Time `json:"at"`
	Series  []series  `json:"series"`
}

type series struct {
	Operation string          `json:"operation"`
	Who       string          `json:"who"`
	Samples   []time.Duration `json:"samples_ns"` // ascending
	Rival     *series         `json:"rival"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plots FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

// run draws what is in a folder: samples.json and what was profiled, or what was simulated.
func run(folder string) error {
	simulated := filepath.Join(folder, "simulation.json")
	b, err := os.ReadFile(simulated)
	if err == nil {
		return drawSimulation(b, filepath.Join(folder, "simulation.svg"))
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file := filepath.Join(folder, "samples.json")
	if b, err = os.ReadFile(file); err != nil {
		return err
	}
	var r report
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	single, many := split(r.Series)
	return errors.Join(
		latencies(r, single, filepath.Join(folder, "latency.svg")),
		distributions("Bursts: share of acquires done after", many, filepath.Join(folder, "bursts.svg")),
		each(folder, ".folded", "flame-%s.svg", flame),
		each(folder, ".timeline.json", "timeline-%s.svg", drawTimeline),
	)
}

// each draws every file of a folder whose name has an ending.
func each(folder, ending, drawn string, draw func(text []byte, file string) error) error {
	files, err := filepath.Glob(filepath.Join(folder, "*"+ending))
	for _, file := range files {
		text, readErr := os.ReadFile(file)
		if readErr == nil {
			name := strings.TrimSuffix(filepath.Base(file), ending)
			readErr = draw(text, filepath.Join(folder, fmt.Sprintf(drawn, name)))
		}
		if readErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", file, readErr))
		}
	}
	return err
}

// split parts operations done one by one from those done at once, each with its
// rival after it. What several have beside them comes once.
func split(all []series) (single, many []series) {
	known := map[string]bool{}
	add := func(to *[]series, s series) {
		if name := s.label(); len(s.Samples) > 0 && !known[name] {
			known[name] = true
			*to = append(*to, s)
		}
	}
	for _, s := range all {
		to := &single
		if strings.HasPrefix(s.Operation, "burst") {
			to = &many
		}
		add(to, s)
		if s.Rival != nil {
			rival := *s.Rival
			if to == &single {
				rival.Operation += " (beside: " + s.Operation + ")"
			}
			add(to, rival)
		}
	}
	return single, many
}

func (s series) label() string {
	return strings.ReplaceAll(s.Operation, "`", "") + " · " + s.Who
}

// percentile in milliseconds, by the nearest rank.
func (s series) percentile(p int) float64 {
	i := (len(s.Samples)*p + 99) / 100
	return float64(s.Samples[max(i, 1)-1].Microseconds()) / 1000
}

var (
	ours   = color.RGBA{R: 0x1f, G: 0x6f, B: 0xd6, A: 0xff}
	theirs = color.RGBA{R: 0x9a, G: 0xa3, B: 0xad, A: 0xff}
	tail   = color.RGBA{R: 0xd6, G: 0x45, B: 0x2b, A: 0xff}
)

// latencies draws a bar to each median and a mark at each 99th percentile.
func latencies(r report, all []series, file string) error {
	if len(all) == 0 {
		return nil
	}
	p := plot.New()
	p.Title.Text = "Median (bar) and 99th percentile (mark), ms, logarithmic\n" + r.Machine
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Min = 0.1
	var names []string
	marks := plotter.XYs{}
	slices.Reverse(all) // the first on top
	for i, s := range all {
		bar, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: float64(i)}, {X: math.Max(s.percentile(50), p.X.Min), Y: float64(i)}})
		if err != nil {
			return err
		}
		bar.Width, bar.Color = vg.Points(9), theirs
		if s.Who == "Cloud Sandbox" {
			bar.Color = ours
		}
		p.Add(bar)
		marks = append(marks, plotter.XY{X: math.Max(s.percentile(99), p.X.Min), Y: float64(i)})
		names = append(names, s.label())
	}
	points, err := plotter.NewScatter(marks)
	if err != nil {
		return err
	}
	points.Shape, points.Color, points.Radius = draw.BoxGlyph{}, tail, vg.Points(2.5)
	p.Add(points, plotter.NewGrid())
	p.NominalY(names...)
	return save(p, 32*vg.Centimeter, vg.Length(len(all)+4)*0.75*vg.Centimeter, file)
}

// distributions draws for each series which share was done after how long.
func distributions(title string, all []series, file string) error {
	if len(all) == 0 {
		return nil
	}
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = "ms, logarithmic", "share"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Min, p.Y.Min, p.Y.Max = 1, -0.6, 1 // room for the legend below
	p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 0.5, Label: "0.5"}, {Value: 1, Label: "1"}}
	p.Legend.Padding = vg.Points(1)
	for i, s := range all {
		points := plotter.XYs{{X: p.X.Min}}
		for k, d := range s.Samples {
			points = append(points, plotter.XY{X: math.Max(float64(d.Microseconds())/1000, p.X.Min), Y: float64(k+1) / float64(len(s.Samples))})
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.StepStyle = plotter.PostStep
		line.Width = vg.Points(1.5)
		hue := uint8(255 * i / len(all))
		line.Color = color.RGBA{R: hue, G: 0x70, B: 255 - hue, A: 0xff}
		if s.Who != "Cloud Sandbox" {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		p.Add(line)
		p.Legend.Add(s.label(), line)
	}
	p.Add(plotter.NewGrid())
	return save(p, 28*vg.Centimeter, 18*vg.Centimeter, file)
}

// text is a text in a drawing: its style with its size, and its words.
var text = regexp.MustCompile(`<text ([^>]*font-size:([0-9.]+)px")>([^<]*)</text>`)

// save writes a drawing in which every text is as wide as it was taken for, also
// where the font is another one.
func save(p *plot.Plot, width, height vg.Length, file string) error {
	drawing, err := p.WriterTo(width, height, "svg")
	if err != nil {
		return err
	}
	var raw bytes.Buffer
	if _, err := drawing.WriteTo(&raw); err != nil {
		return err
	}
	return os.WriteFile(file, fitted(raw.Bytes()), 0o644)
}

func fitted(svg []byte) []byte {
	return text.ReplaceAllFunc(svg, func(found []byte) []byte {
		m := text.FindSubmatch(found)
		size, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil || len(m[3]) == 0 {
			return found
		}
		words := html.UnescapeString(string(m[3]))
		face := font.DefaultCache.Lookup(plot.DefaultFont, font.Length(size))
		width := face.Width(words)
		return fmt.Appendf(nil, `<text %s textLength="%.2f" lengthAdjust="spacingAndGlyphs">%s</text>`, m[1], width.Points(), m[3])
	})
}
