package users_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/users"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

// as is whom a token of an identity provider speaks for.
func as(id string, role sandbox.Role) sandbox.Identity {
	return sandbox.Identity{Tenant: "acme", User: id, Person: id, Role: role, Profile: sandbox.ProfileOf(sandbox.UserByIssuer, "corp", "", "")}
}

var (
	operator = sandbox.Identity{Tenant: "ops", User: "key:k1", Role: sandbox.RoleOperator}
	owner    = as("corp:owner", sandbox.RoleOwner)
	admin    = as("corp:admin", sandbox.RoleAdmin)
)

// narrow is a Key that may do nothing but look after users.
func narrow(who sandbox.Identity) sandbox.Identity {
	who.Scopes = []sandbox.Scope{sandbox.ScopeUsers}
	return who
}

// keyOf returns the Identity of a Key that the user created.
func keyOf(who sandbox.Identity) sandbox.Identity {
	who.User, who.Key, who.Profile = "key:k2", "k2", nil
	return who
}

func suspend() sandbox.UserChange {
	return sandbox.UserChange{State: new(sandbox.UserSuspended)}
}

func resume() sandbox.UserChange { return sandbox.UserChange{State: new(sandbox.UserActive)} }

func give(r sandbox.Role) sandbox.UserChange { return sandbox.UserChange{Role: &r} }

// enter lets who in until the test ends.
func enter(t *testing.T, s *users.Service, who sandbox.Identity) (sandbox.Identity, context.Context) {
	t.Helper()
	as, ctx, leave, err := s.Enter(t.Context(), who)
	if err != nil {
		t.Fatalf("%s: %v", who.User, err)
	}
	t.Cleanup(leave)
	return as, ctx
}

func refused(t *testing.T, s *users.Service, who sandbox.Identity, why error) {
	t.Helper()
	_, _, leave, err := s.Enter(t.Context(), who)
	if err == nil {
		leave()
	}
	if !errors.Is(err, why) {
		t.Errorf("%s is let in with %v, want %v", who.User, err, why)
	}
	if _, err := s.Admit(t.Context(), who); !errors.Is(err, why) {
		t.Errorf("%s is admitted with %v, want %v", who.User, err, why)
	}
}

func change(t *testing.T, s *users.Service, who sandbox.Identity, id string, c sandbox.UserChange) sandbox.User {
	t.Helper()
	u, err := s.Change(t.Context(), who, "acme", id, c)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// counting counts the questions about one User.
type counting struct {
	*sqlstore.Store
	mu    sync.Mutex
	asked int
}

func (c *counting) UserByID(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.User, error) {
	c.mu.Lock()
	c.asked++
	c.mu.Unlock()
	return c.Store.UserByID(ctx, tenant, id)
}

// run runs s until the test ends.
func run(t *testing.T, s *users.Service) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
}

func TestFirstTokenMakesTheRecord(t *testing.T) {
	store := &counting{Store: sqlitetest.Open(t)}
	s := users.New(users.Config{Store: store})
	bob := as("corp:bob", sandbox.RoleDeveloper)
	bob.Profile = sandbox.ProfileOf(sandbox.UserByIssuer, "corp", "Bob", "bob@example.com")
	if _, err := s.Get(t.Context(), "acme", bob.Person); !errors.Is(err, sandbox.NotFound) {
		t.Fatalf("before: %v", err)
	}
	for range 5 {
		enter(t, s, bob)
		enter(t, s, keyOf(bob))
	}
	if store.asked > 2 { // Get and one more
		t.Errorf("the store was asked %d times", store.asked)
	}
	u, err := s.Get(t.Context(), "acme", bob.Person)
	if err != nil || u.Name != "Bob" || u.Email != "bob@example.com" || u.TokenRole != sandbox.RoleDeveloper || u.Given != "" ||
		u.Source != sandbox.UserByIssuer || u.Issuer != "corp" || u.State != sandbox.UserActive || time.Since(u.SeenAt) > time.Hour {
		t.Errorf("the record: %+v, %v", u, err)
	}
	// New claims of the next token apply at once. Values that it leaves out are kept.
	bob.Role, bob.Profile = sandbox.RoleAdmin, sandbox.ProfileOf(sandbox.UserByIssuer, "corp", "Robert", "")
	enter(t, s, bob)
	if u, err := s.Get(t.Context(), "acme", bob.Person); err != nil || u.Name != "Robert" || u.Email != "bob@example.com" || u.TokenRole != sandbox.RoleAdmin {
		t.Errorf("after another token: %+v, %v", u, err)
	}
	// Keys, and credentials without a user, leave no record.
	enter(t, s, keyOf(as("corp:carol", sandbox.RoleAdmin)))
	enter(t, s, sandbox.Identity{Tenant: "acme", User: "signed-url", Role: sandbox.RoleDeveloper})
	if page, err := s.List(t.Context(), "acme", sandbox.UserQuery{}); err != nil || len(page.Users) != 1 {
		t.Errorf("there are %+v, %v", page.Users, err)
	}
}

func TestChangesHoldAtOnce(t *testing.T) {
	store := sqlitetest.Open(t)
	s := users.New(users.Config{Store: store, Audit: store})
	bob, carol := as("corp:bob", sandbox.RoleDeveloper), as("corp:carol", sandbox.RoleDeveloper)
	key := keyOf(bob)
	for _, who := range []sandbox.Identity{owner, admin, bob, carol} {
		enter(t, s, who)
	}
	_, held := enter(t, s, bob)
	_, heldByKey := enter(t, s, key)
	_, others := enter(t, s, carol)

	change(t, s, admin, bob.Person, suspend())
	for _, ctx := range []context.Context{held, heldByKey} {
		if !errors.Is(context.Cause(ctx), sandbox.ErrUserSuspended) {
			t.Errorf("what is under way ends with %v", context.Cause(ctx))
		}
	}
	if others.Err() != nil {
		t.Error("another's request ended")
	}
	refused(t, s, bob, sandbox.ErrUserSuspended)
	refused(t, s, key, sandbox.ErrUserSuspended)
	change(t, s, admin, bob.Person, resume())
	enter(t, s, key)

	// A role that is given counts for the provider's tokens, and bounds keys.
	as, held := enter(t, s, bob)
	if as.Role != sandbox.RoleDeveloper {
		t.Errorf("bob is %s", as.Role)
	}
	change(t, s, admin, bob.Person, give(sandbox.RoleAdmin))
	if as, _ = enter(t, s, bob); as.Role != sandbox.RoleAdmin || held.Err() != nil {
		t.Errorf("raised, bob is %s; what is under way: %v", as.Role, held.Err())
	}
	if as, _ = enter(t, s, key); as.Role != sandbox.RoleDeveloper {
		t.Errorf("raised, bob's key is %s", as.Role)
	}
	change(t, s, admin, bob.Person, give(sandbox.RoleViewer))
	if held.Err() == nil {
		t.Error("what is under way of a developer goes on for a viewer")
	}
	for _, who := range []sandbox.Identity{bob, key} {
		if as, _ = enter(t, s, who); as.Role != sandbox.RoleViewer {
			t.Errorf("lowered, %s is %s", who.User, as.Role)
		}
	}
	if u := change(t, s, admin, bob.Person, give("")); u.Role() != sandbox.RoleDeveloper {
		t.Errorf("given nothing, bob is %s", u.Role())
	}

	// A removed user stays out, with any token.
	if err := s.Remove(t.Context(), admin, "acme", bob.Person); err != nil {
		t.Fatal(err)
	}
	refused(t, s, bob, sandbox.ErrUserRemoved)
	refused(t, s, key, sandbox.ErrUserRemoved)
	if _, err := s.Get(t.Context(), "acme", bob.Person); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("removed, there is %v", err)
	}
	if _, err := s.Change(t.Context(), owner, "acme", bob.Person, resume()); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("removed, they are resumed with %v", err)
	}
	if _, err := s.Create(t.Context(), admin, "acme", users.Invite{ID: bob.Person}); err != nil {
		t.Fatal(err)
	}
	if as, _ := enter(t, s, bob); as.Role != sandbox.RoleDeveloper {
		t.Errorf("invited again, bob is %s", as.Role)
	}
}

// A Role can come from here alone, before any token.
func TestInvited(t *testing.T) {
	s := users.New(users.Config{Store: sqlitetest.Open(t)})
	nobody := as("corp:nobody", "")
	refused(t, s, nobody, sandbox.ErrNoRole)
	enter(t, s, admin)
	if _, err := s.Create(t.Context(), admin, "acme", users.Invite{ID: nobody.Person, Role: sandbox.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	if as, _ := enter(t, s, nobody); as.Role != sandbox.RoleViewer {
		t.Errorf("they are %s", as.Role)
	}
	u, err := s.Get(t.Context(), "acme", nobody.Person)
	if err != nil || u.Source != sandbox.UserInvited || u.SeenAt.IsZero() {
		t.Errorf("the record: %+v, %v", u, err)
	}
	change(t, s, admin, nobody.Person, give(""))
	refused(t, s, nobody, sandbox.ErrNoRole)
}

func TestWhoMayChangeWhom(t *testing.T) {
	elsewhere := admin
	elsewhere.Tenant = "other"
	for name, tt := range map[string]struct {
		who  sandbox.Identity
		id   string
		do   sandbox.UserChange
		want error
	}{
		"an admin raises to their own":    {admin, "corp:bob", give(sandbox.RoleAdmin), nil},
		"an admin raises above their own": {admin, "corp:bob", give(sandbox.RoleOwner), sandbox.Denied},
		"an admin raises themselves":      {admin, "corp:admin", give(sandbox.RoleOwner), sandbox.Denied},
		"an admin lowers themselves":      {admin, "corp:admin", give(sandbox.RoleViewer), nil},
		"an admin lowers an owner":        {admin, "corp:owner", give(sandbox.RoleViewer), sandbox.Denied},
		"an admin suspends an owner":      {admin, "corp:owner", suspend(), sandbox.Denied},
		"an admin renames an owner":       {admin, "corp:owner", sandbox.UserChange{Name: new("x")}, sandbox.Denied},
		"an admin suspends an admin":      {as("corp:admin2", sandbox.RoleAdmin), "corp:admin", suspend(), nil},
		"an admin suspends themselves":    {admin, "corp:admin", suspend(), sandbox.Conflict},
		"a key suspends its maker":        {keyOf(admin), "corp:admin", suspend(), sandbox.Conflict},
		"a key of few scopes gives more":  {narrow(keyOf(owner)), "corp:bob", give(sandbox.RoleDeveloper), sandbox.Denied},
		"a key of few scopes suspends":    {narrow(keyOf(owner)), "corp:bob", suspend(), nil},
		"the last owner steps down":       {owner, "corp:owner", give(sandbox.RoleAdmin), sandbox.ErrLastOwner},
		"an operator demotes the last":    {operator, "corp:owner", give(sandbox.RoleAdmin), nil},
		"an operator makes an operator":   {operator, "corp:bob", give(sandbox.RoleOperator), nil},
		"an owner makes an operator":      {owner, "corp:bob", give(sandbox.RoleOperator), sandbox.Denied},
		"back to what a token said above": {admin, "corp:held", give(""), sandbox.Denied},
		"an unknown one":                  {owner, "corp:none", suspend(), sandbox.NotFound},
		"an odd state":                    {owner, "corp:bob", sandbox.UserChange{State: new(sandbox.UserRemoved)}, sandbox.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			store := sqlitetest.Open(t)
			s := users.New(users.Config{Store: store, Audit: store})
			for _, who := range []sandbox.Identity{owner, admin, as("corp:bob", sandbox.RoleDeveloper), as("corp:held", sandbox.RoleOwner)} {
				enter(t, s, who)
			}
			change(t, s, operator, "corp:held", give(sandbox.RoleViewer))
			if _, err := s.Change(t.Context(), tt.who, "acme", tt.id, tt.do); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func TestWhoMayRemoveAndInvite(t *testing.T) {
	store := sqlitetest.Open(t)
	s := users.New(users.Config{Store: store, Audit: store})
	second := as("corp:second", sandbox.RoleOwner)
	for _, who := range []sandbox.Identity{owner, admin, second} {
		enter(t, s, who)
	}
	for name, tt := range map[string]struct {
		who  sandbox.Identity
		id   string
		want error
	}{
		"an admin an owner": {admin, "corp:owner", sandbox.Denied},
		"oneself":           {owner, "corp:owner", sandbox.Conflict},
		"an unknown one":    {owner, "corp:none", sandbox.NotFound},
	} {
		if err := s.Remove(t.Context(), tt.who, "acme", tt.id); !errors.Is(err, tt.want) {
			t.Errorf("%s removes: %v, want %v", name, err, tt.want)
		}
	}
	if err := s.Remove(t.Context(), owner, "acme", second.Person); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), sandbox.Identity{Tenant: "acme", User: "key:k3", Key: "k3", Role: sandbox.RoleOwner}, "acme", owner.Person); !errors.Is(err, sandbox.ErrLastOwner) {
		t.Errorf("a key of nobody's removes the last owner: %v", err)
	}
	for name, tt := range map[string]struct {
		who  sandbox.Identity
		in   users.Invite
		want error
	}{
		"there is one":                   {admin, users.Invite{ID: owner.Person}, sandbox.Conflict},
		"a role above":                   {admin, users.Invite{ID: "corp:new", Role: sandbox.RoleOwner}, sandbox.Denied},
		"an owner whom an owner removed": {admin, users.Invite{ID: second.Person}, sandbox.Denied},
		"no ID":                          {admin, users.Invite{}, sandbox.Invalid},
		"no address":                     {admin, users.Invite{ID: "corp:new", Email: "x"}, sandbox.Invalid},
	} {
		if _, err := s.Create(t.Context(), tt.who, "acme", tt.in); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	if _, err := s.Create(t.Context(), admin, "acme", users.Invite{ID: second.Person, Role: sandbox.RoleViewer}); err != nil {
		t.Errorf("as a viewer: %v", err)
	}
	if _, err := s.Create(t.Context(), operator, "acme", users.Invite{ID: "corp:ops", Role: sandbox.RoleOwner}); err != nil {
		t.Fatal(err)
	}
	// The tenant's log tells what an operator did, and leaves its own people's doings to who recorded them.
	page, err := store.ListAudit(t.Context(), "acme", sandbox.AuditQuery{})
	if err != nil || len(page.Entries) != 1 || page.Entries[0].Operation != "createUser" || page.Entries[0].Target != "corp:ops" || page.Entries[0].User != "operator" {
		t.Errorf("the tenant's log: %+v, %v", page.Entries, err)
	}
}

// A decision about a user lapses if its maker's role is below the role in the user's
// token, also if the token came later. A decision of an equal role holds.
func TestWhoDecidesAboutThoseAbove(t *testing.T) {
	second := as("corp:second", sandbox.RoleOwner)
	type step func(t *testing.T, s *users.Service)
	invite := func(who sandbox.Identity, role sandbox.Role) step {
		return func(t *testing.T, s *users.Service) {
			if _, err := s.Create(t.Context(), who, "acme", users.Invite{ID: "corp:x", Role: role}); err != nil {
				t.Fatal(err)
			}
		}
	}
	set := func(who sandbox.Identity, c sandbox.UserChange) step {
		return func(t *testing.T, s *users.Service) { change(t, s, who, "corp:x", c) }
	}
	denied := func(who sandbox.Identity, c sandbox.UserChange) step {
		return func(t *testing.T, s *users.Service) {
			if _, err := s.Change(t.Context(), who, "acme", "corp:x", c); !errors.Is(err, sandbox.Denied) {
				t.Errorf("they may: %v", err)
			}
		}
	}
	remove := func(who sandbox.Identity) step {
		return func(t *testing.T, s *users.Service) {
			if err := s.Remove(t.Context(), who, "acme", "corp:x"); err != nil {
				t.Fatal(err)
			}
		}
	}
	comes := func(said sandbox.Role) step {
		return func(t *testing.T, s *users.Service) { _, _, _, _ = s.Enter(t.Context(), as("corp:x", said)) }
	}
	for name, tt := range map[string]struct {
		steps []step
		said  sandbox.Role
		as    sandbox.Role
		want  error
	}{
		"an admin invites as a viewer":            {[]step{invite(admin, sandbox.RoleViewer)}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
		"and lowers":                              {[]step{invite(admin, ""), set(admin, give(sandbox.RoleViewer))}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
		"and suspends":                            {[]step{invite(admin, sandbox.RoleAdmin), set(admin, suspend())}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
		"and removes":                             {[]step{invite(admin, ""), remove(admin)}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
		"and removes again":                       {[]step{invite(admin, ""), remove(admin), invite(admin, sandbox.RoleViewer), remove(admin)}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
		"and removes an operator":                 {[]step{invite(owner, ""), remove(owner)}, sandbox.RoleOperator, sandbox.RoleOperator, nil},
		"by a key":                                {[]step{invite(keyOf(admin), ""), remove(keyOf(admin))}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
		"an admin removes an admin":               {[]step{invite(admin, ""), remove(admin)}, sandbox.RoleAdmin, "", sandbox.ErrUserRemoved},
		"and suspends one":                        {[]step{invite(admin, ""), set(admin, suspend())}, sandbox.RoleAdmin, "", sandbox.ErrUserSuspended},
		"and lowers one":                          {[]step{invite(admin, sandbox.RoleViewer)}, sandbox.RoleAdmin, sandbox.RoleViewer, nil},
		"a developer became an owner meanwhile":   {[]step{comes(sandbox.RoleDeveloper), set(admin, suspend())}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
		"an owner lowers":                         {[]step{invite(owner, sandbox.RoleViewer)}, sandbox.RoleOwner, sandbox.RoleViewer, nil},
		"an owner removes":                        {[]step{comes(sandbox.RoleOwner), remove(owner)}, sandbox.RoleOwner, "", sandbox.ErrUserRemoved},
		"an owner removes whom an admin invited":  {[]step{invite(admin, sandbox.RoleViewer), remove(owner)}, sandbox.RoleOwner, "", sandbox.ErrUserRemoved},
		"an owner only names whom an admin keeps": {[]step{invite(admin, sandbox.RoleViewer), set(owner, sandbox.UserChange{Name: new("x")})}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
		"an admin goes on lowering":               {[]step{invite(owner, sandbox.RoleAdmin), set(admin, give(sandbox.RoleViewer))}, sandbox.RoleOwner, sandbox.RoleViewer, nil},
		"an admin has back as a viewer":           {[]step{invite(owner, ""), remove(owner), invite(admin, sandbox.RoleViewer)}, sandbox.RoleOwner, sandbox.RoleViewer, nil},
		"an admin gives back nothing": {[]step{
			invite(owner, ""), remove(owner), invite(admin, sandbox.RoleViewer), denied(admin, give("")),
		}, sandbox.RoleOwner, sandbox.RoleViewer, nil},
		"who was lowered forgives themselves": {[]step{
			comes(sandbox.RoleOwner), set(owner, give(sandbox.RoleAdmin)), comes(sandbox.RoleDeveloper), denied(as("corp:x", sandbox.RoleAdmin), give("")), denied(admin, give("")),
		}, sandbox.RoleOwner, sandbox.RoleAdmin, nil},
		"an admin resumes": {[]step{invite(owner, ""), set(owner, suspend()), denied(admin, resume())}, sandbox.RoleOwner, "", sandbox.ErrUserSuspended},
		"an owner forgives, and an admin begins anew": {[]step{
			invite(owner, sandbox.RoleViewer), set(owner, give("")), set(admin, suspend()),
		}, sandbox.RoleOwner, sandbox.RoleOwner, nil},
	} {
		t.Run(name, func(t *testing.T) {
			store := sqlitetest.Open(t)
			s := users.New(users.Config{Store: store, Audit: store})
			for _, who := range []sandbox.Identity{owner, second, admin} {
				enter(t, s, who)
			}
			for _, do := range tt.steps {
				do(t, s)
			}
			x := as("corp:x", tt.said)
			if tt.want != nil {
				refused(t, s, x, tt.want)
				return
			}
			got, _ := enter(t, s, x)
			byKey, _ := enter(t, s, keyOf(x))
			if got.Role != tt.as || byKey.Role != tt.as {
				t.Errorf("they are %s, by a key %s, want %s", got.Role, byKey.Role, tt.as)
			}
			// Their record says so, also to who reads it elsewhere, and those below leave it be.
			if u, err := s.Get(t.Context(), "acme", x.Person); err != nil || u.Role() != tt.as || u.State != sandbox.UserActive {
				t.Errorf("the record: %+v, %v", u, err)
			}
			elsewhere, _ := enter(t, users.New(users.Config{Store: store}), keyOf(x))
			if elsewhere.Role != tt.as {
				t.Errorf("elsewhere they are %s", elsewhere.Role)
			}
			if tt.as.Above(sandbox.RoleAdmin) {
				denied(admin, give(sandbox.RoleViewer))(t, s)
			}
		})
	}
}

// A removal without a recorded maker holds: an admin cannot restore a user of a higher
// role.
func TestRemovedBeforeDecisionsWereKept(t *testing.T) {
	store := sqlitetest.Open(t)
	s := users.New(users.Config{Store: store})
	x := as("corp:x", sandbox.RoleOwner)
	for _, who := range []sandbox.Identity{owner, admin, x} {
		enter(t, s, who)
	}
	if err := s.Remove(t.Context(), owner, "acme", x.Person); err != nil {
		t.Fatal(err)
	}
	u, err := store.UserByID(t.Context(), "acme", x.Person)
	if err != nil {
		t.Fatal(err)
	}
	u.DecidedBy = ""
	if _, err := store.UpdateUser(t.Context(), u, false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), admin, "acme", users.Invite{ID: x.Person}); !errors.Is(err, sandbox.Denied) {
		t.Errorf("an admin has them back: %v", err)
	}
	if _, err := s.Create(t.Context(), admin, "acme", users.Invite{ID: x.Person, Role: sandbox.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Change(t.Context(), admin, "acme", x.Person, give("")); !errors.Is(err, sandbox.Denied) {
		t.Errorf("an admin lets their tokens say: %v", err)
	}
	if got, _ := enter(t, s, x); got.Role != sandbox.RoleViewer {
		t.Errorf("they are %s", got.Role)
	}
}

// A lapsed decision stays lapsed, also if a token with a lower role arrives before the
// lapse was recorded. The Tenant's audit log has the lapse.
func TestLapsedThenLess(t *testing.T) {
	store := sqlitetest.Open(t)
	s := users.New(users.Config{Store: store, Audit: store, Log: slog.New(slog.DiscardHandler)})
	bob := as("corp:bob", sandbox.RoleDeveloper)
	enter(t, s, admin)
	enter(t, s, bob)
	change(t, s, admin, bob.Person, suspend())
	enter(t, s, as(bob.Person, sandbox.RoleOwner))
	enter(t, s, bob)
	if u, err := s.Get(t.Context(), "acme", bob.Person); err != nil || u.State != sandbox.UserActive || u.TokenRole != sandbox.RoleDeveloper {
		t.Errorf("the record: %+v, %v", u, err)
	}
	enter(t, users.New(users.Config{Store: store}), keyOf(bob))
	page, err := store.ListAudit(t.Context(), "acme", sandbox.AuditQuery{})
	if err != nil || len(page.Entries) != 1 || page.Entries[0].Operation != "changeUser" || page.Entries[0].Target != bob.Person || page.Entries[0].User != bob.Person || page.Entries[0].Role != sandbox.RoleOwner {
		t.Errorf("the tenant's log: %+v, %v", page.Entries, err)
	}
}

// A key that a user created does not undo a decision about the user.
func TestKeysOutrankNobody(t *testing.T) {
	s := users.New(users.Config{Store: sqlitetest.Open(t)})
	enter(t, s, admin)
	bob := as("corp:bob", sandbox.RoleDeveloper)
	enter(t, s, bob)
	change(t, s, admin, bob.Person, suspend())
	bob.Role = sandbox.RoleOwner
	refused(t, s, keyOf(bob), sandbox.ErrUserSuspended)
}

// A change by another process applies here within about a second, and cancels in-flight
// requests.
func TestChangesOfOtherProcesses(t *testing.T) {
	store := sqlitetest.Open(t)
	here, there := users.New(users.Config{Store: store}), users.New(users.Config{Store: store})
	run(t, here)
	bob := as("corp:bob", sandbox.RoleDeveloper)
	_, held := enter(t, here, bob)
	for _, err := there.Get(t.Context(), "acme", bob.Person); err != nil; _, err = there.Get(t.Context(), "acme", bob.Person) {
		time.Sleep(10 * time.Millisecond) // until it is written
	}
	if _, err := there.Change(t.Context(), owner, "acme", bob.Person, suspend()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-held.Done():
	case <-time.After(time.Minute):
		t.Fatal("what is under way goes on")
	}
	refused(t, here, bob, sandbox.ErrUserSuspended)
}

// A request that arrives while a user is suspended and resumed is admitted or refused by
// the state at that moment.
func TestChangesWhileManyCome(t *testing.T) {
	s := users.New(users.Config{Store: sqlitetest.Open(t)})
	bob := as("corp:bob", sandbox.RoleDeveloper)
	enter(t, s, bob)
	stop := make(chan struct{})
	var coming sync.WaitGroup
	for range 4 {
		coming.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, _, leave, err := s.Enter(context.Background(), bob); err == nil {
					leave()
				} else if !errors.Is(err, sandbox.ErrUserSuspended) {
					t.Error(err)
				}
			}
		})
	}
	for range 20 {
		change(t, s, owner, bob.Person, suspend())
		refused(t, s, bob, sandbox.ErrUserSuspended)
		change(t, s, owner, bob.Person, resume())
		enter(t, s, bob)
	}
	close(stop)
	coming.Wait()
}

func BenchmarkEnter(b *testing.B) {
	s := users.New(users.Config{Store: sqlitetest.Open(b)})
	bob := as("corp:bob", sandbox.RoleDeveloper)
	for b.Loop() {
		_, _, leave, err := s.Enter(b.Context(), bob)
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
}
