package inflight_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/inflight"
)

func TestRequests(t *testing.T) {
	var s inflight.Requests[string]
	s.End("a", errors.New("of nobody"))
	first, leaveFirst := s.Enter(t.Context(), "a")
	second, leaveSecond := s.Enter(t.Context(), "a")
	other, leaveOther := s.Enter(t.Context(), "b")
	defer leaveOther()
	leaveFirst()
	if first.Err() == nil || !errors.Is(context.Cause(first), context.Canceled) {
		t.Errorf("who left goes on: %v", context.Cause(first))
	}
	why := errors.New("why")
	s.End("a", why)
	if !errors.Is(context.Cause(second), why) || other.Err() != nil {
		t.Errorf("they end with %v and %v", context.Cause(second), other.Err())
	}
	if len(s.Keys()) != 2 {
		t.Errorf("inside are %q", s.Keys())
	}
	leaveSecond()
	leaveFirst() // a second time
	if all := s.Keys(); len(all) != 1 || all[0] != "b" {
		t.Errorf("inside are %q", all)
	}
}
