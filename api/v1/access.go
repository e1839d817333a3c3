package v1

import (
	"encoding/json"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Key is the record of an API key.
type Key struct {
	ID         string          `json:"key_id"`
	Name       string          `json:"name"`
	Role       string          `json:"role"`
	Scopes     []sandbox.Scope `json:"scopes"`
	Hint       string          `json:"hint"`                 // the end of the key
	CreatedBy  string          `json:"created_by,omitempty"` // a user; empty: none
	CreatedAt  time.Time       `json:"created_at"`
	ExpiresAt  time.Time       `json:"expires_at,omitzero"`   // zero: never
	LastUsedAt time.Time       `json:"last_used_at,omitzero"` // zero: never
	Previous   *PreviousKey    `json:"previous,omitempty"`    // nil: no longer valid
	// Secret is the key itself. Only the response that created or rotated the key has it.
	Secret string `json:"key,omitempty"`
}

// KeyOf returns the JSON of a record, without the key itself.
func KeyOf(k sandbox.Key) Key {
	v := Key{
		ID: k.ID, Name: k.Name, Role: RoleName(k.Role), Scopes: k.Scopes, Hint: k.Hint, CreatedBy: k.CreatedBy,
		CreatedAt: Time(k.CreatedAt), ExpiresAt: Time(k.ExpiresAt), LastUsedAt: Time(k.LastUsed()),
	}
	if p := k.Previous; p.ValidAt(time.Now()) {
		v.Previous = &PreviousKey{Hint: p.Hint, ValidUntil: Time(p.Until), LastUsedAt: Time(p.UsedAt)}
	}
	return v
}

// RoleUser is the clients' name for the developer Role.
const RoleUser = "user"

// RoleName is the clients' name for a Role.
func RoleName(r sandbox.Role) string {
	if r == sandbox.RoleDeveloper {
		return RoleUser
	}
	return string(r)
}

// PreviousKey is the key before the last rotation, while it is still valid.
type PreviousKey struct {
	Hint       string    `json:"hint"`
	ValidUntil time.Time `json:"valid_until"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
}

// Keys are all keys of a tenant, newest first.
type Keys struct {
	Keys []Key `json:"keys"`
}

// Secret is the record of a secret, without its value.
type Secret struct {
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Hosts       []string  `json:"hosts,omitempty"` // that it may be sent to; empty: any
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// SecretOf returns the JSON of a record.
func SecretOf(s sandbox.Secret) Secret {
	return Secret{Name: s.Name, Description: s.Description, Hosts: s.Hosts, CreatedAt: Time(s.CreatedAt), UpdatedAt: Time(s.UpdatedAt)}
}

// Secrets are all secrets of a tenant, by name.
type Secrets struct {
	Secrets []Secret `json:"secrets"`
}

// User is a user of a tenant, as the tenant's admins see them.
type User struct {
	ID         string    `json:"user_id"`
	Name       string    `json:"name,omitempty"`
	Email      string    `json:"email,omitempty"`
	Role       string    `json:"role,omitempty"` // empty: the role is in their first token
	RoleGiven  bool      `json:"role_given"`     // by an admin, not by their token
	State      string    `json:"state"`
	Source     string    `json:"source"`
	Issuer     string    `json:"issuer,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	LastSeenAt time.Time `json:"last_seen_at,omitzero"` // zero: never
}

// UserOf returns the JSON of a record.
func UserOf(u sandbox.User) User {
	return User{
		ID: u.ID, Name: u.Name, Email: u.Email, Role: RoleName(u.Role()), RoleGiven: u.Given != "", State: string(u.State),
		Source: string(u.Source), Issuer: u.Issuer, CreatedAt: Time(u.CreatedAt), LastSeenAt: Time(u.SeenAt),
	}
}

// Users is a page of a list.
type Users struct {
	Users []User `json:"users"`
	Next  string `json:"next_cursor,omitempty"` // empty: this is the last page
}

// Tenant is the record of a tenant, as operators see it.
type Tenant struct {
	ID        string        `json:"tenant"`
	Name      string        `json:"name"`
	Parent    string        `json:"parent,omitempty"`
	State     string        `json:"state"`
	CreatedAt time.Time     `json:"created_at"`
	Suspended *Suspension   `json:"suspended,omitempty"` // nil: not suspended
	Quota     *TenantLimits `json:"quota,omitempty"`     // nil in lists
}

// TenantOf returns the JSON of a record, without the quota.
func TenantOf(t sandbox.Tenant) Tenant {
	v := Tenant{
		ID: string(t.ID), Name: t.Name, Parent: string(t.Parent), State: string(t.State()), CreatedAt: Time(t.CreatedAt),
	}
	if t.Suspended != nil {
		v.Suspended = &Suspension{At: Time(t.Suspended.At), Reason: t.Suspended.Reason}
	}
	return v
}

// Suspension is the time and reason of a tenant's suspension.
type Suspension struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

// Tenants is a page of a list.
type Tenants struct {
	Tenants []Tenant `json:"tenants"`
	Next    string   `json:"next_cursor,omitempty"` // empty: this is the last page
}

// TenantQuota is the quota of a tenant.
type TenantQuota struct {
	Tenant string `json:"tenant"`
	TenantLimits
}

// TenantLimits are the limits of a tenant and its usage.
type TenantLimits struct {
	Own    bool  `json:"own"` // set for this tenant; false: the default
	Limits Quota `json:"limits"`
	Used   Quota `json:"used"`
}

// QuotaState are the limits of the caller's tenant and its usage.
type QuotaState struct {
	Limits Quota `json:"limits"`
	Used   Quota `json:"used"`
}

// Quota has the numbers of a quota, or of its usage. nil means not limited, or not
// counted.
type Quota struct {
	Sandboxes         *int64   `json:"sandboxes,omitempty"`
	CPUs              *float64 `json:"cpus,omitempty"`
	MemoryMB          *int64   `json:"memory_mb,omitempty"`
	DiskMB            *int64   `json:"disk_mb,omitempty"`
	CreatesPerMinute  *int64   `json:"creates_per_minute,omitempty"`
	SessionMinutes    *int64   `json:"session_minutes,omitempty"`
	EgressMB          *int64   `json:"egress_mb,omitempty"`
	BandwidthMbps     *int64   `json:"bandwidth_mbps,omitempty"`
	Snapshots         *int64   `json:"snapshots,omitempty"`
	SnapshotMB        *int64   `json:"snapshot_mb,omitempty"`
	Volumes           *int64   `json:"volumes,omitempty"`
	VolumeMB          *int64   `json:"volume_mb,omitempty"`
	TemplateMB        *int64   `json:"template_mb,omitempty"`
	KeepSnapshots     *int64   `json:"keep_snapshots,omitempty"`
	KeepSnapshotMB    *int64   `json:"keep_snapshot_mb,omitempty"`
	KeepSnapshotHours *int64   `json:"keep_snapshot_hours,omitempty"`
}

// Numbers returns the fields of q that are not nil, by their names in JSON.
func (q Quota) Numbers() map[string]float64 {
	numbers := map[string]float64{}
	if text, err := json.Marshal(q); err == nil { // encoding fails only for NaN
		_ = json.Unmarshal(text, &numbers)
	}
	return numbers
}

// Usage is one row of usage. Fields that the rows are not grouped by are absent.
type Usage struct {
	Day              string  `json:"day,omitempty"`
	Tenant           string  `json:"tenant,omitempty"`
	SandboxID        string  `json:"sandbox_id,omitempty"`
	Seconds          float64 `json:"seconds"`
	CPUSeconds       float64 `json:"vcpu_seconds"`
	MemoryGiBSeconds float64 `json:"memory_gib_seconds"`
	DiskGiBSeconds   float64 `json:"disk_gib_seconds"`
	EgressBytes      int64   `json:"egress_bytes"`
	IngressBytes     int64   `json:"ingress_bytes"`
	Cost             *Cost   `json:"cost,omitempty"` // nil: the operator configured no prices
}

// Cost is the cost of a row of usage.
type Cost struct {
	Currency string  `json:"currency"`
	CPU      float64 `json:"vcpu"`
	Memory   float64 `json:"memory"`
	Disk     float64 `json:"disk"`
	Egress   float64 `json:"egress"`
	Total    float64 `json:"total"`
}

// UsageRows is a page of usage from one day to another, both included.
type UsageRows struct {
	From string  `json:"from"`
	To   string  `json:"to"`
	Rows []Usage `json:"rows"`
	Next string  `json:"next_cursor,omitempty"` // empty: this is the last page
}

// AuditEntry is an entry of the audit log, as its tenant sees it.
type AuditEntry struct {
	At        time.Time `json:"at"`
	User      string    `json:"user"`
	Role      string    `json:"role,omitempty"`
	KeyID     string    `json:"key_id,omitempty"`
	Operation string    `json:"operation"`
	Target    string    `json:"target,omitempty"`
	SandboxID string    `json:"sandbox_id,omitempty"`
	Detail    string    `json:"detail,omitempty"`
	Remote    string    `json:"remote,omitempty"`
	RequestID string    `json:"request_id,omitempty"`
	Status    int       `json:"status,omitempty"`
	Code      string    `json:"code,omitempty"`
	Outcome   string    `json:"outcome"` // "ok", "denied" or "failed"
	Hash      string    `json:"hash"`
}

// AuditEntries is a page of the audit log, newest first.
type AuditEntries struct {
	Entries []AuditEntry `json:"entries"`
	Next    string       `json:"next_cursor,omitempty"` // empty: this is the last page
}

// AuditEntryOf returns the JSON of a record.
func AuditEntryOf(e sandbox.AuditEntry) AuditEntry {
	v := AuditEntry{
		At: Time(e.At), User: e.User, KeyID: e.Key, Operation: e.Operation, Target: e.Target, SandboxID: e.Sandbox,
		Detail: e.Detail, Remote: e.Remote, RequestID: e.Request, Status: e.Status, Code: e.Code,
		Outcome: string(e.Outcome()), Hash: e.Hash.String(),
	}
	if e.Role != "" {
		v.Role = RoleName(e.Role)
	}
	return v
}
