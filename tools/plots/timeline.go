package main

import (
	"encoding/json"
	"fmt"
	"math"
)

// timeline records which process ran when on which processor core during one request.
type timeline struct {
	Title string  `json:"title"`
	MS    float64 `json:"ms"`
	Cores int     `json:"cores"`
	Lanes []struct {
		Name   string       `json:"name"`
		CPU    float64      `json:"cpu_ms"`
		Slices [][3]float64 `json:"slices"` // from and to in microseconds, core
	} `json:"lanes"`
}

// Measures of a timeline.
const (
	timelineWidth = 1200.0
	timelineLeft  = 190.0 // names
	timelineRight = 150.0 // sums
	timelineHead  = 64.0
	laneHeight    = 36.0
	laneGap       = 6.0
	// leastGap is the width below which a pause between two slices is not shown.
	leastGap = 0.6
)

// coreColors are those of the first cores; others have the last.
var coreColors = []string{"#1f6fd6", "#e07b1a", "#2a9d5c", "#8b5fbf"}

func coreColor(core int) string { return coreColors[min(core, len(coreColors)-1)] }

// drawTimeline draws a lane for each kind of process, with a mark for every time
// that one of them ran, of the color of its core.
func drawTimeline(text []byte, file string) error {
	var t timeline
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	if t.MS <= 0 || len(t.Lanes) == 0 {
		return fmt.Errorf("%q has nothing to draw", t.Title)
	}
	height := timelineHead + float64(len(t.Lanes))*(laneHeight+laneGap) + 34
	d := newDrawing(timelineWidth, height)
	d.text(8, 20, 14, fit(plain("Timeline: "+t.Title), timelineWidth-16, 14), false)
	busy := 0.0
	for _, l := range t.Lanes {
		busy += l.CPU
	}
	x := 8.0
	words := fmt.Sprintf("one request of %s ms, the median of its run; %s ms on processors; ran on", milli(t.MS), milli(busy))
	d.text(x, 40, 11, words, false)
	x += float64(len(words)+1) * 11 * letter
	for core := range t.Cores {
		d.box(x, 31, 10, 10, coreColor(core), "")
		label := fmt.Sprintf("core %d", core)
		d.text(x+14, 40, 11, label, false)
		x += 14 + float64(len(label)+2)*11*letter
	}
	room := timelineWidth - timelineLeft - timelineRight
	scale := room / (t.MS * 1000)
	bottom := height - 30
	for _, at := range ticks(t.MS) {
		x := timelineLeft + at*1000*scale
		d.line(x, timelineHead-8, x, bottom, "#d7dce1")
		d.text(x+2, bottom+14, 11, milli(at)+" ms", false)
	}
	for i, l := range t.Lanes {
		y := timelineHead + float64(i)*(laneHeight+laneGap)
		d.box(timelineLeft, y, room, laneHeight, "#f3f5f7", "")
		d.text(timelineLeft-8, y+laneHeight/2+4, 12, fit(l.Name, timelineLeft-14, 12), true)
		d.text(timelineWidth-timelineRight+8, y+laneHeight/2+4, 12, milli(l.CPU)+" ms", false)
		for core := range t.Cores { // one row each, so that none hides another
			each := laneHeight / float64(t.Cores)
			for _, s := range merged(l.Slices, core, leastGap/scale) {
				d.box(timelineLeft+s[0]*scale, y+float64(core)*each, max((s[1]-s[0])*scale, 0.7), each, coreColor(core), "")
			}
		}
	}
	d.text(timelineWidth-timelineRight+8, timelineHead-12, 11, "on processors", false)
	return d.save(file)
}

// merged returns the slices of one core, which are in order, those as one between
// which there is less than gap.
func merged(slices [][3]float64, core int, gap float64) (all [][2]float64) {
	for _, s := range slices {
		switch last := len(all) - 1; {
		case int(s[2]) != core:
		case last >= 0 && s[0]-all[last][1] < gap:
			all[last][1] = max(all[last][1], s[1])
		default:
			all = append(all, [2]float64{s[0], s[1]})
		}
	}
	return all
}

// ticks are about six round numbers up to a time.
func ticks(most float64) (all []float64) {
	step := math.Pow(10, math.Floor(math.Log10(most/6)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if most/(step*factor) <= 8 {
			step *= factor
			break
		}
	}
	for i := 0; float64(i)*step <= most; i++ {
		all = append(all, float64(i)*step)
	}
	return all
}

// milli writes a time in milliseconds with as many digits as it needs.
func milli(ms float64) string {
	switch {
	case ms == math.Trunc(ms):
		return fmt.Sprintf("%.0f", ms)
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	default:
		return fmt.Sprintf("%.0f", ms)
	}
}
