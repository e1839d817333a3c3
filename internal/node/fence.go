package node

// fenceSize is how many Sandboxes one generation of a fence remembers.
const fenceSize = 1 << 15

// A fence remembers the highest Boot number seen of the Sandboxes used lately.
// It forgets the oldest half when it is full: by then an old owner's request
// has long timed out. It is guarded by its user.
type fence struct{ recent, older map[string]int64 }

// highest returns the highest number seen; 0 for none.
func (f *fence) highest(sandboxID string) int64 {
	return max(f.recent[sandboxID], f.older[sandboxID])
}

// see remembers number if it is the highest.
func (f *fence) see(sandboxID string, number int64) {
	number = max(number, f.highest(sandboxID))
	if len(f.recent) >= fenceSize {
		f.older, f.recent = f.recent, nil
	}
	if f.recent == nil {
		f.recent = map[string]int64{}
	}
	f.recent[sandboxID] = number
}
