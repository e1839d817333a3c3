package bench

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Series is the measurements of one operation of one product.
type Series struct {
	Operation string `json:"operation"`
	Who       string `json:"who"`
	// Goal is the goal for the median in milliseconds, with the 99th percentile in
	// brackets. Empty: none.
	Goal string `json:"goal,omitempty"`
	// Floor makes the goal a multiple of the median of Rival, which is the fastest that
	// the operation can be. Zero, or no Rival: Goal stays.
	Floor float64 `json:"-"`
	// Note is a remark of one sentence, such as the source of a goal.
	Note string `json:"note,omitempty"`
	// Rival is another product's counterpart, measured right after it. Nil: no
	// counterpart.
	Rival *Series `json:"rival,omitempty"`
	// Samples are the durations of the successful operations, ascending. A published
	// Report leaves them out.
	Samples []time.Duration `json:"samples_ns,omitempty"`
	// Failures is the number of failed operations; Failure is the error of the first.
	Failures int    `json:"failures"`
	Failure  string `json:"failure,omitempty"`

	// Report.Add fills in the following fields.

	N      int     `json:"n"` // operations that succeeded
	Median float64 `json:"median_ms"`
	P95    float64 `json:"p95_ms"`
	P99    float64 `json:"p99_ms"`
	Met    *bool   `json:"met,omitempty"` // nil: no goal
	// Ratio is the speed relative to Rival; zero without a Rival.
	Ratio     float64      `json:"ratio,omitempty"`
	Disturbed *Disturbance `json:"disturbed,omitempty"` // nil: the machine was not watched
}

// Percentile returns the sample that p percent of the samples do not exceed, by
// the nearest rank; zero without samples.
func (s *Series) Percentile(p int) time.Duration {
	if len(s.Samples) == 0 {
		return 0
	}
	i := (len(s.Samples)*p + 99) / 100
	return s.Samples[max(i, 1)-1]
}

// add records the outcome of one operation.
func (s *Series) add(took time.Duration, err error) {
	if err != nil {
		if s.Failures++; s.Failures == 1 {
			s.Failure = err.Error()
		}
		return
	}
	i, _ := slices.BinarySearch(s.Samples, took)
	s.Samples = slices.Insert(s.Samples, i, took)
}

// sum computes the figures of s from its samples.
func (s *Series) sum() (err error) {
	if s == nil {
		return nil
	}
	s.N = len(s.Samples)
	s.Median, s.P95, s.P99 = milliseconds(s.Percentile(50)), milliseconds(s.Percentile(95)), milliseconds(s.Percentile(99))
	if s.Rival != nil {
		if err := s.Rival.sum(); err != nil {
			return err
		}
		s.Ratio = ratio(s.Rival.Median, s.Median)
		if s.Floor > 0 && s.Rival.N > 0 {
			s.Goal = fmt.Sprintf("%.0f", s.Floor*s.Rival.Median)
		}
	}
	s.Met, err = judge(s.Goal, s.Median, s.P99)
	if s.Met != nil && s.N == 0 {
		*s.Met = false
	}
	return err
}

// milliseconds rounds to a microsecond below 0.1 ms, to a hundredth of a millisecond
// below 1 ms and to a tenth above.
func milliseconds(d time.Duration) float64 {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v < 0.1:
		return math.Round(v*1000) / 1000
	case v < 1:
		return math.Round(v*100) / 100
	default:
		return math.Round(v*10) / 10
	}
}

// ratio of two measurements, to three digits after the point below 0.1, to two below
// 10 and to none above; zero when one of them is missing.
func ratio(over, under float64) float64 {
	if over <= 0 || under <= 0 {
		return 0
	}
	switch r := over / under; {
	case r < 0.1:
		return math.Round(r*1000) / 1000
	case r < 10:
		return math.Round(r*100) / 100
	default:
		return math.Round(r)
	}
}

// Fact is a measurement other than a duration: a rate or a size.
type Fact struct {
	What  string  `json:"what"`
	Who   string  `json:"who"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal,omitempty"` // as ">= 200" or "<= 12"
	Note  string  `json:"note,omitempty"` // a remark of one sentence
	// Rival is the same figure of another product, measured in the same run. Nil: no
	// counterpart.
	Rival *Fact `json:"rival,omitempty"`

	// Report.AddFact fills in the following fields.

	Met *bool `json:"met,omitempty"` // nil: no goal
	// Ratio is the factor by which this is better than Rival: faster for a rate, smaller
	// for a size. Zero without a Rival.
	Ratio     float64      `json:"ratio,omitempty"`
	Disturbed *Disturbance `json:"disturbed,omitempty"` // nil: the machine was not watched
}

// moreIsBetter holds the units of rates; of all others less is better.
var moreIsBetter = map[string]bool{"MB/s": true, "a second": true}

// sum compares f with its goal and its rival.
func (f *Fact) sum() (err error) {
	if f.Rival != nil {
		if f.Ratio = ratio(f.Rival.Value, f.Value); moreIsBetter[f.Unit] {
			f.Ratio = ratio(f.Value, f.Rival.Value)
		}
	}
	f.Met, err = judge(f.Goal, f.Value, f.Value)
	return err
}

func (f Fact) String() string {
	if f.Value == float64(int64(f.Value)) {
		return fmt.Sprintf("%.0f %s", f.Value, f.Unit)
	}
	if math.Abs(f.Value) < 1 {
		return fmt.Sprintf("%.2f %s", f.Value, f.Unit)
	}
	return fmt.Sprintf("%.1f %s", f.Value, f.Unit)
}
