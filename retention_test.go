package sandbox

import (
	"strings"
	"testing"
	"time"
)

func TestRetentionBeyond(t *testing.T) {
	now := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)
	// What a letter stands for: its age in hours, and 10 bytes each.
	snap := func(id string, hours int, change func(*Snapshot)) Snapshot {
		s := Snapshot{ID: id, Kept: true, State: SnapshotReady, CreatedAt: now.Add(-time.Duration(hours) * time.Hour), Bytes: 10}
		if change != nil {
			change(&s)
		}
		return s
	}
	named := func(s *Snapshot) { s.Name = "n" }
	used := func(s *Snapshot) { s.Uses = 1 }
	all := []Snapshot{
		snap("a", 1, nil), snap("b", 2, used), snap("c", 3, nil), snap("d", 4, nil), snap("N", 9, named), snap("M", 5, named), snap("U", 8, func(s *Snapshot) { named(s); used(s) }),
		snap("x", 99, func(s *Snapshot) { s.Kept = false }), snap("y", 99, func(s *Snapshot) { s.State = SnapshotSaving }), snap("z", 99, func(s *Snapshot) { s.State = SnapshotDeleting }),
	}
	for _, tt := range []struct {
		r    Retention
		want string
	}{
		{Retention{}, ""},
		{Retention{Snapshots: 7}, ""},
		{Retention{Snapshots: 6}, "d"},
		{Retention{Snapshots: 5}, "dc"},
		{Retention{Snapshots: 3}, "dcaN"},
		{Retention{Snapshots: 1}, "dcaNM"}, // what is used stays
		{Retention{Bytes: 70}, ""},
		{Retention{Bytes: 69}, "d"},
		{Retention{Bytes: 50}, "dc"},
		{Retention{Bytes: 1}, "dcaNM"},
		{Retention{Age: 100 * time.Hour}, ""},
		{Retention{Age: 4 * time.Hour}, "dNM"},
		{Retention{Age: 4 * time.Hour, Snapshots: 3}, "dcaN" + "M"},
	} {
		var got strings.Builder
		for _, s := range tt.r.Beyond(all, now) {
			got.WriteString(s.ID)
		}
		if got.String() != tt.want {
			t.Errorf("%+v lets %q go, want %q", tt.r, got.String(), tt.want)
		}
	}
}
