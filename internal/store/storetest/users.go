package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func sampleUser(tenant sandbox.TenantID, id string) sandbox.User {
	return sandbox.User{
		Tenant: tenant, ID: id, Name: "Ann é", Email: "ann@example.com", Source: sandbox.UserByIssuer, Issuer: "corp",
		Given: sandbox.RoleAdmin, TokenRole: sandbox.RoleViewer, State: sandbox.UserActive, CreatedAt: epoch, SeenAt: epoch.Add(time.Minute),
	}
}

func insertUser(t *testing.T, st sandbox.Store, u sandbox.User) sandbox.User {
	t.Helper()
	u, err := st.InsertUser(t.Context(), u)
	must(t, err)
	return u
}

func userBy(t *testing.T, st sandbox.Store, tenant sandbox.TenantID, id string) sandbox.User {
	t.Helper()
	u, err := st.UserByID(t.Context(), tenant, id)
	must(t, err)
	return u
}

func userRoundTrip(t *testing.T, st sandbox.Store) {
	u := insertUser(t, st, sampleUser("t", "corp:a/b ü"))
	if got := userBy(t, st, "t", u.ID); got != u || u.Version == 0 {
		t.Errorf("UserByID = %+v, want %+v", got, u)
	}
	_, err := st.InsertUser(t.Context(), sampleUser("t", u.ID))
	codetest.Want(t, "the same ID", err, sandbox.Conflict)
	_, err = st.UserByID(t.Context(), "t", "corp:a")
	codetest.Want(t, "another ID", err, sandbox.NotFound)
}

func userTenants(t *testing.T, st sandbox.Store) {
	u := insertUser(t, st, sampleUser("t", "a"))
	insertUser(t, st, sampleUser("other", "a"))
	_, err := st.UserByID(t.Context(), "third", "a")
	codetest.Want(t, "another tenant asks", err, sandbox.NotFound)
	foreign := u
	foreign.Tenant = "third"
	_, err = st.UpdateUser(t.Context(), foreign, false)
	codetest.Want(t, "another tenant changes them", err, sandbox.NotFound)
	u.State = sandbox.UserSuspended
	_, err = st.UpdateUser(t.Context(), u, false)
	must(t, err)
	if got := userBy(t, st, "other", "a"); got.State != sandbox.UserActive {
		t.Errorf("a namesake became %+v", got)
	}
	must(t, st.NoteTenants(t.Context(), []sandbox.Tenant{{ID: "t", CreatedAt: epoch}}))
	must(t, st.DeleteTenant(t.Context(), "t"))
	_, err = st.UserByID(t.Context(), "t", "a")
	codetest.Want(t, "with the tenant", err, sandbox.NotFound)
	userBy(t, st, "other", "a")
}

func userNotes(t *testing.T, st sandbox.Store) {
	seen := sandbox.User{
		Tenant: "t", ID: "a", Source: sandbox.UserByToken, TokenRole: sandbox.RoleDeveloper, State: sandbox.UserActive,
		CreatedAt: epoch, SeenAt: epoch, Name: "A",
	}
	must(t, st.NoteUsers(t.Context(), []sandbox.User{seen}))
	u := userBy(t, st, "t", "a")
	if seen.Version = u.Version; u != seen || u.Version == 0 {
		t.Errorf("noted as %+v, want %+v", u, seen)
	}
	u.State, u.Given, u.Email = sandbox.UserSuspended, sandbox.RoleViewer, "a@example.com"
	u, err := st.UpdateUser(t.Context(), u, false)
	must(t, err)
	again := seen
	again.SeenAt, again.Source, again.Name = epoch.Add(time.Hour), sandbox.UserByIssuer, "B"
	must(t, st.NoteUsers(t.Context(), []sandbox.User{again}))
	u.SeenAt, u.Name = again.SeenAt, "B"
	if got := userBy(t, st, "t", "a"); got != u {
		t.Errorf("noted again as %+v, want %+v", got, u)
	}
	again.SeenAt, again.Name = epoch, ""
	must(t, st.NoteUsers(t.Context(), []sandbox.User{again}))
	if got := userBy(t, st, "t", "a"); got != u {
		t.Errorf("noted as of before: %+v, want %+v", got, u)
	}
	again.TokenRole = sandbox.RoleOwner
	must(t, st.NoteUsers(t.Context(), []sandbox.User{again}))
	if got := userBy(t, st, "t", "a"); got.TokenRole != sandbox.RoleOwner || got.Version == u.Version {
		t.Errorf("with another role: %+v", got)
	}
}

func userOutranks(t *testing.T, st sandbox.Store) {
	for i, u := range []sandbox.User{
		{Given: sandbox.RoleViewer, State: sandbox.UserActive},
		{Given: sandbox.RoleViewer, State: sandbox.UserSuspended},
		{State: sandbox.UserRemoved},
	} {
		u.Tenant, u.ID, u.Source, u.DecidedBy, u.CreatedAt = "t", fmt.Sprintf("u%d", i), sandbox.UserInvited, sandbox.RoleAdmin, epoch
		u = insertUser(t, st, u)
		note := func(said sandbox.Role) {
			must(t, st.NoteUsers(t.Context(), []sandbox.User{{Tenant: "t", ID: u.ID, TokenRole: said, Name: "N", SeenAt: epoch.Add(time.Hour)}}))
		}
		note(sandbox.RoleAdmin)
		got := userBy(t, st, "t", u.ID)
		if got.Given != u.Given || got.State != u.State || got.DecidedBy != u.DecidedBy {
			t.Errorf("told to be no more than who decided, %+v becomes %+v", u, got)
		}
		before, err := st.UsersChanged(t.Context())
		must(t, err)
		note(sandbox.RoleOwner)
		after, err := st.UsersChanged(t.Context())
		must(t, err)
		told := userBy(t, st, "t", u.ID)
		if told.Given != "" || told.State != sandbox.UserActive || told.DecidedBy != "" || told.TokenRole != sandbox.RoleOwner || told.Name != "N" || after == before {
			t.Errorf("told to be more, %+v becomes %+v; others hear of it: %v", u, told, after != before)
		}
		got.State = sandbox.UserSuspended
		_, err = st.UpdateUser(t.Context(), got, true)
		codetest.Want(t, "a change of who had not heard", err, sandbox.Conflict)
		told.Given, told.DecidedBy = sandbox.RoleViewer, sandbox.RoleOwner
		_, err = st.UpdateUser(t.Context(), told, false)
		must(t, err)
		note(sandbox.RoleOwner)
		if got := userBy(t, st, "t", u.ID); got.Given != sandbox.RoleViewer || got.DecidedBy != sandbox.RoleOwner {
			t.Errorf("what an owner decided became %+v", got)
		}
	}
}

func userChanges(t *testing.T, st sandbox.Store) {
	u := insertUser(t, st, sampleUser("t", "a"))
	first := u
	first.Given, first.Name, first.Email, first.State = "", "N", "n@example.com", sandbox.UserSuspended
	first.TokenRole, first.CreatedAt, first.SeenAt = sandbox.RoleOwner, epoch.Add(time.Hour), epoch.Add(time.Hour)
	after, err := st.UpdateUser(t.Context(), first, false)
	must(t, err)
	got := userBy(t, st, "t", "a")
	if got.Given != "" || got.Name != "N" || got.Email != "n@example.com" || got.State != sandbox.UserSuspended || got.Version != after.Version || got.Version == u.Version {
		t.Errorf("changed to %+v", got)
	}
	if got.TokenRole != u.TokenRole || !got.CreatedAt.Equal(u.CreatedAt) || !got.SeenAt.Equal(u.SeenAt) {
		t.Errorf("what a change does not write became %+v", got)
	}
	_, err = st.UpdateUser(t.Context(), u, false)
	codetest.Want(t, "as read before", err, sandbox.Conflict)
	u.ID = "b"
	_, err = st.UpdateUser(t.Context(), u, false)
	codetest.Want(t, "an absent one", err, sandbox.NotFound)
}

func userRemoved(t *testing.T, st sandbox.Store) {
	u := insertUser(t, st, sampleUser("t", "alice"))
	theirs, others, namesakes := sampleKey("t"), sampleKey("t"), sampleKey("other")
	others.CreatedBy = "bob"
	for _, k := range []sandbox.Key{theirs, others, namesakes} {
		must(t, st.InsertKey(t.Context(), k))
	}
	u.State = sandbox.UserRemoved
	u, err := st.UpdateUser(t.Context(), u, true)
	must(t, err)
	_, err = st.KeyByHash(t.Context(), theirs.Hash)
	codetest.Want(t, "their key", err, sandbox.NotFound)
	for _, k := range []sandbox.Key{others, namesakes} {
		if got, err := st.KeyByHash(t.Context(), k.Hash); err != nil || got.CreatedBy != k.CreatedBy {
			t.Errorf("another's key: %+v, %v", got, err)
		}
	}
	must(t, st.NoteUsers(t.Context(), []sandbox.User{{Tenant: "t", ID: "alice", TokenRole: sandbox.RoleOwner, Name: "x", SeenAt: epoch.Add(time.Hour)}}))
	if got := userBy(t, st, "t", "alice"); got != u {
		t.Errorf("noted, they are %+v, want %+v", got, u)
	}
	again := sandbox.User{Tenant: "t", ID: "alice", Source: sandbox.UserInvited, State: sandbox.UserActive, CreatedAt: epoch.Add(time.Hour)}
	_, err = st.InsertUser(t.Context(), again)
	codetest.Want(t, "invited by who did not know", err, sandbox.Conflict)
	again.Version = u.Version
	back := insertUser(t, st, again)
	if got := userBy(t, st, "t", "alice"); got != back || got.Version <= u.Version {
		t.Errorf("invited again they are %+v, want %+v", got, back)
	}
}

func userOwners(t *testing.T, st sandbox.Store) {
	owner := func(id string) sandbox.User {
		u := sampleUser("t", id)
		u.Given = sandbox.RoleOwner
		return insertUser(t, st, u)
	}
	a, b := owner("a"), owner("b")
	said := sampleUser("other", "x") // of another tenant
	said.Given = sandbox.RoleOwner
	insertUser(t, st, said)
	admin := insertUser(t, st, sampleUser("t", "admin"))
	b.State = sandbox.UserSuspended
	b, err := st.UpdateUser(t.Context(), b, true)
	must(t, err)
	for what, change := range map[string]func(*sandbox.User){
		"demoted":   func(u *sandbox.User) { u.Given = sandbox.RoleAdmin },
		"suspended": func(u *sandbox.User) { u.State = sandbox.UserSuspended },
		"removed":   func(u *sandbox.User) { u.State = sandbox.UserRemoved },
		"as said":   func(u *sandbox.User) { u.Given = "" },
	} {
		changed := a
		change(&changed)
		if _, err := st.UpdateUser(t.Context(), changed, true); !errors.Is(err, sandbox.ErrLastOwner) {
			t.Errorf("the last owner is %s: %v", what, err)
		}
	}
	if got := userBy(t, st, "t", "a"); got != a {
		t.Errorf("the last owner became %+v", got)
	}
	admin.State = sandbox.UserSuspended
	_, err = st.UpdateUser(t.Context(), admin, true)
	must(t, err)
	a.Name = "another"
	a, err = st.UpdateUser(t.Context(), a, true)
	must(t, err)
	// An owner only by their token counts too.
	must(t, st.NoteUsers(t.Context(), []sandbox.User{{Tenant: "t", ID: "c", TokenRole: sandbox.RoleOwner, State: sandbox.UserActive, CreatedAt: epoch, SeenAt: epoch}}))
	a.Given = sandbox.RoleAdmin
	a, err = st.UpdateUser(t.Context(), a, true)
	must(t, err)
	c := userBy(t, st, "t", "c")
	c.State = sandbox.UserSuspended
	if _, err := st.UpdateUser(t.Context(), c, true); !errors.Is(err, sandbox.ErrLastOwner) {
		t.Errorf("the last owner by token is suspended: %v", err)
	}
	_, err = st.UpdateUser(t.Context(), c, false) // for an operator
	must(t, err)
}

func userOwnersRace(t *testing.T, st sandbox.Store) {
	var all []sandbox.User
	for i := range 8 {
		u := sampleUser("t", fmt.Sprintf("o%d", i))
		u.Given = sandbox.RoleOwner
		all = append(all, insertUser(t, st, u))
	}
	var wg sync.WaitGroup
	for _, u := range all {
		wg.Go(func() {
			u.Given = sandbox.RoleViewer
			if _, err := st.UpdateUser(t.Context(), u, true); err != nil && !errors.Is(err, sandbox.ErrLastOwner) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	owners := 0
	for _, u := range all {
		if userBy(t, st, "t", u.ID).Owns() {
			owners++
		}
	}
	if owners != 1 {
		t.Errorf("%d owners are left", owners)
	}
}

func userLimit(t *testing.T, st sandbox.Store) {
	seen := func(i int, state sandbox.UserState) sandbox.User {
		return sandbox.User{
			Tenant: "t", ID: fmt.Sprintf("u%05d", i), Source: sandbox.UserByToken, State: state, TokenRole: sandbox.RoleDeveloper,
			CreatedAt: epoch, SeenAt: epoch.Add(time.Duration(i) * time.Second),
		}
	}
	var all []sandbox.User
	for i := range sandbox.MaxUsers {
		state := sandbox.UserActive
		if i == 0 || i > 2 { // only 1 and 2 may be forgotten
			state = sandbox.UserSuspended
		}
		all = append(all, seen(i, state))
	}
	// Not in one write, which a slow database server would not do in time.
	for some := range slices.Chunk(all, 500) {
		must(t, st.NoteUsers(t.Context(), some))
	}
	changed, err := st.UsersChanged(t.Context())
	must(t, err)
	insertUser(t, st, sampleUser("t", "invited"))
	if now, err := st.UsersChanged(t.Context()); err != nil || now == changed {
		t.Errorf("that a user was forgotten does not show: %d, %v", now, err)
	}
	must(t, st.NoteUsers(t.Context(), []sandbox.User{seen(20_000, sandbox.UserSuspended)}))
	for id, want := range map[string]bool{"u00000": true, "u00001": false, "u00002": false, "u00003": true, "invited": true, "u20000": true} {
		if _, err := st.UserByID(t.Context(), "t", id); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
	_, err = st.InsertUser(t.Context(), sampleUser("t", "another"))
	codetest.Want(t, "one too many", err, sandbox.Exhausted)
	must(t, st.NoteUsers(t.Context(), []sandbox.User{seen(30_000, sandbox.UserActive)}))
	_, err = st.UserByID(t.Context(), "t", "u30000")
	codetest.Want(t, "one that there is no room for", err, sandbox.NotFound)
	insertUser(t, st, sampleUser("other", "another"))
}

func userLists(t *testing.T, st sandbox.Store) {
	states := []sandbox.UserState{sandbox.UserActive, sandbox.UserSuspended, sandbox.UserRemoved}
	for i := range 7 {
		u := sampleUser("t", fmt.Sprintf("u%d", i))
		u.State = states[i%3]
		insertUser(t, st, u)
	}
	insertUser(t, st, sampleUser("other", "u9"))
	for state, want := range map[sandbox.UserState]string{
		"": "u0 u1 u3 u4 u6", sandbox.UserActive: "u0 u3 u6", sandbox.UserSuspended: "u1 u4", sandbox.UserRemoved: "u2 u5",
	} {
		var got []string
		q := sandbox.UserQuery{State: state, Limit: 2}
		for {
			page, err := st.ListUsers(t.Context(), "t", q)
			if err != nil || len(page.Users) > 2 {
				t.Fatalf("%d users, %v", len(page.Users), err)
			}
			for _, u := range page.Users {
				got = append(got, u.ID)
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("of state %q there are %v, want %s", state, got, want)
		}
	}
	for _, q := range []sandbox.UserQuery{{Limit: -1}, {Limit: sandbox.MaxTenantPage + 1}, {Cursor: "%"}} {
		_, err := st.ListUsers(t.Context(), "t", q)
		codetest.Want(t, fmt.Sprintf("%+v", q), err, sandbox.Invalid)
	}
}

func userChangesShow(t *testing.T, st sandbox.Store) {
	last, err := st.UsersChanged(t.Context())
	must(t, err)
	shows := func(what string, want bool) {
		t.Helper()
		n, err := st.UsersChanged(t.Context())
		if err != nil || (n != last) != want {
			t.Errorf("%s shows: %v, %v", what, n != last, err)
		}
		last = n
	}
	shows("nothing", false)
	u := insertUser(t, st, sampleUser("t", "a"))
	shows("a new one", true)
	must(t, st.NoteUsers(t.Context(), []sandbox.User{u}))
	shows("a visit", false)
	must(t, st.NoteUsers(t.Context(), []sandbox.User{sampleUser("t", "newcomer")}))
	shows("the first visit of somebody about whom nobody decided", false)
	u.State = sandbox.UserSuspended
	_, err = st.UpdateUser(t.Context(), u, true)
	must(t, err)
	shows("a change", true)
	_, err = st.UpdateUser(t.Context(), u, true)
	codetest.Want(t, "as read before", err, sandbox.Conflict)
	shows("a change that was not made", false)
	must(t, st.NoteTenants(t.Context(), []sandbox.Tenant{{ID: "t", CreatedAt: epoch}}))
	must(t, st.DeleteTenant(t.Context(), "t"))
	shows("a removed tenant", true)
}
