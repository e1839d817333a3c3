package after_test

import (
	"slices"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/after"
)

func TestAnswer(t *testing.T) {
	var done []string
	note := func(s string) func() { return func() { done = append(done, s) } }

	after.Answer(t.Context(), note("of no request"))
	ctx, begin := after.With(t.Context())
	if after.Pending(ctx) {
		t.Error("something is put off of a request that has put off nothing")
	}
	after.Answer(ctx, note("first"))
	after.Answer(ctx, note("second"))
	if !after.Pending(ctx) || len(done) != 1 {
		t.Errorf("before the answer %q was done", done)
	}
	begin()
	after.Answer(ctx, note("late"))
	if want := []string{"of no request", "first", "second", "late"}; !slices.Equal(done, want) {
		t.Errorf("done: %q, want %q", done, want)
	}
	if after.Pending(ctx) {
		t.Error("something is put off after the answer")
	}
}
