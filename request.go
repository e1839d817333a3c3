package sandbox

import (
	"math"
	"time"
)

// Defaults holds the default properties of a new Sandbox, for fields that a request
// leaves out.
type Defaults struct {
	Timeout   time.Duration
	OnTimeout OnTimeout
}

// SessionDefaults returns the Defaults of a Sandbox that a client creates to keep.
func SessionDefaults() Defaults { return Defaults{DefaultSessionTimeout, OnTimeoutPause} }

// AcquireDefaults returns the Defaults of a Sandbox that a client borrows.
func AcquireDefaults() Defaults { return Defaults{DefaultAcquireTimeout, OnTimeoutEnd} }

// Fill sets the properties that r leaves out.
func (d Defaults) Fill(r *CreateRequest) {
	if r.Timeout == 0 {
		r.Timeout = d.Timeout
	}
	if r.OnTimeout == "" {
		r.OnTimeout = d.OnTimeout
	}
}

// IfExists selects the result of a create when a running Sandbox already has the name;
// empty: IfExistsFail.
type IfExists string

const (
	IfExistsFail   IfExists = "fail"   // Conflict
	IfExistsReturn IfExists = "return" // return that Sandbox
)

// Check returns Invalid for any other value.
func (i IfExists) Check() error {
	if i != "" && i != IfExistsFail && i != IfExistsReturn {
		return Errorf(Invalid, `if_exists must be "fail" or "return"`)
	}
	return nil
}

// Resources holds the Shape fields and limits that a request sets. A nil field is not
// set.
type Resources struct {
	Type          string // an instance type; empty: none
	CPUs          *float64
	MemoryMB      *int64 // MiB
	DiskMB        *int64 // MiB
	Pids          *int64
	BandwidthMbps *int64 // Mbit/s; 0: no limit
}

// Create sets the Shape and bandwidth of r. Fields that res does not set come from the
// instance type, or else from DefaultShape, even when res sets no field at all. If res
// sets only the bandwidth, r keeps its Shape, which may come from a Template or Snapshot.
func (res Resources) Create(r *CreateRequest) error {
	if n := res.bandwidth(); n != nil {
		r.Bandwidth = *n
	}
	if res == (Resources{BandwidthMbps: res.BandwidthMbps}) && res.BandwidthMbps != nil {
		return nil
	}
	s := DefaultShape()
	if res.Type != "" {
		var err error
		if s, err = ShapeOfType(res.Type); err != nil {
			return err
		}
	}
	if res.CPUs != nil {
		s.CPUs = *res.CPUs
	}
	for _, f := range []struct{ from, to *int64 }{
		{inBytes(res.MemoryMB), &s.MemoryBytes}, {inBytes(res.DiskMB), &s.DiskBytes}, {res.Pids, &s.Pids},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	r.Shape = s
	return s.Check()
}

// Change copies the limits that res sets into c. It returns Conflict if res sets an
// instance type.
func (res Resources) Change(c *Change) error {
	if res.Type != "" {
		return Errorf(Conflict, "the instance type cannot change while the sandbox runs: change cpus, memory_mb, pids or bandwidth_mbps, or create another one")
	}
	c.CPUs, c.MemoryBytes, c.DiskBytes, c.Pids = res.CPUs, inBytes(res.MemoryMB), inBytes(res.DiskMB), res.Pids
	c.Bandwidth = res.bandwidth()
	return nil
}

// bandwidth returns the bandwidth in bytes per second.
func (res Resources) bandwidth() *int64 {
	if res.BandwidthMbps == nil {
		return nil
	}
	return new(bounded(*res.BandwidthMbps) * Megabit)
}

// inBytes converts MiB to bytes.
func inBytes(n *int64) *int64 {
	if n == nil {
		return nil
	}
	return new(bounded(*n) << 20)
}

// bounded keeps n from overflowing when it is converted to another unit. An n above every
// limit stays above it.
func bounded(n int64) int64 { return min(max(n, -1), 1<<40) }

// VolumeBytes converts a requested Volume size from MiB to bytes. It returns Invalid when
// the size is out of bounds.
func VolumeBytes(sizeMB int64) (int64, error) {
	n := bounded(sizeMB) << 20
	return n, CheckVolumeBytes(n)
}

// Seconds converts the seconds in a request to a Duration. It reports whether n is more
// than 0 and at most math.MaxInt32.
func Seconds(n float64) (time.Duration, bool) {
	if !(n > 0) || n > math.MaxInt32 {
		return 0, false
	}
	return time.Duration(max(n*float64(time.Second), 1)), true
}

// NotSeconds returns the error for a field whose value Seconds refuses.
func NotSeconds(field, given string) error {
	return Errorf(Invalid, "%s must be a number of seconds, more than 0 and at most %d, not %.32s", field, math.MaxInt32, given)
}

const (
	// MaxPage bounds ListQuery.Limit and SnapshotQuery.Limit.
	MaxPage   = 100
	maxCursor = 512 // bytes
	maxStates = 8   // in a ListQuery
)

// PageLimit returns n, the limit in a list request, or Invalid unless it is from 1 to
// most.
func PageLimit(n, most int) (int, error) {
	if n < 1 || n > most {
		return 0, Errorf(Invalid, "limit must be a whole number from 1 to %d", most)
	}
	return n, nil
}

// CheckCursor returns Invalid for a cursor that is too long to be genuine.
func CheckCursor(cursor string) error {
	if len(cursor) > maxCursor {
		return Errorf(Invalid, "cursor is not one of an earlier page")
	}
	return nil
}

// Check returns Invalid when the query breaks a rule that can be checked from the query
// alone.
func (q ListQuery) Check() error {
	if err := CheckCursor(q.Cursor); err != nil {
		return err
	}
	if len(q.States) > maxStates {
		return Errorf(Invalid, "name at most %d states", maxStates)
	}
	for _, s := range q.States {
		if !s.Valid() {
			return Errorf(Invalid, "%.32q is not a state", string(s))
		}
	}
	return nil
}
