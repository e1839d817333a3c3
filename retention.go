package sandbox

import (
	"cmp"
	"slices"
	"time"
)

// Retention bounds how many of the Snapshots that a Tenant keeps stay. A zero
// field bounds nothing.
type Retention struct {
	Snapshots int64         `json:"snapshots,omitempty"`
	Bytes     int64         `json:"bytes,omitempty"`
	Age       time.Duration `json:"age,omitempty"`
}

// Beyond returns those of all a Tenant's Snapshots that r lets go, in the order in
// which they do: without a name before those with one, and of these the oldest
// first. One that a Sandbox refers to stays, whatever r says, and so do those that
// are not Kept, which go when nobody refers to them.
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
