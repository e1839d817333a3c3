package sandbox

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// TenantID identifies the owner of resources and bounds their visibility. It is opaque,
// at most MaxTenantID bytes, and never empty for an authenticated caller. "a/b" is a
// user that the Tenant "a" vouches for.
type TenantID string

const (
	// MaxTenantID bounds a TenantID, in bytes.
	MaxTenantID = 128
	// MaxTenantName bounds Tenant.Name, and MaxSuspensionReason Suspension.Reason, in
	// characters.
	MaxTenantName       = 100
	MaxSuspensionReason = 500
)

// Check returns Invalid when id cannot be a TenantID.
func (id TenantID) Check() error {
	if id == "" || len(id) > MaxTenantID || !utf8.ValidString(string(id)) || strings.ContainsRune(string(id), 0) {
		return Errorf(Invalid, "a tenant has 1 to %d bytes of text, without NUL", MaxTenantID)
	}
	return nil
}

// Above returns the Tenants that vouch for a Tenant according to its ID: for "a/b/c",
// "a/b" and "a".
func (id TenantID) Above() []TenantID {
	var all []TenantID
	for i := strings.LastIndexByte(string(id), '/'); i > 0; i = strings.LastIndexByte(string(id), '/') {
		id = id[:i]
		all = append(all, id)
	}
	return all
}

// Hidden reports whether the ID is a hash, because the full ID was too long. A hash does
// not show which Tenant vouches for it.
func (id TenantID) Hidden() bool { return strings.HasPrefix(string(id), hiddenTenant) }

// hiddenTenant is the prefix of IDs that are hashes.
const hiddenTenant = "sha256:"

// Tenant is the record of an owner of resources. An operator creates it, or the first
// request with a valid credential of the Tenant does.
type Tenant struct {
	ID        TenantID
	Name      string   // for people; may be empty
	Parent    TenantID // Tenant whose key vouches for it; empty: none
	CreatedAt time.Time
	Suspended *Suspension // nil: it is active
}

// TenantState is active or suspended.
type TenantState string

const (
	TenantActive    TenantState = "active"
	TenantSuspended TenantState = "suspended" // its credentials are refused, its Sandboxes paused
)

// State reports whether the Tenant itself is suspended. It ignores the Tenants above it.
func (t Tenant) State() TenantState {
	if t.Suspended != nil {
		return TenantSuspended
	}
	return TenantActive
}

// Suspension is the reason and time of a Tenant's suspension.
type Suspension struct {
	At     time.Time
	Reason string // for operators; its users do not see it
}

// TenantChange updates a Tenant; nil fields stay unchanged.
type TenantChange struct {
	Name *string
	// State suspends it, for Reason, or resumes it. Suspending a suspended Tenant changes
	// only the Reason.
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

// Apply returns t after the change; a new suspension begins at at.
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

// Suspensions is the set of suspended Tenants, and of Tenants below them whose ID is
// Hidden. A nil set is empty.
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

// TenantQuery selects Tenants; its zero value selects all.
type TenantQuery struct {
	State  TenantState // empty: both
	Limit  int         // of a page; zero: MaxTenantPage
	Cursor string      // TenantPage.Next; empty: first page
}

// TenantPage is a page of Tenants, by ID.
type TenantPage struct {
	Tenants []Tenant
	Next    string // empty: last page
}

// TenantStore keeps Tenants. Only gateway writes here, and the operator on the server
// itself. A Tenant without a record is valid: none has been needed yet.
type TenantStore interface {
	// InsertTenant adds a record; Conflict when its ID has one.
	InsertTenant(ctx context.Context, t Tenant) error
	// NoteTenants adds missing records, and sets the Parent of records that have none. It
	// changes nothing else.
	NoteTenants(ctx context.Context, all []Tenant) error
	// TenantByID returns a record. NotFound if no record exists.
	TenantByID(ctx context.Context, id TenantID) (Tenant, error)
	// ListTenants returns a page. A malformed Cursor and a Limit out of bounds are
	// Invalid.
	ListTenants(ctx context.Context, query TenantQuery) (TenantPage, error)
	// ChangeTenant changes a record and returns it before and after. NotFound if no
	// record exists.
	ChangeTenant(ctx context.Context, id TenantID, change TenantChange, at time.Time) (before, after Tenant, err error)
	// DeleteTenant removes a record with the Tenant's Users, Keys, Secrets, Quota,
	// SigningKey and TemplateNames. NotFound if no record exists. Conflict when the Tenant has Sandboxes
	// that have not ended, Snapshots other than layers, Volumes, or Tenants below it;
	// the error gives their numbers. Records with a retention time stay until it
	// passes.
	DeleteTenant(ctx context.Context, id TenantID) error
	// Suspensions returns the current Suspensions.
	Suspensions(ctx context.Context) (Suspensions, error)
}

// ErrSuspended is the answer to every credential of a Tenant that is suspended.
var ErrSuspended = Errorf(Denied, "the tenant is suspended: ask the operator of this server")

// Identity is the authenticated caller of a request.
type Identity struct {
	Tenant TenantID
	User   string // for logs and audit; never used for authorization
	Role   Role
	Key    string    // ID of the Key used; empty: a token
	Person string    // ID of the User of the token, or of the User who made the Key; empty: none
	Scopes []Scope   // granted to the Key; nil: all that the Role allows
	Until  time.Time // when the Key expires; zero: never, or a token
	// Profile holds the token's claims about the User; nil: the credential is not a
	// token.
	Profile *Profile
}
