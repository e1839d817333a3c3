package sandbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestTenantIDCheck(t *testing.T) {
	for id, want := range map[sandbox.TenantID]bool{
		"a": true, "a/b": true, "dev:é": true, sandbox.TenantID(strings.Repeat("x", sandbox.MaxTenantID)): true,
		"": false, sandbox.TenantID(strings.Repeat("x", sandbox.MaxTenantID+1)): false, "a\xff": false, "a\x00b": false,
	} {
		if err := id.Check(); (err == nil) != want || err != nil && !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%.20q: %v", id, err)
		}
	}
}

func TestTenantAbove(t *testing.T) {
	for id, want := range map[sandbox.TenantID][]sandbox.TenantID{
		"a": nil, "a/b": {"a"}, "a/b/c": {"a/b", "a"}, "/a": nil, "": nil, "sha256:12": nil, "sha256:12/x": {"sha256:12"},
	} {
		if got := id.Above(); !slices.Equal(got, want) {
			t.Errorf("above %q are %q, want %q", id, got, want)
		}
	}
}

func TestSuspensionsHold(t *testing.T) {
	s := sandbox.Suspensions{"a": true, "b/c": true}
	for id, want := range map[sandbox.TenantID]bool{
		"a": true, "a/x": true, "a/x/y": true, "ab": false, "ab/x": false, "b": false, "b/c": true, "b/c/d": true, "b/cd": false, "": false,
	} {
		if s.Hold(id) != want {
			t.Errorf("%q is held: %v", id, !want)
		}
	}
	if sandbox.Suspensions(nil).Hold("a") {
		t.Error("nobody's suspension holds somebody")
	}
}

func TestTenantChange(t *testing.T) {
	suspended, active, odd := sandbox.TenantSuspended, sandbox.TenantActive, sandbox.TenantState("odd")
	name := func(s string) *string { return &s }
	for _, tt := range []struct {
		change sandbox.TenantChange
		want   error
	}{
		{sandbox.TenantChange{}, nil},
		{sandbox.TenantChange{Name: name("")}, nil},
		{sandbox.TenantChange{Name: name(strings.Repeat("é", sandbox.MaxTenantName))}, nil},
		{sandbox.TenantChange{Name: name(strings.Repeat("é", sandbox.MaxTenantName+1))}, sandbox.Invalid},
		{sandbox.TenantChange{Name: name("a\nb")}, sandbox.Invalid},
		{sandbox.TenantChange{State: &suspended, Reason: "why"}, nil},
		{sandbox.TenantChange{State: &suspended}, sandbox.Invalid},
		{sandbox.TenantChange{State: &suspended, Reason: strings.Repeat("x", sandbox.MaxSuspensionReason+1)}, sandbox.Invalid},
		{sandbox.TenantChange{State: &active}, nil},
		{sandbox.TenantChange{State: &active, Reason: "why"}, sandbox.Invalid},
		{sandbox.TenantChange{Reason: "why"}, sandbox.Invalid},
		{sandbox.TenantChange{State: &odd}, sandbox.Invalid},
	} {
		if err := tt.change.Check(); !errors.Is(err, tt.want) {
			t.Errorf("%+v = %v, want %v", tt.change, err, tt.want)
		}
	}
	at := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)
	first := sandbox.TenantChange{State: &suspended, Reason: "one"}.Apply(sandbox.Tenant{ID: "t", Name: "T"}, at)
	again := sandbox.TenantChange{State: &suspended, Reason: "two"}.Apply(first, at.Add(time.Hour))
	if again.Name != "T" || *again.Suspended != (sandbox.Suspension{At: at, Reason: "two"}) || first.Suspended.Reason != "one" {
		t.Errorf("suspended again: %+v after %+v", again, first)
	}
	if back := (sandbox.TenantChange{State: &active}).Apply(again, at); back.State() != active || back.Suspended != nil {
		t.Errorf("goes on: %+v", back)
	}
}
