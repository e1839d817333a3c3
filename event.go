package sandbox

import (
	"slices"
	"strings"
	"time"
)

// EventKind is what kind of Event something is.
type EventKind string

// Events of security, which whoever saw them tells.
const (
	EventEgressDenied EventKind = "egress.denied" // a network policy refused connections or names
	EventAuthFailed   EventKind = "auth.failed"   // a credential was not valid, or may not do this
	EventQuotaHit     EventKind = "quota.hit"     // a Tenant's Quota refused something
	EventLimitKill    EventKind = "limit.kill"    // a limit of a Sandbox ended a program, or the Sandbox

	EventTenantSuspended EventKind = "tenant.suspended" // an operator suspended a Tenant
	EventTenantResumed   EventKind = "tenant.resumed"   // an operator had it go on
)

// Events of life, which the Store records with the change that they tell of.
const (
	EventSandboxCreated EventKind = "sandbox.created" // it runs for the first time
	EventSandboxForked  EventKind = "sandbox.forked"  // the same, of one that began as a copy of another
	EventSandboxPaused  EventKind = "sandbox.paused"
	EventSandboxResumed EventKind = "sandbox.resumed"
	EventSandboxEnded   EventKind = "sandbox.ended"

	EventSnapshotCreated EventKind = "snapshot.created" // one that is kept is whole
	EventSnapshotDeleted EventKind = "snapshot.deleted" // somebody deleted it, or a Quota let it go

	EventTemplateBuilt  EventKind = "template.built"
	EventTemplateFailed EventKind = "template.failed"
)

// ReasonBootLost says of EventSandboxPaused that the Sandbox went back to what was
// saved of it, because its Boot was lost. ReasonRetention says of
// EventSnapshotDeleted that a Quota let it go.
const (
	ReasonBootLost  = "boot_lost"
	ReasonRetention = "retention"
)

// EventKinds lists every EventKind, those of security first.
func EventKinds() []EventKind {
	return append(SecurityEventKinds(),
		EventSandboxCreated, EventSandboxForked, EventSandboxPaused, EventSandboxResumed, EventSandboxEnded,
		EventSnapshotCreated, EventSnapshotDeleted, EventTemplateBuilt, EventTemplateFailed)
}

// SecurityEventKinds lists those of security.
func SecurityEventKinds() []EventKind {
	return []EventKind{EventEgressDenied, EventAuthFailed, EventQuotaHit, EventLimitKill, EventTenantSuspended, EventTenantResumed}
}

// ParseEventKinds reads kinds with commas between; "sandbox.*" is all whose names
// begin so, and "*" is all. They come in the order of EventKinds, each once.
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
			return nil, Errorf(Invalid, "there is no type of event %.40q", word)
		}
	}
	return slices.DeleteFunc(EventKinds(), func(k EventKind) bool { return !slices.Contains(wanted, k) }), nil
}

// Event is something that somebody may want to know of at once. Fields but Kind may
// be empty.
type Event struct {
	// ID tells repeats apart. Who tells of an Event leaves it empty, or names what
	// must be told once at most.
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
	Snapshot  string // ID; of a Sandbox that it began from, or is paused in
	Parent    string // ID of the Sandbox that this one is a copy of, while that is on record: not of one elsewhere
	Build     string // ID of a Template's build
	Operation string // as AuditEntry.Operation
	Reason    string // a word of ours
	// Version is that of the Sandbox's record: of two Events the one with the lower
	// came first.
	Version int64
}

// NewEventID returns a fresh ID of an Event: "e" and 20 of [a-z0-9].
func NewEventID() string { return eventID.fresh() }

// LifeEvent is what kind of Event it is that a Sandbox which was in a State becomes
// s; empty: none. One that never ran has no Events.
func (s *Sandbox) LifeEvent(before State) EventKind {
	switch {
	case before == Starting && s.State == Running:
		return EventSandboxCreated
	case (before == Pausing || before == Running) && s.State == Paused:
		return EventSandboxPaused
	case before == Resuming && s.State == Running:
		return EventSandboxResumed
	case before != Ended && s.State == Ended && !s.StartedAt.IsZero():
		return EventSandboxEnded
	}
	return ""
}

// Event is what is told of a build that is over; false while it goes on.
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
