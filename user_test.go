package sandbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestUserAdmit(t *testing.T) {
	const (
		none, viewer, developer = sandbox.Role(""), sandbox.RoleViewer, sandbox.RoleDeveloper
		admin, owner            = sandbox.RoleAdmin, sandbox.RoleOwner
	)
	ours, issuers := &sandbox.Profile{Source: sandbox.UserByToken}, &sandbox.Profile{Source: sandbox.UserByIssuer}
	for name, tt := range map[string]struct {
		user    sandbox.User
		profile *sandbox.Profile // nil: an API key
		said    sandbox.Role
		want    sandbox.Role
		err     error
	}{
		"no record":                        {sandbox.User{}, issuers, developer, developer, nil},
		"no record and no role":            {sandbox.User{}, issuers, none, none, sandbox.ErrNoRole},
		"nothing given":                    {sandbox.User{ID: "a", State: sandbox.UserActive}, issuers, admin, admin, nil},
		"a provider's, raised":             {sandbox.User{Given: admin, State: sandbox.UserActive}, issuers, viewer, admin, nil},
		"a provider's, lowered":            {sandbox.User{Given: viewer, State: sandbox.UserActive}, issuers, owner, viewer, nil},
		"a provider's that says none":      {sandbox.User{Given: developer, State: sandbox.UserActive}, issuers, none, developer, nil},
		"our token stays what it is":       {sandbox.User{Given: admin, State: sandbox.UserActive}, ours, viewer, viewer, nil},
		"our token, lowered":               {sandbox.User{Given: viewer, State: sandbox.UserActive}, ours, admin, viewer, nil},
		"a key stays what it is":           {sandbox.User{Given: owner, State: sandbox.UserActive}, nil, developer, developer, nil},
		"a key, lowered":                   {sandbox.User{Given: developer, State: sandbox.UserActive}, nil, admin, developer, nil},
		"a key, by what a token said last": {sandbox.User{TokenRole: viewer, State: sandbox.UserActive}, nil, admin, admin, nil},
		"suspended":                        {sandbox.User{Given: owner, State: sandbox.UserSuspended}, issuers, owner, none, sandbox.ErrUserSuspended},
		"a key of who is suspended":        {sandbox.User{State: sandbox.UserSuspended}, nil, owner, none, sandbox.ErrUserSuspended},
		"removed":                          {sandbox.User{State: sandbox.UserRemoved}, issuers, owner, none, sandbox.ErrUserRemoved},
	} {
		got, err := tt.user.Admit(sandbox.Identity{Role: tt.said, Profile: tt.profile})
		if !errors.Is(err, tt.err) || err == nil && got.Role != tt.want {
			t.Errorf("%s: %q, %v, want %q, %v", name, got.Role, err, tt.want, tt.err)
		}
	}
}

func TestUserOwns(t *testing.T) {
	for _, tt := range []struct {
		given, said sandbox.Role
		state       sandbox.UserState
		want        bool
	}{
		{sandbox.RoleOwner, "", sandbox.UserActive, true},
		{"", sandbox.RoleOwner, sandbox.UserActive, true},
		{"", sandbox.RoleOperator, sandbox.UserActive, true},
		{sandbox.RoleAdmin, sandbox.RoleOwner, sandbox.UserActive, false},
		{sandbox.RoleOwner, "", sandbox.UserSuspended, false},
		{sandbox.RoleOwner, "", sandbox.UserRemoved, false},
		{"", "", sandbox.UserActive, false},
	} {
		if (sandbox.User{Given: tt.given, TokenRole: tt.said, State: tt.state}).Owns() != tt.want {
			t.Errorf("%+v: %v", tt, !tt.want)
		}
	}
}

func TestUserChange(t *testing.T) {
	text := func(s string) *string { return &s }
	state := func(s sandbox.UserState) *sandbox.UserState { return &s }
	role := func(r sandbox.Role) *sandbox.Role { return &r }
	u := sandbox.User{ID: "a", Name: "A", Email: "a@b", Given: sandbox.RoleAdmin, State: sandbox.UserActive}
	for name, tt := range map[string]struct {
		change sandbox.UserChange
		want   func(*sandbox.User)
		err    error
	}{
		"nothing":           {sandbox.UserChange{}, func(*sandbox.User) {}, nil},
		"texts":             {sandbox.UserChange{Name: text("B"), Email: text("")}, func(u *sandbox.User) { u.Name, u.Email = "B", "" }, nil},
		"a role":            {sandbox.UserChange{Role: role(sandbox.RoleViewer)}, func(u *sandbox.User) { u.Given = sandbox.RoleViewer }, nil},
		"no role":           {sandbox.UserChange{Role: role("")}, func(u *sandbox.User) { u.Given = "" }, nil},
		"suspended":         {sandbox.UserChange{State: state(sandbox.UserSuspended)}, func(u *sandbox.User) { u.State = sandbox.UserSuspended }, nil},
		"removed":           {sandbox.UserChange{State: state(sandbox.UserRemoved)}, nil, sandbox.Invalid},
		"an odd state":      {sandbox.UserChange{State: state("odd")}, nil, sandbox.Invalid},
		"an odd role":       {sandbox.UserChange{Role: role("root")}, nil, sandbox.Invalid},
		"a long name":       {sandbox.UserChange{Name: text(strings.Repeat("é", 101))}, nil, sandbox.Invalid},
		"control in a name": {sandbox.UserChange{Name: text("a\x1bb")}, nil, sandbox.Invalid},
		"no address":        {sandbox.UserChange{Email: text("a@")}, nil, sandbox.Invalid},
		"two in one":        {sandbox.UserChange{Email: text("a@b <c@d>")}, nil, sandbox.Invalid},
		"a long address":    {sandbox.UserChange{Email: text(strings.Repeat("a", 250) + "@b.cd")}, nil, sandbox.Invalid},
	} {
		got, err := tt.change.Apply(u)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, want %v", name, err, tt.err)
		}
		if tt.err != nil {
			continue
		}
		after := u
		if tt.want(&after); got != after {
			t.Errorf("%s: %+v, want %+v", name, got, after)
		}
	}
	for id, ok := range map[string]bool{"": false, "corp:auth0|1/2 é": true, "a\nb": false, "\xff": false, strings.Repeat("é", 200): true, strings.Repeat("é", 201): false} {
		if err := (sandbox.User{ID: id}).Check(); (err == nil) != ok {
			t.Errorf("the ID %q: %v", id, err)
		}
	}
}

func TestProfileOf(t *testing.T) {
	for _, tt := range []struct{ name, email, wantName, wantEmail string }{
		{"Ann", "ann@example.com", "Ann", "ann@example.com"},
		{"a\x00b", "no address", "", ""},
		{strings.Repeat("a", 101), strings.Repeat("a", 260) + "@b", "", ""},
		{"", "", "", ""},
	} {
		if p := sandbox.ProfileOf(sandbox.UserByIssuer, "corp", tt.name, tt.email); p.Name != tt.wantName || p.Email != tt.wantEmail || p.Issuer != "corp" {
			t.Errorf("of %q, %q: %+v", tt.name, tt.email, p)
		}
	}
}
