package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Quota bounds the total resources of one Tenant: of its Sandboxes that have not ended,
// and of its Snapshots, Volumes and Templates. A zero field sets no bound.
type Quota struct {
	Sandboxes   int64   `json:"sandboxes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	DiskBytes   int64   `json:"disk_bytes,omitempty"`
	// CreatesPerMinute includes Sandboxes that have ended. It excludes Sandboxes with
	// CauseRefused: request rate limits bound refused creates.
	CreatesPerMinute int64 `json:"creates_per_minute,omitempty"`
	// SessionLength bounds each run of a Sandbox, from its start or resume; then its
	// OnTimeout acts.
	SessionLength time.Duration `json:"session_length,omitempty"`
	// EgressBytes bounds the bytes that connections of all Sandboxes send in a UTC month,
	// as UsageStore counts them. Beyond it connections are cut, and new ones are refused.
	EgressBytes int64 `json:"egress_bytes,omitempty"`
	// Bandwidth is the upper bound of one Sandbox's Limits.Bandwidth.
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// SnapshotBytes bounds the total size of all Snapshots when another is taken or kept;
	// shared bytes count in full. Snapshots of pauses count too, but a pause is never
	// refused.
	SnapshotBytes int64 `json:"snapshot_bytes,omitempty"`
	// Volumes bounds the number of Volumes, VolumeBytes the sum of their MaxBytes.
	Volumes     int64 `json:"volumes,omitempty"`
	VolumeBytes int64 `json:"volume_bytes,omitempty"`
	// TemplateBytes bounds the total size of the Tenant's Template images on disk. Each
	// image counts once, however many tags and versions name it. Images that the
	// operator's Templates also name do not count.
	TemplateBytes int64 `json:"template_bytes,omitempty"`
	// Retention deletes old Snapshots; the other bounds refuse new ones.
	Retention Retention `json:"retention,omitzero"`
}

// CreateWindow is how long a create counts for Quota.CreatesPerMinute.
const CreateWindow = time.Minute

// QuotaUse is a Tenant's use of its Quota. Sandboxes count with their whole Shape.
type QuotaUse struct {
	Sandboxes     int64
	CPUs          float64
	MemoryBytes   int64
	DiskBytes     int64
	Creates       int64 // within CreateWindow
	Snapshots     int64 // only Kept ones
	SnapshotBytes int64 // of all Snapshots, Kept or not
	Volumes       int64 // including those being deleted
	VolumeBytes   int64 // sum of their MaxBytes
}

// Admit returns Exhausted, naming the bound, when one more Sandbox of shape would exceed
// the Quota. Its Cause is ErrOverQuota.
func (q Quota) Admit(used QuotaUse, shape Shape) error {
	if err := q.refusal(used, shape); err != nil {
		return err.WithCause(ErrOverQuota)
	}
	return nil
}

// AdmitSnapshot returns Exhausted as Admit does when another Snapshot of size bytes would
// exceed the Quota. Size zero, for a size not known yet, is admitted while any room is
// left.
func (q Quota) AdmitSnapshot(used QuotaUse, size int64) error {
	const mib = 1 << 20
	const remedy = "delete some first, or end sessions that are paused"
	up := func(n int64) int64 { return (n + mib - 1) / mib }
	switch {
	case q.SnapshotBytes == 0:
		return nil
	case used.SnapshotBytes >= q.SnapshotBytes:
		return Errorf(Exhausted, "the quota of %d MiB of snapshots is used up, they have %d MiB: %s",
			q.SnapshotBytes/mib, up(used.SnapshotBytes), remedy).WithCause(ErrOverQuota)
	case used.SnapshotBytes+size > q.SnapshotBytes:
		return Errorf(Exhausted, "the quota of %d MiB of snapshots has %d MiB left, and this one has %d MiB: %s",
			q.SnapshotBytes/mib, (q.SnapshotBytes-used.SnapshotBytes)/mib, up(size), remedy).WithCause(ErrOverQuota)
	}
	return nil
}

// AdmitVolume returns Exhausted as Admit does when another Volume of size bytes would
// exceed the Quota.
func (q Quota) AdmitVolume(used QuotaUse, size int64) error {
	const mib = 1 << 20
	switch {
	case q.Volumes > 0 && used.Volumes+1 > q.Volumes:
		return Errorf(Exhausted, "the quota of %d volumes is used up: delete one first", q.Volumes).WithCause(ErrOverQuota)
	case q.VolumeBytes > 0 && used.VolumeBytes+size > q.VolumeBytes:
		return Errorf(Exhausted, "the quota of %d MiB of volumes has %d left, and this one wants %d: ask for less, or delete one first",
			q.VolumeBytes/mib, max(q.VolumeBytes-used.VolumeBytes, 0)/mib, size/mib).WithCause(ErrOverQuota)
	}
	return nil
}

// AdmitTemplate returns Exhausted as Admit does when another image of size bytes would
// exceed the Quota, where used is the bytes of the Tenant's images. Size zero, for a size
// not known yet, is admitted while any room is left.
func (q Quota) AdmitTemplate(used, size int64) error {
	const remedy = "delete templates or versions first"
	switch {
	case q.TemplateBytes == 0:
		return nil
	case used >= q.TemplateBytes:
		return Errorf(Exhausted, "the quota of %s of templates is used up, they have %s: %s",
			mebibytes(q.TemplateBytes), mebibytes(used), remedy).WithCause(ErrOverQuota)
	case used+size > q.TemplateBytes:
		return Errorf(Exhausted, "the quota of %s of templates has %s left, and this one has %s: %s",
			mebibytes(q.TemplateBytes), mebibytes(q.TemplateBytes-used), mebibytes(size), remedy).WithCause(ErrOverQuota)
	}
	return nil
}

// mebibytes formats n bytes in MiB with two decimals, so that nearly equal sizes can be
// distinguished.
func mebibytes(n int64) string {
	return strconv.FormatFloat(math.Round(float64(n)/(1<<20)*100)/100, 'f', -1, 64) + " MiB"
}

// AdmitTimeout returns Exhausted as Admit does for a timeout longer than SessionLength.
func (q Quota) AdmitTimeout(timeout time.Duration) error {
	if q.SessionLength == 0 || timeout <= q.SessionLength {
		return nil
	}
	return Errorf(Exhausted, "the quota lets a session run for %d minutes at a time, and timeout_seconds asks for %d seconds",
		q.SessionLength/time.Minute, int64(timeout.Seconds())).WithCause(ErrOverQuota)
}

// AdmitEgress returns Exhausted as Admit does when EgressBytes is used up this month and
// network is not NetworkNone.
func (q Quota) AdmitEgress(sent int64, network NetworkPolicy) error {
	const mib = 1 << 20
	if q.EgressBytes == 0 || sent < q.EgressBytes || network == NetworkNone {
		return nil
	}
	return Errorf(Exhausted, "the quota of %d MiB a month to the outside is used up, %d MiB were sent: create the session with network %q",
		q.EgressBytes/mib, sent/mib, NetworkNone).WithCause(ErrOverQuota)
}

// AdmitBandwidth returns Exhausted as Admit does for a Limits.Bandwidth above Bandwidth.
func (q Quota) AdmitBandwidth(asked int64) error {
	if q.Bandwidth == 0 || asked <= q.Bandwidth {
		return nil
	}
	return Errorf(Exhausted, "the quota lets a session carry %d Mbit/s, and bandwidth_mbps asks for %d", q.Bandwidth/Megabit, asked/Megabit).
		WithCause(ErrOverQuota)
}

// BoundBandwidth returns n, a Limits.Bandwidth, or Bandwidth when n exceeds it.
func (q Quota) BoundBandwidth(n int64) int64 {
	if q.Bandwidth > 0 && (n == 0 || n > q.Bandwidth) {
		return q.Bandwidth
	}
	return n
}

// ErrOverQuota is the Cause of every refusal by a Quota.
var ErrOverQuota = errors.New("over the quota")

// refusal returns the error of Admit; nil: admitted.
func (q Quota) refusal(used QuotaUse, shape Shape) *Error {
	const mib = 1 << 20
	switch {
	case q.Sandboxes > 0 && used.Sandboxes+1 > q.Sandboxes:
		return Errorf(Exhausted, "the quota of %d sandboxes is used up: end one first", q.Sandboxes)
	case q.CPUs > 0 && used.CPUs+shape.CPUs > q.CPUs+1e-9:
		return Errorf(Exhausted, "the quota of %g cpus has %g left, and this sandbox wants %g", q.CPUs, max(q.CPUs-used.CPUs, 0), shape.CPUs)
	case q.MemoryBytes > 0 && used.MemoryBytes+shape.MemoryBytes > q.MemoryBytes:
		return Errorf(Exhausted, "the quota of %d MiB of memory has %d left, and this sandbox wants %d", q.MemoryBytes/mib, max(q.MemoryBytes-used.MemoryBytes, 0)/mib, shape.MemoryBytes/mib)
	case q.DiskBytes > 0 && used.DiskBytes+shape.DiskBytes > q.DiskBytes:
		return Errorf(Exhausted, "the quota of %d MiB of disk has %d left, and this sandbox wants %d", q.DiskBytes/mib, max(q.DiskBytes-used.DiskBytes, 0)/mib, shape.DiskBytes/mib)
	case q.CreatesPerMinute > 0 && used.Creates+1 > q.CreatesPerMinute:
		err := Errorf(Exhausted, "the quota of %d new sandboxes a minute is used up: wait", q.CreatesPerMinute)
		err.RetryAfter = CreateWindow / 4
		return err
	}
	return nil
}

type quotaField struct {
	name string
	set  func(*Quota, float64)
	get  func(Quota) float64
	unit float64
}

// quotaFields maps the field names of ParseQuota and String to the fields of Quota.
var quotaFields = []quotaField{
	{"sandboxes", func(q *Quota, n float64) { q.Sandboxes = int64(n) }, func(q Quota) float64 { return float64(q.Sandboxes) }, 1},
	{"cpus", func(q *Quota, n float64) { q.CPUs = n }, func(q Quota) float64 { return q.CPUs }, 1},
	{"memory_mb", func(q *Quota, n float64) { q.MemoryBytes = int64(n) }, func(q Quota) float64 { return float64(q.MemoryBytes) }, 1 << 20},
	{"disk_mb", func(q *Quota, n float64) { q.DiskBytes = int64(n) }, func(q Quota) float64 { return float64(q.DiskBytes) }, 1 << 20},
	{"creates_per_minute", func(q *Quota, n float64) { q.CreatesPerMinute = int64(n) }, func(q Quota) float64 { return float64(q.CreatesPerMinute) }, 1},
	{
		"session_minutes", func(q *Quota, n float64) { q.SessionLength = time.Duration(min(n, maxSessionMinutes)) * time.Minute },
		func(q Quota) float64 { return q.SessionLength.Minutes() }, 1,
	},
	{"egress_mb", func(q *Quota, n float64) { q.EgressBytes = int64(n) }, func(q Quota) float64 { return float64(q.EgressBytes) }, 1 << 20},
	{"bandwidth_mbps", func(q *Quota, n float64) { q.Bandwidth = int64(n) }, func(q Quota) float64 { return float64(q.Bandwidth) }, Megabit},
	{"snapshot_mb", func(q *Quota, n float64) { q.SnapshotBytes = int64(n) }, func(q Quota) float64 { return float64(q.SnapshotBytes) }, 1 << 20},
	{"volumes", func(q *Quota, n float64) { q.Volumes = int64(n) }, func(q Quota) float64 { return float64(q.Volumes) }, 1},
	{"volume_mb", func(q *Quota, n float64) { q.VolumeBytes = int64(n) }, func(q Quota) float64 { return float64(q.VolumeBytes) }, 1 << 20},
	{"template_mb", func(q *Quota, n float64) { q.TemplateBytes = int64(n) }, func(q Quota) float64 { return float64(q.TemplateBytes) }, 1 << 20},
	{"keep_snapshots", func(q *Quota, n float64) { q.Retention.Snapshots = int64(n) }, func(q Quota) float64 { return float64(q.Retention.Snapshots) }, 1},
	{"keep_snapshot_mb", func(q *Quota, n float64) { q.Retention.Bytes = int64(n) }, func(q Quota) float64 { return float64(q.Retention.Bytes) }, 1 << 20},
	{
		"keep_snapshot_hours", func(q *Quota, n float64) { q.Retention.Age = time.Duration(min(n, maxKeepHours)) * time.Hour },
		func(q Quota) float64 { return q.Retention.Age.Hours() }, 1,
	},
}

// maxSessionMinutes is a century, too.
const maxSessionMinutes = maxKeepHours * 60

// maxKeepHours is a century; a higher bound has no effect.
const maxKeepHours = 100 * 366 * 24

// QuotaFields returns the field names of ParseQuota, separated by commas.
func QuotaFields() string {
	names := make([]string, len(quotaFields))
	for i, f := range quotaFields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

// ParseQuota parses comma-separated FIELD=NUMBER, with FIELD of QuotaFields; "off" sets
// no bounds. Only cpus may have a fraction.
func ParseQuota(text string) (Quota, error) {
	var q Quota
	if text == "off" {
		return q, nil
	}
	seen := map[string]bool{}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		n, err := strconv.ParseFloat(value, 64)
		known := slices.ContainsFunc(quotaFields, func(f quotaField) bool { return f.name == name })
		if !known || seen[name] {
			return q, Errorf(Invalid, "%q is not a quota: write FIELD=NUMBER, each field once, of %s; or off", item, QuotaFields())
		}
		if err != nil {
			n = 0
		}
		if err := q.set(name, n); err != nil {
			return q, err
		}
		seen[name] = true
	}
	return q, nil
}

// QuotaOf returns the Quota with these fields, named as in ParseQuota.
func QuotaOf(fields map[string]float64) (q Quota, err error) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if err := q.set(name, fields[name]); err != nil {
			return q, err
		}
	}
	return q, nil
}

// set sets the field called name to n.
func (q *Quota) set(name string, n float64) error {
	const most = 1e9
	for _, f := range quotaFields {
		if f.name != name {
			continue
		}
		if !(n > 0) || n > most || (name != "cpus" && n != math.Trunc(n)) {
			return Errorf(Invalid, "%s must be a number more than 0, and whole unless it is cpus; leave a field out for no limit", name)
		}
		f.set(q, n*f.unit)
		return nil
	}
	return Errorf(Invalid, "no quota field %.40q: the fields are %s", name, QuotaFields())
}

// String returns q in the syntax of ParseQuota.
func (q Quota) String() string {
	var parts []string
	for _, f := range quotaFields {
		if n := f.get(q); n != 0 {
			parts = append(parts, fmt.Sprintf("%s=%s", f.name, strconv.FormatFloat(n/f.unit, 'f', -1, 64)))
		}
	}
	if len(parts) == 0 {
		return "off"
	}
	return strings.Join(parts, ",")
}

// QuotaStore keeps the Quotas of Tenants that have their own. The Store has a default
// Quota for all others. InsertSandbox, InsertSnapshot and InsertVolume enforce them;
// Templates enforces Quota.TemplateBytes where the images are stored.
type QuotaStore interface {
	// SetQuota gives a Tenant its own Quota; nil resets it to the default.
	SetQuota(ctx context.Context, tenant TenantID, q *Quota) error
	// QuotaOf returns the Quota in force for a Tenant, whether it is the Tenant's own,
	// and its current use.
	QuotaOf(ctx context.Context, tenant TenantID) (q Quota, own bool, used QuotaUse, err error)
	// TenantQuota returns only the Quota, which is cheaper.
	TenantQuota(ctx context.Context, tenant TenantID) (Quota, error)
}
