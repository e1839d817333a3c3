package main

import (
	"encoding/json"
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// simulation is a result of make simulate.
type simulation struct {
	Title    string
	MaxRatio float64
	Samples  []struct {
		Minute         float64
		Min, Mean, Max float64 // shares of a node's memory
	}
	Events []struct {
		Minute float64 // when it began
		What   string
	}
}

// drawSimulation draws the memory of the emptiest, the mean and the fullest node by the
// minute, and the bound of the fullest one.
func drawSimulation(text []byte, file string) error {
	var s simulation
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	if len(s.Samples) == 0 {
		return fmt.Errorf("%q has nothing to draw", s.Title)
	}
	p := plot.New()
	p.Title.Text = s.Title
	p.X.Label.Text, p.Y.Label.Text = "simulated minutes", "committed share of a node's memory"
	p.X.Min, p.Y.Min, p.Y.Max = 0, 0, 1.3
	p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 0.25, Label: "0.25"}, {Value: 0.5, Label: "0.5"}, {Value: 0.75, Label: "0.75"}, {Value: 1, Label: "1"}}
	p.Legend.Padding = vg.Points(1)
	p.Legend.Left, p.Legend.Top = true, true
	p.Add(plotter.NewGrid())
	var least, mean, most, bound plotter.XYs
	for _, at := range s.Samples {
		least = append(least, plotter.XY{X: at.Minute, Y: at.Min})
		mean = append(mean, plotter.XY{X: at.Minute, Y: at.Mean})
		most = append(most, plotter.XY{X: at.Minute, Y: at.Max})
		if at.Mean >= 0.5 {
			bound = append(bound, plotter.XY{X: at.Minute, Y: at.Mean * s.MaxRatio})
		}
	}
	for _, l := range []struct {
		name   string
		points plotter.XYs
		color  color.Color
		dashed bool
	}{
		{fmt.Sprintf("%.1f times the mean, from half load on", s.MaxRatio), bound, tail, true},
		{"fullest node", most, tail, false},
		{"mean", mean, ours, false},
		{"emptiest node", least, theirs, false},
	} {
		if len(l.points) == 0 {
			continue
		}
		line, err := plotter.NewLine(l.points)
		if err != nil {
			return err
		}
		line.Width, line.Color = vg.Points(1.5), l.color
		if l.dashed {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		p.Add(line)
		p.Legend.Add(l.name, line)
	}
	var marks plotter.XYLabels
	for _, e := range s.Events {
		marks.XYs = append(marks.XYs, plotter.XY{X: e.Minute, Y: 0.02 + 0.05*float64(len(marks.XYs)%3)})
		marks.Labels = append(marks.Labels, "| "+e.What)
	}
	if len(marks.XYs) > 0 {
		labels, err := plotter.NewLabels(marks)
		if err != nil {
			return err
		}
		p.Add(labels)
	}
	return save(p, 28*vg.Centimeter, 14*vg.Centimeter, file)
}
