package sandbox

import (
	"slices"
	"strings"
	"time"
)

// EventKind is the kind of an Event.
type EventKind string

// Security events, reported by the component that saw them.
const (
	EventEgressDenied EventKind = "egress.denied" // a network policy refused connections or name lookups
	EventAuthFailed   EventKind = "auth.failed"   // a credential was invalid or not allowed to do this
	EventQuotaHit     EventKind = "quota.hit"     // a Tenant's Quota refused something
	EventLimitKill    EventKind = "limit.kill"    // a limit of a Sandbox ended a program, or the Sandbox

	EventTenantSuspended EventKind = "tenant.suspended" // an operator suspended a Tenant
	EventTenantResumed   EventKind = "tenant.resumed"   // an operator resumed a Tenant
)

// Life-cycle events, recorded by the Store in the transaction of the change.
const (
	EventSandboxCreated EventKind = "sandbox.created" // a Sandbox runs for the first time
	EventSandboxForked  EventKind = "sandbox.forked"  // the same for a fork
	EventSandboxPaused  EventKind = "sandbox.paused"
	EventSandboxResumed EventKind = "sandbox.resumed"
	EventSandboxEnded   EventKind = "sandbox.ended"

	EventSnapshotCreated EventKind = "snapshot.created" // a Kept Snapshot is ready
	EventSnapshotDeleted EventKind = "snapshot.deleted" // deleted by a request or by Retention

	EventTemplateBuilt  EventKind = "template.built"
	EventTemplateFailed EventKind = "template.failed"
)

// ReasonBootLost is the Reason of EventSandboxPaused when the Sandbox returned to its
// last Snapshot because its Boot was lost. ReasonRetention is the Reason of
// EventSnapshotDeleted when the Tenant's Retention deleted the Snapshot.
const (
	ReasonBootLost  = "boot_lost"
	ReasonRetention = "retention"
)

// EventKinds lists every EventKind, security events first.
func EventKinds() []EventKind {
	return append(SecurityEventKinds(),
		EventSandboxCreated, EventSandboxForked, EventSandboxPaused, EventSandboxResumed, EventSandboxEnded,
		EventSnapshotCreated, EventSnapshotDeleted, EventTemplateBuilt, EventTemplateFailed)
}

// SecurityEventKinds lists the kinds of security events.
func SecurityEventKinds() []EventKind {
	return []EventKind{EventEgressDenied, EventAuthFailed, EventQuotaHit, EventLimitKill, EventTenantSuspended, EventTenantResumed}
}

// ParseEventKinds parses comma-separated kinds. "sandbox.*" selects all kinds with that
// prefix, and "*" selects all. The result is in the order of EventKinds, without
// duplicates.
func ParseEventKinds(text string) ([]EventKind, error) {
	var wanted []EventKind
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		prefix, many := strings.CutSuffix(word, "*")
		met := false
		for _, k := range EventKinds() {
			if string(k) == word || many && (prefix == "" || strings.HasSuffix(prefix, ".") && strings.HasPrefix(string(k), prefix)) {
				wanted, met = append(wanted, k), true
			}
		}
		if !met {
			return nil, Errorf(Invalid, "no type of event %.40q", word)
		}
	}
	return slices.DeleteFunc(EventKinds(), func(k EventKind) bool { return !slices.Contains(wanted, k) }), nil
}

// Event is a notification for Webhooks. All fields but Kind may be empty.
type Event struct {
	// ID identifies repeats of one Event. The reporter leaves it empty, or sets it for an
	// Event that must be delivered at most once.
	ID        string
	Kind      EventKind
	At        time.Time // zero: now
	Count     int64     // how often it happened; zero: once
	Tenant    TenantID
	User      string
	Key       string // ID of the API Key
	Remote    string // address of the client
	Sandbox   string // ID
	Name      string // of the Sandbox or Snapshot
	Template  string
	Snapshot  string // ID; for a Sandbox, the Snapshot that it started from or is paused in
	Parent    string // ID of the Sandbox that it was forked from, if its record still exists here
	Build     string // ID of a Template's build
	Operation string // as AuditEntry.Operation
	Reason    string // a fixed word of the server, such as ReasonBootLost
	// Version is Sandbox.Version. It orders a Sandbox's Events.
	Version int64
}

// NewEventID returns a fresh ID of an Event: "e" and 20 of [a-z0-9].
func NewEventID() string { return eventID.fresh() }

// LifeEvent returns the kind of Event for a Sandbox that changes from the State before to
// s; empty: none. A Sandbox that never ran has no Events.
func (s *Sandbox) LifeEvent(before State) EventKind {
	switch {
	case before == Starting && s.State == Running:
		return EventSandboxCreated
	case (before == Pausing || before == Running) && s.State == Paused, before == Pausing && s.State == Resuming: // it moves to another Node
		return EventSandboxPaused
	case before == Resuming && s.State == Running:
		return EventSandboxResumed
	case before != Ended && s.State == Ended && !s.StartedAt.IsZero():
		return EventSandboxEnded
	}
	return ""
}

// Event returns the Event of a finished build; false while it runs.
func (b *TemplateBuild) Event() (Event, bool) {
	e := Event{ID: "e-" + b.ID, Kind: EventTemplateFailed, At: b.EndedAt, Tenant: b.Tenant, Template: b.Template, Build: b.ID}
	switch {
	case b.State == BuildReady:
		e.Kind = EventTemplateBuilt
	case b.State == BuildCancelled:
		e.Reason = string(BuildCancelled)
	case b.State == BuildFailed && b.Failure != nil:
		e.Reason = string(b.Failure.Code)
	case b.State == BuildFailed:
	default:
		return Event{}, false
	}
	return e, true
}
