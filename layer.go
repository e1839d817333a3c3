package sandbox

import (
	"cmp"
	"slices"
	"time"
)

// Bounds of the layers of one Tenant. The operator sets the bound of their bytes.
const (
	MaxLayers = 200
	LayerLife = 7 * 24 * time.Hour
)

var layerPattern = lazily(`^[0-9a-f]{64}$`)

// LayersBeyond returns the layers to delete, where all is every layer of a Tenant. It
// selects all but the newest layer of each name, and layers unused for LayerLife. Of the
// rest it selects the least recently used, until at most MaxLayers with at most room
// bytes remain; bytes shared with other layers count in full. A layer that a Sandbox
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
