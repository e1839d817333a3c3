package sandbox

import (
	"cmp"
	"context"
	"strings"
	"time"
)

const (
	// MaxUsers is how many Users a Tenant may have, removed ones too.
	MaxUsers = 10_000
	// MaxUserID, MaxUserName and MaxUserEmail bound the texts of a User, in
	// characters.
	MaxUserID    = 200
	MaxUserName  = 100
	MaxUserEmail = 254
)

// User is the record of somebody who acts for a Tenant. An admin makes it, or the
// first token that comes for them. Who has none acts as their token says.
type User struct {
	Tenant TenantID
	ID     string // what their tokens say; unique in the Tenant
	Name   string // for people; may be empty
	Email  string // the same; nothing is sent there
	Source UserSource
	Issuer string // Name of the identity provider, of a User of one
	// Given is the Role that somebody here gave them. It takes the place of what an
	// identity provider says, and bounds what tokens of this installation and their
	// Keys may do. Empty: none.
	Given Role
	Said  Role // what the last token said; empty: none came, or it said none
	State UserState
	// DecidedBy is the highest Role of those who decided Given or State, while one of
	// them is other than for a new User. Empty: nobody decided, or before that was
	// kept, which holds against every token.
	DecidedBy Role
	CreatedAt time.Time
	SeenAt    time.Time // when a token last came; zero: never; up to a minute behind
	Version   int64     // the Store's; it grows with each write that is more than a visit
}

// UserSource is how the record of a User came to be.
type UserSource string

const (
	UserByToken  UserSource = "token"   // a token of this installation
	UserByIssuer UserSource = "oidc"    // a token of an identity provider
	UserInvited  UserSource = "invited" // an admin
)

// UserState is whether a User may do anything.
type UserState string

const (
	UserActive    UserState = "active"
	UserSuspended UserState = "suspended" // their tokens and Keys are refused
	// UserRemoved is kept of who was removed, so that no token of theirs makes the
	// record anew. Their Keys are gone.
	UserRemoved UserState = "removed"
)

// Answers to what a User asks for who may do nothing.
var (
	ErrUserSuspended = Errorf(Denied, "this user is suspended: ask an admin of the tenant")
	ErrUserRemoved   = Errorf(Denied, "this user was removed from the tenant: ask an admin of it")
	ErrNoRole        = Errorf(Denied, "your account has no role here: ask an admin of the tenant, or whoever runs this server")
)

// ErrLastOwner is the answer to what would leave a Tenant without an owner.
var ErrLastOwner = Errorf(Conflict, "this is the last owner of the tenant: make another user an owner first")

// Role is what the User may do, as far as is known here; empty: that is for their
// first token to say.
func (u User) Role() Role { return cmp.Or(u.Given, u.Said) }

// Owns reports whether the User is one of those who keep their Tenant from being
// without an owner.
func (u User) Owns() bool { return u.State == UserActive && !RoleOwner.Above(u.Role()) }

// Decided returns u, which somebody of the Role by made of before, with whose
// decision it stands on.
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

// Told returns u after a token came for them that says the Role said. What was
// decided by people below that Role alone lapses: nobody keeps out or lowers who is
// above them, also when that was not known yet.
func (u User) Told(said Role) User {
	if u.DecidedBy != "" && said.Above(u.DecidedBy) {
		u.Given, u.State, u.DecidedBy = "", UserActive, ""
	}
	return u
}

// Admit returns the Identity that who has as this User, or why they may do
// nothing. The zero User is of whom there is no record.
func (u User) Admit(who Identity) (Identity, error) {
	if who.Profile != nil { // a token, not a Key of theirs
		u = u.Told(who.Role)
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

// Check returns Invalid for a record that cannot be kept.
func (u User) Check() error {
	switch {
	case u.ID == "" || !printableText(u.ID, MaxUserID):
		return Errorf(Invalid, "a user's ID is 1 to %d printable characters, as tokens say it", MaxUserID)
	case !printableText(u.Name, MaxUserName):
		return Errorf(Invalid, "name must be at most %d printable characters", MaxUserName)
	case u.Email != "" && !emailAddress(u.Email):
		return Errorf(Invalid, "email must be an address of at most %d characters", MaxUserEmail)
	case u.Given != "" && !u.Given.Valid():
		return Errorf(Invalid, "a role is one of %q", Roles())
	}
	return nil
}

// emailAddress reports whether s may be an address: nothing is sent there, so no
// more is asked than that people know it for one.
func emailAddress(s string) bool {
	at := strings.LastIndexByte(s, '@')
	return printableText(s, MaxUserEmail) && !strings.ContainsAny(s, " <>") && at > 0 && at < len(s)-1
}

// Profile is what a token says of its User.
type Profile struct {
	Source UserSource
	Issuer string // of UserByIssuer
	Name   string // empty: it does not say
	Email  string
}

// ProfileOf is a Profile with what may be kept of a name and an address.
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

// UserChange is what is to become of a User; nil leaves a field as it is.
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

// UserQuery chooses Users of a Tenant.
type UserQuery struct {
	State  UserState // empty: all but those that were removed
	Limit  int       // of a page; zero: MaxTenantPage
	Cursor string    // UserPage.Next of the page before; empty: the first
}

// UserPage is a page of Users, by ID.
type UserPage struct {
	Users []User
	Next  string // empty: there are no more
}

// UserStore keeps Users. Gateway alone writes here. It may forget who is active,
// came by a token and was given nothing, the longest unseen first, where a Tenant
// has MaxUsers and another comes.
type UserStore interface {
	// InsertUser adds a record and returns it with its Version; Conflict when there is
	// one of its ID, unless that was removed and u has its Version. Exhausted when the
	// Tenant has MaxUsers, none of whom it may forget.
	InsertUser(ctx context.Context, u User) (User, error)
	// NoteUsers adds those that have no record while there is room, and moves SeenAt
	// of the others forward, with Said and the Name and Email that are not empty, and
	// what becomes of them when they are Told it. Who is removed after that stays as
	// they are.
	NoteUsers(ctx context.Context, all []User) error
	// UserByID returns a record, of one who was removed too; NotFound when there is
	// none.
	UserByID(ctx context.Context, tenant TenantID, id string) (User, error)
	// ListUsers returns a page. A Cursor that is none of ours and a Limit out of
	// bounds are Invalid.
	ListUsers(ctx context.Context, tenant TenantID, query UserQuery) (UserPage, error)
	// UpdateUser writes Name, Email, Given, State and DecidedBy if the stored Version is u's, and
	// returns u with the next one; Conflict otherwise, NotFound when there is none.
	// With keepOwner it is ErrLastOwner to take the last who Owns from a Tenant. The
	// Keys of one who becomes UserRemoved go with it.
	UpdateUser(ctx context.Context, u User, keepOwner bool) (User, error)
	// UsersChanged returns a number that is another after each write that is more
	// than a visit, whoever's process made it.
	UsersChanged(ctx context.Context) (int64, error)
}
