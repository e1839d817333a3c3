package sandbox

import (
	"context"
	"errors"
	"time"
)

// LeaderClaim asks to lead the processes of one role.
type LeaderClaim struct {
	Role string // of the process, "session-manager" for example
	// Holder is the identity of the process. A process that starts again is another
	// Holder: it has forgotten the work that it did as the former one.
	Holder string
	// Address is where other processes reach the Holder, "unix:PATH" or a URL.
	Address string
}

// Leader is the process that leads a role: of all processes of the role, only the leader
// changes records. The others stand by.
type Leader struct {
	LeaderClaim
	// Epoch counts the terms of the Role, from 1. A term ends when its lease expires
	// before it is renewed, and when its Holder resigns.
	Epoch int64
	// Left is how long the lease lasts from the read on, by the Store's clock; zero or
	// less: the term is over.
	Left time.Duration
}

// LeaderStore keeps the leader of each role.
type LeaderStore interface {
	// Lead gives the claim's Holder the lease of its Role for life from now, by the
	// Store's clock. It renews a lease that the Holder has, in the same term; an expired
	// lease begins a new term. Conflict while another Holder leads.
	Lead(ctx context.Context, c LeaderClaim, life time.Duration) (Leader, error)
	// Resign ends the term of a Holder. It has no effect if the Holder does not lead.
	Resign(ctx context.Context, role, holder string) error
	// LeaderOf returns the leader of a role, or the latest one if no term lasts. NotFound
	// if the role never had one.
	LeaderOf(ctx context.Context, role string) (Leader, error)
	// Under returns a Store on the same database whose writes need the term of l: once it
	// is over, every write changes nothing and is Unavailable, with the Cause
	// ErrNotLeading. The first such write and each later one call lost, unless it is nil;
	// lost must not block. Closing the returned Store has no effect.
	Under(l Leader, lost func()) Store
}

var (
	// ErrNotLeading is the Cause of the refusal of a former leader's write.
	ErrNotLeading = errors.New("the term of the leader is over")
	// ErrStandby is the Cause of a call's refusal by a process that stands by. The call
	// has not begun: it may be repeated at the process that leads.
	ErrStandby = errors.New("another process leads")
)
