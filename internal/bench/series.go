package bench

import (
	"fmt"
	"slices"
	"time"
)

// Series is one operation, done many times by one product.
type Series struct {
	Operation string `json:"operation"`
	Who       string `json:"who"`
	// Goal is the median that is aimed at in milliseconds, with the 99th
	// percentile in brackets. Empty: none.
	Goal string `json:"goal,omitempty"`
	// Samples are how long those took that succeeded, ascending.
	Samples []time.Duration `json:"samples_ns"`
	// Failures is how many did not; Failure is what the first of them said.
	Failures int    `json:"failures"`
	Failure  string `json:"failure,omitempty"`
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

// add takes the outcome of one operation.
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

// Fact is something measured that is no duration: a rate or a size.
type Fact struct {
	What  string  `json:"what"`
	Who   string  `json:"who"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal,omitempty"`
}

func (f Fact) String() string {
	if f.Value == float64(int64(f.Value)) {
		return fmt.Sprintf("%.0f %s", f.Value, f.Unit)
	}
	return fmt.Sprintf("%.1f %s", f.Value, f.Unit)
}
