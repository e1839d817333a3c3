package sandbox_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A request that had no effect says when to come back, where something was away.
func TestNotBegun(t *testing.T) {
	away := sandbox.Errorf(sandbox.Unavailable, "away")
	advised := sandbox.Errorf(sandbox.Unavailable, "away")
	advised.RetryAfter = 7 * time.Second
	for _, tt := range []struct {
		err  error
		want time.Duration
	}{
		{nil, 0},
		{errors.New("other"), 0},
		{sandbox.Errorf(sandbox.NotFound, "none"), 0},
		{away, time.Second},
		{fmt.Errorf("read: %w", away), time.Second},
		{advised, 7 * time.Second},
		{away.WithCause(errors.Join(sandbox.ErrUncertain, errors.New("the commit"))), 0},
	} {
		got := sandbox.NotBegun(tt.err)
		var e *sandbox.Error
		if errors.As(got, &e) && e.RetryAfter != tt.want || !errors.As(got, &e) && tt.want != 0 || sandbox.CodeOf(got) != sandbox.CodeOf(tt.err) {
			t.Errorf("%v becomes %v, %+v", tt.err, got, e)
		}
	}
	if away.RetryAfter != 0 {
		t.Error("the error itself was changed")
	}
}
