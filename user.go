package sandbox

import (
	"cmp"
	"context"
	"strings"
	"time"
)

const (
	// MaxUsers bounds the Users of a Tenant, including removed ones.
	MaxUsers = 10_000
	// MaxUserID, MaxUserName and MaxUserEmail bound the texts of a User, in
	// characters.
	MaxUserID    = 200
	MaxUserName  = 100
	MaxUserEmail = 254
)

// User is the record of a person who acts for a Tenant. An admin creates it, or the
// person's first token does. Without a record, only the token decides the person's Role.
type User struct {
	Tenant TenantID
	ID     string // as in their tokens; unique in the Tenant
	Name   string // for people; may be empty
	Email  string // for people; may be empty; no mail is sent there
	Source UserSource
	Issuer string // Name of the identity provider, for UserByIssuer
	// Given is the Role assigned here. It overrides the Role from an identity provider,
	// and is the upper bound for tokens of this installation and the User's Keys. Empty:
	// none.
	Given     Role
	TokenRole Role // Role in the last token; empty: no token yet, or one without a Role
	State     UserState
	// DecidedBy is the highest Role of the people who decided Given or State, while one
	// of these differs from a new User's. Empty: no decision, or one made before this
	// field existed, which no token overrides.
	DecidedBy Role
	CreatedAt time.Time
	SeenAt    time.Time // last use of a token; zero: never; up to a minute behind
	Version   int64     // set by the Store; grows with each write but visits (a SeenAt update)
}

// UserSource is how the record of a User was created.
type UserSource string

const (
	UserByToken  UserSource = "token"   // a token of this installation
	UserByIssuer UserSource = "oidc"    // a token of an identity provider
	UserInvited  UserSource = "invited" // an admin
)

// UserState is the state of a User.
type UserState string

const (
	UserActive    UserState = "active"
	UserSuspended UserState = "suspended" // their tokens and Keys are refused
	// UserRemoved marks a removed User. The record is kept so that a token of theirs does
	// not create it again. Their Keys are deleted.
	UserRemoved UserState = "removed"
)

// Errors for requests of a User without access.
var (
	ErrUserSuspended = Errorf(Denied, "this user is suspended: ask an admin of the tenant")
	ErrUserRemoved   = Errorf(Denied, "this user was removed from the tenant: ask an admin of it")
	ErrNoRole        = Errorf(Denied, "your account has no role here: ask an admin of the tenant, or the operator of this server")
)

// ErrLastOwner is returned for a change that would leave a Tenant without an owner.
var ErrLastOwner = Errorf(Conflict, "this is the last owner of the tenant: make another user an owner first")

// Role returns the User's known Role; empty: their first token decides.
func (u User) Role() Role { return cmp.Or(u.Given, u.TokenRole) }

// Owns reports whether the User is active and has at least RoleOwner.
func (u User) Owns() bool { return u.State == UserActive && !RoleOwner.Above(u.Role()) }

// Decided returns u with DecidedBy set, after a person with the Role by changed the
// record from before to u.
func (u User) Decided(before User, by Role) User {
	open := before.Given == "" && before.State != UserSuspended && before.State != UserRemoved
	switch {
	case u.Given == "" && u.State == UserActive:
		u.DecidedBy = ""
	case open, before.DecidedBy != "" && by.Above(before.DecidedBy) && (u.Given != before.Given || u.State != before.State):
		u.DecidedBy = by
	default:
		u.DecidedBy = before.DecidedBy
	}
	return u
}

// WithTokenRole returns u after a token with the Role said. Decisions made only by
// people below that Role lapse. So people cannot suspend, remove or demote a person
// above them, even if that person's Role was not known at the time.
func (u User) WithTokenRole(said Role) User {
	if u.DecidedBy != "" && said.Above(u.DecidedBy) {
		u.Given, u.State, u.DecidedBy = "", UserActive, ""
	}
	return u
}

// Admit applies this User to the Identity who. It returns who, with the Role Given
// where that overrides the Role of the token or Key, or an error if the User has no
// access. The zero User stands for a person without a record.
func (u User) Admit(who Identity) (Identity, error) {
	if who.Profile != nil { // a token, not a Key
		u = u.WithTokenRole(who.Role)
	}
	switch u.State {
	case UserSuspended:
		return who, ErrUserSuspended
	case UserRemoved:
		return who, ErrUserRemoved
	}
	replaces := who.Profile != nil && who.Profile.Source == UserByIssuer
	if u.Given != "" && (replaces || who.Role.Above(u.Given)) {
		who.Role = u.Given
	}
	if who.Role == "" {
		return who, ErrNoRole
	}
	return who, nil
}

// Check returns Invalid for a record that cannot be stored.
func (u User) Check() error {
	switch {
	case u.ID == "" || !printableText(u.ID, MaxUserID):
		return Errorf(Invalid, "a user's ID is 1 to %d printable characters, as in the user's tokens", MaxUserID)
	case !printableText(u.Name, MaxUserName):
		return Errorf(Invalid, "name must be at most %d printable characters", MaxUserName)
	case u.Email != "" && !emailAddress(u.Email):
		return Errorf(Invalid, "email must be an address of at most %d characters", MaxUserEmail)
	case u.Given != "" && !u.Given.Valid():
		return Errorf(Invalid, "a role is one of %q", Roles())
	}
	return nil
}

// emailAddress reports whether s looks like an address. The check is loose because no
// mail is sent there.
func emailAddress(s string) bool {
	at := strings.LastIndexByte(s, '@')
	return printableText(s, MaxUserEmail) && !strings.ContainsAny(s, " <>") && at > 0 && at < len(s)-1
}

// Profile holds a token's claims about its User.
type Profile struct {
	Source UserSource
	Issuer string // for UserByIssuer
	Name   string // empty: not in the token
	Email  string
}

// ProfileOf returns a Profile with the name and email that are valid; others are left
// empty.
func ProfileOf(source UserSource, issuer, name, email string) *Profile {
	p := &Profile{Source: source, Issuer: issuer}
	if printableText(name, MaxUserName) {
		p.Name = name
	}
	if emailAddress(email) {
		p.Email = email
	}
	return p
}

// UserChange updates a User; nil fields stay unchanged.
type UserChange struct {
	Name  *string
	Email *string
	Role  *Role // User.Given
	State *UserState
}

// Apply returns u after the change, or Invalid for one that cannot be made.
func (c UserChange) Apply(u User) (User, error) {
	if c.State != nil && *c.State != UserActive && *c.State != UserSuspended {
		return u, Errorf(Invalid, "state must be %q or %q", UserActive, UserSuspended)
	}
	set(&u.Name, c.Name)
	set(&u.Email, c.Email)
	set(&u.Given, c.Role)
	set(&u.State, c.State)
	return u, u.Check()
}

// UserQuery selects Users of a Tenant.
type UserQuery struct {
	State  UserState // empty: all but removed
	Limit  int       // of a page; zero: MaxTenantPage
	Cursor string    // UserPage.Next; empty: first page
}

// UserPage is a page of Users, by ID.
type UserPage struct {
	Users []User
	Next  string // empty: last page
}

// UserStore keeps Users. Only gateway writes here. When a Tenant has MaxUsers and another
// User comes, the Store may evict an active User that a token created and that has no
// Given Role, least recently seen first.
type UserStore interface {
	// InsertUser adds a record and returns it with its Version. Conflict when the ID has
	// a record, unless that is UserRemoved and u has its Version. Exhausted when the
	// Tenant has MaxUsers and none can be evicted.
	InsertUser(ctx context.Context, u User) (User, error)
	// NoteUsers adds missing records while there is room. To existing records it
	// applies User.WithTokenRole. Unless the User is then still removed, it also moves
	// SeenAt forward, and sets TokenRole and any non-empty Name and Email.
	NoteUsers(ctx context.Context, all []User) error
	// UserByID returns a record, also of a removed User. NotFound if no record exists.
	UserByID(ctx context.Context, tenant TenantID, id string) (User, error)
	// ListUsers returns a page. A malformed Cursor and a Limit out of bounds are Invalid.
	ListUsers(ctx context.Context, tenant TenantID, query UserQuery) (UserPage, error)
	// UpdateUser writes Name, Email, Given, State and DecidedBy if the stored Version is
	// u's, and returns u with the next one. Conflict otherwise, NotFound if no record
	// exists. With keepOwner it returns ErrLastOwner instead of taking the last owner
	// from a Tenant. It deletes the Keys of a User who becomes UserRemoved.
	UpdateUser(ctx context.Context, u User, keepOwner bool) (User, error)
	// UsersChanged returns a number that changes with each write, by any process, but
	// visits.
	UsersChanged(ctx context.Context) (int64, error)
}
