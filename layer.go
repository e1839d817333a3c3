package sandbox

import (
	"cmp"
	"slices"
	"time"
)

// Bounds of what the builds of one Tenant keep to go on from. How many bytes that
// is the operator says.
const (
	MaxLayers = 200
	LayerLife = 7 * 24 * time.Hour
)

var layerPattern = lazily(`^[0-9a-f]{64}$`)

// LayersBeyond returns those of all a Tenant's layers that go: of those with one
// name all but the newest, those that nobody used for LayerLife, and of the rest
// the ones that were used longest ago, until there are MaxLayers and they have room
// bytes, each by its own size, whatever it shares with others. One that a Sandbox
// refers to stays.
func LayersBeyond(all []Snapshot, room int64, now time.Time) (gone []Snapshot) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Snapshot) int {
		return cmp.Or(b.UsedAt.Compare(a.UsedAt), b.CreatedAt.Compare(a.CreatedAt))
	})
	newest := map[string]time.Time{}
	for _, s := range all {
		if s.CreatedAt.After(newest[s.Layer]) {
			newest[s.Layer] = s.CreatedAt
		}
	}
	count, bytes := 0, int64(0)
	for _, s := range all {
		stale := s.CreatedAt.Before(newest[s.Layer]) || now.Sub(s.UsedAt) >= LayerLife
		if s.Uses == 0 && (stale || count+1 > MaxLayers || bytes+s.Bytes > room) {
			gone = append(gone, s)
			continue
		}
		count++
		bytes += s.Bytes
	}
	return gone
}
