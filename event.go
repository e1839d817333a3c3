package sandbox

// EventKind is what kind of SecurityEvent something is.
type EventKind string

const (
	EventEgressDenied EventKind = "egress.denied" // a network policy refused connections or names
	EventAuthFailed   EventKind = "auth.failed"   // a credential was not valid, or may not do this
	EventQuotaHit     EventKind = "quota.hit"     // a Tenant's Quota refused something
	EventLimitKill    EventKind = "limit.kill"    // a limit of a Sandbox ended a program, or the Sandbox

	EventTenantSuspended EventKind = "tenant.suspended" // an operator suspended a Tenant
	EventTenantResumed   EventKind = "tenant.resumed"   // an operator had it go on
)

// EventKinds lists every EventKind.
func EventKinds() []EventKind {
	return []EventKind{EventEgressDenied, EventAuthFailed, EventQuotaHit, EventLimitKill, EventTenantSuspended, EventTenantResumed}
}

// SecurityEvent is something that an operator may want to know of at once. The
// audit log and the network logs are what is kept; events are told, and may be
// lost. Fields but Kind may be empty.
type SecurityEvent struct {
	Kind      EventKind
	Tenant    TenantID
	User      string
	Key       string // ID of the API Key
	Remote    string // address of the client
	Sandbox   string // ID
	Operation string // as AuditEntry.Operation
	Reason    string // a word of ours
	Count     int64  // how often it happened; zero: once
}
