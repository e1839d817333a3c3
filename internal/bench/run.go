package bench

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Part is a group of measurements, such as all of one server.
type Part struct {
	Name    string
	Measure func(context.Context) error
}

// partTime is the timeout of one part, so that a part that hangs costs no other one.
const partTime = 30 * time.Minute

// Run measures parts one after the other.
type Run struct {
	Report *Report
	Only   *regexp.Regexp // selects parts by their names; nil: all
	Folder string         // receives the Report after every part, see Report.Write; empty: none
}

// Measure measures the selected parts. A part that fails is recorded, and the others
// are still measured. Its error names the failed parts, or has the cause of ctx's end.
func (r Run) Measure(ctx context.Context, parts []Part) error {
	var failed, names []string
	measured := 0
	for _, part := range parts {
		names = append(names, part.Name)
		if r.Only != nil && !r.Only.MatchString(part.Name) {
			continue
		}
		measured++
		err := r.Report.Measure(part.Name, func() error {
			limited, cancel := context.WithTimeoutCause(ctx, partTime, fmt.Errorf("not done after %v", partTime))
			defer cancel()
			return part.Measure(limited)
		})
		if r.Folder != "" { // keep the results so far, however the next parts end
			err = errors.Join(err, r.Report.Write(r.Folder))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			failed = append(failed, err.Error())
		}
	}
	if measured == 0 {
		return fmt.Errorf("no part matches %q; parts: %s", r.Only, strings.Join(names, ", "))
	}
	if n := r.Report.Failures(); n > 0 {
		failed = append(failed, fmt.Sprintf("%d operations failed", n))
	}
	if len(failed) > 0 {
		return errors.New(strings.Join(failed, "\n"))
	}
	return nil
}
