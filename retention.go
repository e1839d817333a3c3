package sandbox

import (
	"cmp"
	"slices"
	"time"
)

// Retention bounds the Kept Snapshots of a Tenant. A zero field sets no bound.
type Retention struct {
	Snapshots int64         `json:"snapshots,omitempty"`
	Bytes     int64         `json:"bytes,omitempty"`
	Age       time.Duration `json:"age,omitempty"`
}

// Beyond returns the Snapshots to delete under r, in order of deletion, where all is
// every Snapshot of a Tenant. Unnamed ones come before named ones, then the oldest first.
// A Snapshot that a Sandbox refers to stays. A Snapshot that is not Kept stays too: it is
// deleted when no Sandbox refers to it.
func (r Retention) Beyond(all []Snapshot, now time.Time) (gone []Snapshot) {
	if r == (Retention{}) {
		return nil
	}
	var kept []Snapshot
	count, bytes := int64(0), int64(0)
	for _, s := range all {
		if s.Kept && s.State == SnapshotReady {
			kept = append(kept, s)
			count++
			bytes += s.Bytes
		}
	}
	slices.SortStableFunc(kept, func(a, b Snapshot) int {
		if named := (a.Name != ""); named != (b.Name != "") {
			if named {
				return 1
			}
			return -1
		}
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	for _, s := range kept {
		old := r.Age > 0 && now.Sub(s.CreatedAt) >= r.Age
		if s.Uses > 0 || !old && (r.Snapshots == 0 || count <= r.Snapshots) && (r.Bytes == 0 || bytes <= r.Bytes) {
			continue
		}
		gone = append(gone, s)
		count--
		bytes -= s.Bytes
	}
	return gone
}
