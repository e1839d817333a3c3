package sandbox

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// TenantID names who owns things: the boundary for what can be seen. It is
// opaque, at most MaxTenantID bytes, and never empty for an authenticated caller.
// One with a slash is of a user whom the Tenant before it vouches for.
type TenantID string

const (
	// MaxTenantID bounds a TenantID, in bytes.
	MaxTenantID = 128
	// MaxTenantName bounds Tenant.Name, and MaxSuspensionReason Suspension.Reason, in
	// characters.
	MaxTenantName       = 100
	MaxSuspensionReason = 500
)

// Check returns Invalid for what is no TenantID.
func (id TenantID) Check() error {
	if id == "" || len(id) > MaxTenantID || !utf8.ValidString(string(id)) {
		return Errorf(Invalid, "a tenant has 1 to %d bytes of text", MaxTenantID)
	}
	return nil
}

// Above are the Tenants that vouch for a Tenant, as far as its ID says: of
// "a/b/c" they are "a/b" and "a".
func (id TenantID) Above() []TenantID {
	var all []TenantID
	for i := strings.LastIndexByte(string(id), '/'); i > 0; i = strings.LastIndexByte(string(id), '/') {
		id = id[:i]
		all = append(all, id)
	}
	return all
}

// Hidden reports whether the ID does not say who vouches for its Tenant: it would
// have been too long, and is a hash.
func (id TenantID) Hidden() bool { return strings.HasPrefix(string(id), hiddenTenant) }

// hiddenTenant begins the IDs that are hashes.
const hiddenTenant = "sha256:"

// Tenant is the record of who owns things. An operator makes it, or the first
// request that comes with a valid credential of the Tenant.
type Tenant struct {
	ID        TenantID
	Name      string   // for people; may be empty
	Parent    TenantID // whose key vouches for it; empty: nobody's
	CreatedAt time.Time
	Suspended *Suspension // nil: it is active
}

// TenantState is whether a Tenant may do anything.
type TenantState string

const (
	TenantActive    TenantState = "active"
	TenantSuspended TenantState = "suspended" // its credentials are refused, its Sandboxes paused
)

// State says whether the Tenant itself is suspended; those above it may be too.
func (t Tenant) State() TenantState {
	if t.Suspended != nil {
		return TenantSuspended
	}
	return TenantActive
}

// Suspension says why and since when a Tenant is suspended.
type Suspension struct {
	At     time.Time
	Reason string // for operators; its users do not see it
}

// TenantChange is what is to become of a Tenant; nil leaves a field as it is.
type TenantChange struct {
	Name *string
	// State suspends it, for Reason, or has it go on. What it is already changes
	// nothing, but a Reason that is given.
	State  *TenantState
	Reason string
}

// Check returns Invalid for a change that cannot be made.
func (c TenantChange) Check() error {
	suspends := c.State != nil && *c.State == TenantSuspended
	switch {
	case c.Name != nil && !printableText(*c.Name, MaxTenantName):
		return Errorf(Invalid, "name must be at most %d printable characters", MaxTenantName)
	case c.State != nil && *c.State != TenantActive && *c.State != TenantSuspended:
		return Errorf(Invalid, "state must be %q or %q", TenantActive, TenantSuspended)
	case suspends && (c.Reason == "" || !printableText(c.Reason, MaxSuspensionReason)):
		return Errorf(Invalid, "reason must be 1 to %d printable characters: say why the tenant is suspended", MaxSuspensionReason)
	case !suspends && c.Reason != "":
		return Errorf(Invalid, "reason is for a tenant that is being suspended: send state %q with it", TenantSuspended)
	}
	return nil
}

// Apply returns t as it is after the change, at a time.
func (c TenantChange) Apply(t Tenant, at time.Time) Tenant {
	if c.Name != nil {
		t.Name = *c.Name
	}
	if c.State == nil {
		return t
	}
	if *c.State == TenantActive {
		t.Suspended = nil
		return t
	}
	s := Suspension{At: at, Reason: c.Reason}
	if t.Suspended != nil {
		s.At = t.Suspended.At
	}
	t.Suspended = &s
	return t
}

func printableText(s string, most int) bool {
	if !utf8.ValidString(s) || utf8.RuneCountInString(s) > most {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Suspensions are the Tenants that are suspended, and those below them whose ID
// is Hidden. The nil one is of nobody.
type Suspensions map[TenantID]bool

// Hold reports whether a Tenant, or one above it, is suspended.
func (s Suspensions) Hold(id TenantID) bool {
	if len(s) == 0 {
		return false
	}
	if s[id] {
		return true
	}
	for _, above := range id.Above() {
		if s[above] {
			return true
		}
	}
	return false
}

// MaxTenantPage bounds TenantQuery.Limit.
const MaxTenantPage = 100

// TenantQuery chooses Tenants; its zero value all of them.
type TenantQuery struct {
	State  TenantState // empty: both
	Limit  int         // of a page; zero: MaxTenantPage
	Cursor string      // TenantPage.Next of the page before; empty: the first
}

// TenantPage is a page of Tenants, by ID.
type TenantPage struct {
	Tenants []Tenant
	Next    string // empty: there are no more
}

// TenantStore keeps Tenants. Gateway alone writes here, and the operator on the
// server itself. An ID without a record is one of which nothing was said yet.
type TenantStore interface {
	// InsertTenant adds a record; Conflict when there is one of its ID.
	InsertTenant(ctx context.Context, t Tenant) error
	// NoteTenants adds those that have no record, and the Parent to records that
	// have none. The rest of a record stays as it is.
	NoteTenants(ctx context.Context, all []Tenant) error
	// TenantByID returns a record; NotFound when there is none.
	TenantByID(ctx context.Context, id TenantID) (Tenant, error)
	// ListTenants returns a page. A Cursor that is none of ours and a Limit out of
	// bounds are Invalid.
	ListTenants(ctx context.Context, query TenantQuery) (TenantPage, error)
	// ChangeTenant changes a record and returns it before and after; NotFound when
	// there is none.
	ChangeTenant(ctx context.Context, id TenantID, change TenantChange, at time.Time) (before, after Tenant, err error)
	// DeleteTenant removes a record with the Tenant's Users, Keys, Secrets, Quota and what
	// signs its URLs. NotFound when there is none; Conflict, saying what is left, when
	// it has Sandboxes that have not ended, Snapshots but layers, Volumes, or Tenants below it.
	// Records that are kept for a time stay for that time.
	DeleteTenant(ctx context.Context, id TenantID) error
	// Suspensions returns who is suspended now.
	Suspensions(ctx context.Context) (Suspensions, error)
}

// ErrSuspended is the answer to every credential of a Tenant that is suspended.
var ErrSuspended = Errorf(Denied, "the tenant is suspended: ask whoever runs this server")

// Identity is who a request speaks for.
type Identity struct {
	Tenant TenantID
	User   string // for logs and audit; never an authorization input
	Role   Role
	Key    string    // ID of the Key that it came with; empty: a token
	Person string    // ID of the User whose token it is, or who made the Key; empty: nobody's
	Scopes []Scope   // what the Key is for; nil: all that the Role may
	Until  time.Time // when the Key expires; zero: never, or a token
	// Profile is what the token says of the User; nil: it did not come with a token.
	Profile *Profile
}
