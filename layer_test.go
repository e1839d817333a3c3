package sandbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestLayersBeyond(t *testing.T) {
	now := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)
	const room = 8 << 30
	// Each is used so many hours ago, and made an hour before.
	layer := func(id string, hours int, change func(*Snapshot)) Snapshot {
		used := now.Add(-time.Duration(hours) * time.Hour)
		s := Snapshot{ID: id, Layer: id, Kept: true, State: SnapshotReady, CreatedAt: used.Add(-time.Hour), UsedAt: used, Bytes: 1 << 20}
		if change != nil {
			change(&s)
		}
		return s
	}
	big := func(s *Snapshot) { s.Bytes = room / 2 }
	many := make([]Snapshot, MaxLayers)
	for i := range many {
		many[i] = layer(fmt.Sprint("m", i), 1, nil)
	}
	week := int(LayerLife / time.Hour)
	for name, tt := range map[string]struct {
		all  []Snapshot
		want string
	}{
		"few":               {[]Snapshot{layer("a", 1, nil), layer("b", week-1, nil)}, ""},
		"old":               {[]Snapshot{layer("a", week, nil), layer("b", 2, nil)}, "a"},
		"old and in use":    {[]Snapshot{layer("a", week, func(s *Snapshot) { s.Uses = 1 })}, ""},
		"made again":        {[]Snapshot{layer("a", 1, nil), layer("b", 3, func(s *Snapshot) { s.Layer = "a" })}, "b"},
		"the older is used": {[]Snapshot{layer("a", 9, func(s *Snapshot) { s.UsedAt = now; s.Layer = "x" }), layer("b", 3, func(s *Snapshot) { s.Layer = "x" })}, "a"},
		"too many":          {append([]Snapshot{layer("a", 2, nil), layer("b", 0, nil)}, many[:MaxLayers-1]...), "a"},
		"too large":         {[]Snapshot{layer("a", 3, big), layer("b", 2, big), layer("c", 1, big)}, "a"},
		"small ones fit":    {[]Snapshot{layer("a", 3, nil), layer("b", 2, big), layer("c", 1, func(s *Snapshot) { s.Bytes = room - 1<<21 })}, "b"},
		"larger than all":   {[]Snapshot{layer("a", 1, func(s *Snapshot) { s.Bytes = room + 1 })}, "a"},
	} {
		var got strings.Builder
		for _, s := range LayersBeyond(tt.all, room, now) {
			got.WriteString(s.ID)
		}
		if got.String() != tt.want {
			t.Errorf("%s: %q go, want %q", name, got.String(), tt.want)
		}
	}
}

func TestSnapshotRequestCheckLayer(t *testing.T) {
	for _, tt := range []struct {
		req SnapshotRequest
		ok  bool
	}{
		{SnapshotRequest{Layer: strings.Repeat("a1", 32)}, true},
		{SnapshotRequest{Layer: strings.Repeat("A1", 32)}, false},
		{SnapshotRequest{Layer: "a1"}, false},
		{SnapshotRequest{Layer: strings.Repeat("a1", 32), Name: "n"}, false},
	} {
		if err := tt.req.Check(); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.req, err)
		}
	}
}
