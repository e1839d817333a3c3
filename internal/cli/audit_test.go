package cli

import (
	"maps"
	"slices"
	"testing"
	"time"
)

func TestAuditQuery(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	text := func(s string) *string { return &s }
	got, err := auditQuery(map[string]*string{
		"since": text("24h"), "until": text("2026-01-02T00:00:00Z"), "actor": text("1h"), "target": text(""),
	}, now)
	want := map[string][]string{"since": {"2026-01-01T02:04:05Z"}, "until": {"2026-01-02T00:00:00Z"}, "actor": {"1h"}}
	if err != nil || !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := auditQuery(map[string]*string{"since": text("-1h")}, now); err == nil {
		t.Error("a time to come is taken")
	}
}
