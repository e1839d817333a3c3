package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
)

// later is long enough that a delay of the database's answer, which makes a question look
// older, does not matter.
func later() { time.Sleep(3 * time.Second) }

// Processes that share a database remember together what names of Templates mean, each
// Tenant for itself.
func TestSharedNames(t *testing.T) {
	t.Parallel()
	address := postgrestest.Start(t).Address(t)
	a, b := openPostgres(t, address).SharedNames(), openPostgres(t, address).SharedNames()
	ctx := t.Context()
	first := sandbox.TemplateMeaning{Version: "1", Defaults: sandbox.TemplateDefaults{User: "app", Cwd: "/srv", CPUs: 0.5, MemoryBytes: 1 << 30, DiskBytes: 2 << 30}}
	second := sandbox.TemplateMeaning{Version: "2"}
	is := func(what, asked string, want sandbox.TemplateMeaning) {
		t.Helper()
		if got, err := b.RememberedTemplate(ctx, "t", asked); err != nil || got != want {
			t.Errorf("%s: %q is %+v, %v, want %+v", what, asked, got, err, want)
		}
	}
	gone := func(what string, tenant sandbox.TenantID, asked string) {
		t.Helper()
		codetest.Want(t, what, codetest.ErrOf(b.RememberedTemplate(ctx, tenant, asked)), sandbox.NotFound)
	}
	remember := func(asked string, m sandbox.TemplateMeaning, age time.Duration) {
		t.Helper()
		codetest.OK(t, "RememberTemplate", a.RememberTemplate(ctx, "t", asked, m, age))
	}
	gone("before the first answer", "t", "web")
	remember("web", first, time.Minute)
	is("the first answer", "web", first)
	gone("another tenant's", "other", "web")
	gone("the operator's", "", "web")
	gone("another name", "t", "web:1")
	remember("web", second, 0)
	is("a newer answer", "web", second)
	remember("web", first, time.Minute)
	is("after an older answer", "web", second)

	remember("web:1", first, 0)
	remember("web2", first, 0)
	codetest.OK(t, "ForgetName", b.ForgetName(ctx, "t", "web:1", time.Minute))
	is("older than the answer", "web:1", first)
	later()
	codetest.OK(t, "ForgetName", b.ForgetName(ctx, "t", "web:1", 0))
	gone("a forgotten name", "t", "web:1")
	is("another name", "web", second)

	codetest.OK(t, "ForgetTemplate of another's", b.ForgetTemplate(ctx, "other", "web"))
	is("of another tenant", "web", second)
	codetest.OK(t, "ForgetTemplate", b.ForgetTemplate(ctx, "t", "web:some-tag"))
	gone("a name of a removed template", "t", "web")
	is("another template", "web2", first)
	remember("web", first, time.Minute)
	gone("an answer from before the removal", "t", "web")
	gone("the row that forgets", "t", "")
	later()
	remember("web", first, 0)
	is("made again", "web", first)
	codetest.OK(t, "ForgetTemplate again", a.ForgetTemplate(ctx, "t", "web@1"))
	gone("removed again", "t", "web")

	for _, bad := range []string{"", ":tag", "we\x00b", "\xff"} {
		codetest.Want(t, "RememberTemplate of a bad name", a.RememberTemplate(ctx, "t", bad, first, 0), sandbox.Invalid)
		gone("a bad name", "t", bad)
		codetest.OK(t, "ForgetName of a bad name", a.ForgetName(ctx, "t", bad, 0))
		codetest.OK(t, "ForgetTemplate of a bad name", a.ForgetTemplate(ctx, "t", bad))
	}
}

// An answer becomes older while it waits for a connection.
func TestSharedNamesThatWait(t *testing.T) {
	t.Parallel()
	address := postgrestest.Start(t).Address(t)
	slow := openPostgres(t, address)
	a, b := slow.SharedNames(), openPostgres(t, address).SharedNames()
	ctx := t.Context()
	codetest.OK(t, "RememberTemplate", b.RememberTemplate(ctx, "t", "other", sandbox.TemplateMeaning{Version: "1"}, time.Minute))
	release := slow.HoldReads(t, false)
	before := slow.ReadsThatWaited()
	late := make(chan error)
	go func() { late <- a.RememberTemplate(ctx, "t", "web", sandbox.TemplateMeaning{Version: "1"}, 0) }()
	go func() { late <- a.ForgetName(ctx, "t", "other", 0) }()
	for slow.ReadsThatWaited() < before+2 {
		time.Sleep(time.Millisecond)
	}
	codetest.OK(t, "ForgetTemplate", b.ForgetTemplate(ctx, "t", "web"))
	later()
	codetest.OK(t, "RememberTemplate", b.RememberTemplate(ctx, "t", "other", sandbox.TemplateMeaning{Version: "2"}, 0))
	release()
	for range 2 {
		codetest.OK(t, "the late call", <-late)
	}
	codetest.Want(t, "a template that was removed meanwhile", codetest.ErrOf(b.RememberedTemplate(ctx, "t", "web")), sandbox.NotFound)
	if m, err := b.RememberedTemplate(ctx, "t", "other"); err != nil || m.Version != "2" {
		t.Errorf("a name that was told meanwhile is %+v, %v", m, err)
	}
}

// The names of one Tenant are bounded, and names without a create for 30 days are forgotten.
func TestSharedNamesAreBounded(t *testing.T) {
	t.Parallel()
	address := postgrestest.Start(t).Address(t)
	names := openPostgres(t, address).SharedNames()
	ctx := t.Context()
	codetest.OK(t, "RememberTemplate of another's", names.RememberTemplate(ctx, "other", "kept", sandbox.TemplateMeaning{Version: "1"}, time.Hour))
	codetest.OK(t, "RememberTemplate long ago", names.RememberTemplate(ctx, "old", "web", sandbox.TemplateMeaning{Version: "1"}, 31*24*time.Hour))
	codetest.Want(t, "a name of long ago", codetest.ErrOf(names.RememberedTemplate(ctx, "old", "web")), sandbox.NotFound)
	const more = 5
	for i := range sandbox.MaxTemplateNames + more {
		codetest.OK(t, "RememberTemplate", names.RememberTemplate(ctx, "t", fmt.Sprint("web", i), sandbox.TemplateMeaning{Version: "1"}, 0))
	}
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for tenant, want := range map[string]int{"t": sandbox.MaxTemplateNames, "other": 1, "old": 0} {
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM template_names WHERE tenant = $1`, tenant).Scan(&n); err != nil || n != want {
			t.Errorf("%s has %d names, %v, want %d", tenant, n, err, want)
		}
	}
	codetest.Want(t, "the oldest name", codetest.ErrOf(names.RememberedTemplate(ctx, "t", "web0")), sandbox.NotFound)
	codetest.OK(t, "the newest name", codetest.ErrOf(names.RememberedTemplate(ctx, "t", fmt.Sprint("web", sandbox.MaxTemplateNames+more-1))))
}

// The names of a Tenant go with it, and its removal waits for no process that writes one.
func TestSharedNamesOfRemovedTenant(t *testing.T) {
	t.Parallel()
	address := postgrestest.Start(t).Address(t)
	store := openPostgres(t, address)
	names := store.SharedNames()
	ctx := t.Context()
	for _, tenant := range []sandbox.TenantID{"t", "other"} {
		for _, asked := range []string{"web", "web:1", "written"} {
			codetest.OK(t, "RememberTemplate", names.RememberTemplate(ctx, tenant, asked, sandbox.TemplateMeaning{Version: "1"}, 0))
		}
		codetest.OK(t, "ForgetTemplate", names.ForgetTemplate(ctx, tenant, "gone"))
	}
	codetest.Want(t, "an absent tenant", store.DeleteTenant(ctx, "t"), sandbox.NotFound)
	codetest.OK(t, "its names stay", codetest.ErrOf(names.RememberedTemplate(ctx, "t", "web")))
	codetest.OK(t, "InsertTenant", store.InsertTenant(ctx, sandbox.Tenant{ID: "t", Name: "t", CreatedAt: time.Now()}))
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // it ends the transaction
	if _, err := tx.ExecContext(ctx, `UPDATE template_names SET answered_at = clock_timestamp() WHERE asked = 'written'`); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	codetest.OK(t, "DeleteTenant", store.DeleteTenant(limited, "t"))
	for tenant, want := range map[string]int{"t": 1, "other": 4} {
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM template_names WHERE tenant = $1`, tenant).Scan(&n); err != nil || n != want {
			t.Errorf("%s has %d names, %v, want %d", tenant, n, err, want)
		}
	}
}
