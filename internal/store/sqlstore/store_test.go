package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/storetest"
)

func open(t testing.TB, path string) *sqlstore.Store {
	t.Helper()
	st, err := sqlstore.OpenSQLite(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	closes(t, st)
	return st
}

func closes(t testing.TB, st *sqlstore.Store) {
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) sandbox.Store {
		st := sqlitetest.OpenAt(t, filepath.Join(t.TempDir(), "a folder", "50%?#&.db"))
		closes(t, st)
		return st
	})
}

func TestPair(t *testing.T) {
	storetest.RunPair(t, func(t *testing.T) [2]sandbox.Store {
		path := filepath.Join(t.TempDir(), "db")
		return [2]sandbox.Store{open(t, path), open(t, path)}
	})
}

func record() sandbox.Sandbox {
	return sandbox.Sandbox{
		ID: sandbox.NewSandboxID(), Tenant: "t", State: sandbox.Running, Template: "base", Image: "sha256:1",
		Engine: "fake", Shape: sandbox.DefaultShape(), Network: sandbox.NetworkPublic,
		Metadata:  map[string]string{"app": "x"},
		Boot:      sandbox.Boot{ID: sandbox.NewBootID(), Number: 1, Node: "local"},
		CreatedAt: time.Now(), Deadline: time.Now().Add(time.Hour), OnTimeout: sandbox.OnTimeoutEnd,
	}
}

func TestReopenKeepsRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	first := open(t, path)
	sb, err := first.InsertSandbox(t.Context(), record())
	if err != nil {
		t.Fatal(err)
	}
	second := open(t, path) // beside the first: as another process would
	if got, err := second.SandboxByID(t.Context(), sb.ID); err != nil || got.Version != 1 {
		t.Errorf("read from a second handle: %+v, %v", got, err)
	}
	sb.Timeline = 7
	if _, err := second.UpdateSandbox(t.Context(), sb); err != nil {
		t.Error(err)
	}
	if _, err := first.UpdateSandbox(t.Context(), sb); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("a version written elsewhere = %v, want conflict", err)
	}
}

func TestClosedStoreTakesNoWrites(t *testing.T) {
	st := open(t, filepath.Join(t.TempDir(), "x.db"))
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.InsertSandbox(t.Context(), record()); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("InsertSandbox = %v, want unavailable", err)
	}
}

// A closed store is one file that can be copied. SQLite's log is empty.
func TestClosedStoreIsOneFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.db")
	st := open(t, path)
	sb, err := st.InsertSandbox(t.Context(), record())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if logs, err := filepath.Glob(path + "-*"); err != nil || len(logs) > 0 {
		t.Errorf("beside the file are %v, %v", logs, err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "y.db")
	write(t, other, string(content))
	if _, err := open(t, other).SandboxByID(t.Context(), sb.ID); err != nil {
		t.Errorf("the copy: %v", err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(t *testing.T, path string)
		want string
	}{
		{"a folder", func(t *testing.T, path string) { mkdir(t, path) }, "is a directory"},
		{"below a file", func(t *testing.T, path string) { write(t, filepath.Dir(path), "x") }, "make the folder"},
		{"not a database", func(t *testing.T, path string) {
			mkdir(t, filepath.Dir(path))
			write(t, path, strings.Repeat("no database ", 1000))
		}, "damaged or not a database, restore it from a backup"},
		{"a newer schema", func(t *testing.T, path string) { newerSchema(t, path) }, "knows only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data", "x.db")
			tt.make(t, path)
			st, err := sqlstore.OpenSQLite(t.Context(), path)
			if err == nil {
				st.Close()
				t.Fatal("it opened")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open = %v, want it to say %q", err, tt.want)
			}
		})
	}
}

// database is one that a test also changes past the Store.
type database struct {
	driver, source string
	open           func() (*sqlstore.Store, error)
}

func (d database) exec(t *testing.T, statements ...string) {
	t.Helper()
	db, err := sql.Open(d.driver, d.source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestSchemaOfNewerProgramInSQLite(t *testing.T) {
	schemaOfNewerProgram(t, func(t *testing.T) database {
		path := filepath.Join(t.TempDir(), "x.db")
		return database{driver: "sqlite", source: path, open: func() (*sqlstore.Store, error) { return sqlstore.OpenSQLite(t.Context(), path) }}
	})
}

// schemaOfNewerProgram opens databases that a newer program has migrated. The row of
// schema_needs decides, and nothing is migrated, up or down.
func schemaOfNewerProgram(t *testing.T, made func(*testing.T) database) {
	for _, tt := range []struct {
		name   string
		change string // besides the newer version
		want   string // part of the error; empty: it opens
	}{
		{"it only adds", `ALTER TABLE nodes ADD COLUMN later TEXT NOT NULL DEFAULT ''`, ""},
		{"it needs a version that this program does not know", `UPDATE schema_needs SET version = 9998`, "schema version 9999 and serves programs that know version 9998, and this program knows only"},
		{"no row", `DELETE FROM schema_needs`, "schema version 9999, and this program knows only"},
		{"no table", `DROP TABLE schema_needs`, "schema version 9999, and this program knows only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := made(t)
			open := func() (*sqlstore.Store, error) {
				st, err := d.open()
				if err == nil {
					closes(t, st)
				}
				return st, err
			}
			st, err := open()
			if err != nil {
				t.Fatal(err)
			}
			sb, err := st.InsertSandbox(t.Context(), record())
			if err != nil {
				t.Fatal(err)
			}
			d.exec(t, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, `+map[string]string{"sqlite": "1", "pgx": "true"}[d.driver]+`)`, tt.change)
			for range 2 {
				st, err = open()
				if tt.want != "" {
					if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "start that one") {
						t.Errorf("Open = %v, want it to say %q", err, tt.want)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if got, err := st.SandboxByID(t.Context(), sb.ID); err != nil || got.ID != sb.ID {
					t.Errorf("a record of before: %v", err)
				}
				if _, err := st.RenewLease(t.Context(), sandbox.NodeRecord{Name: "n"}, time.Minute); err != nil {
					t.Errorf("a row of a table with a column more: %v", err)
				}
			}
		})
	}
	t.Run("an earlier program renews a lease", func(t *testing.T) {
		d := made(t)
		st, err := d.open()
		if err != nil {
			t.Fatal(err)
		}
		closes(t, st)
		for _, tt := range []struct{ change, want string }{
			{`UPDATE nodes SET engine = engine`, "v2"},
			{`INSERT INTO nodes (name, engine, address, lease_until, holder, epoch) VALUES ('n', 'fake', '', 1, '', 1)
				ON CONFLICT (name) DO UPDATE SET engine = excluded.engine, address = excluded.address, lease_until = excluded.lease_until, holder = excluded.holder, epoch = excluded.epoch`, ""},
		} {
			if _, err := st.RenewLease(t.Context(), sandbox.NodeRecord{Name: "n", Version: "v2"}, time.Minute); err != nil {
				t.Fatal(err)
			}
			d.exec(t, tt.change)
			if all, err := st.Nodes(t.Context()); err != nil || len(all) != 1 || all[0].Version != tt.want {
				t.Errorf("after %q the nodes are %+v, %v, want the version %q", tt.change, all, err, tt.want)
			}
		}
	})
}

// The migration creates records for Tenants that already have data.
func TestTenantsOfBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	st := open(t, path)
	if _, err := st.InsertSandbox(t.Context(), record()); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []sandbox.TenantID{"t", "a/b/c", "sha256:1"} {
		if err := st.SetQuota(t.Context(), tenant, &sandbox.Quota{Sandboxes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, os.DirFS("migrations/sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	const before = 21 // the schema without them
	if _, err := provider.DownTo(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	page, err := open(t, path).ListTenants(t.Context(), sandbox.TenantQuery{})
	if err != nil || len(page.Tenants) != 3 {
		t.Fatalf("%+v, %v", page.Tenants, err)
	}
	for i, want := range []sandbox.Tenant{{ID: "a/b/c", Parent: "a/b"}, {ID: "sha256:1"}, {ID: "t"}} {
		got := page.Tenants[i]
		if age := time.Since(got.CreatedAt); got.ID != want.ID || got.Parent != want.Parent || age < -time.Minute || age > time.Hour {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func mkdir(t *testing.T, path string) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func newerSchema(t *testing.T, path string) {
	if err := open(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1); UPDATE schema_needs SET version = 9999`); err != nil {
		t.Fatal(err)
	}
}

// A write to a full disk fails with Exhausted. A later write succeeds once there is room.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	st := open(t, path)
	st.LimitPages(t, 20)
	var err error
	for range 500 {
		sb := record()
		sb.Metadata = map[string]string{"big": strings.Repeat("x", 8<<10)}
		if _, err = st.InsertSandbox(t.Context(), sb); err != nil {
			break
		}
	}
	if !errors.Is(err, sandbox.Exhausted) {
		t.Fatalf("filling the disk = %v, want exhausted", err)
	}
	st.LimitPages(t, 1<<20)
	if _, err := st.InsertSandbox(t.Context(), record()); err != nil {
		t.Errorf("after making room: %v", err)
	}
}

// A failed write does not affect the others of its transaction.
func TestBatchKeepsTheGood(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { batchKeepsTheGood(t, open(t, filepath.Join(t.TempDir(), "x.db"))) })
	t.Run("postgres", func(t *testing.T) { batchKeepsTheGood(t, openPostgres(t, postgrestest.Start(t).Address(t))) })
}

func batchKeepsTheGood(t *testing.T, st *sqlstore.Store) {
	taken, err := st.InsertSandbox(t.Context(), record())
	if err != nil {
		t.Fatal(err)
	}
	release := st.HoldWriter(t)
	var wg sync.WaitGroup
	errs := make([]error, 21)
	for i := range errs {
		wg.Go(func() {
			sb := record()
			switch i % 3 {
			case 1:
				sb.ID = taken.ID
			case 2:
				errs[i] = st.InsertKeyTwice(context.Background(), sandbox.Key{ID: sb.ID, Tenant: "t"})
				return
			}
			_, errs[i] = st.InsertSandbox(context.Background(), sb)
		})
	}
	st.WaitQueued(t, len(errs))
	release()
	wg.Wait()
	for i, err := range errs {
		if want := [...]sandbox.Code{"", sandbox.Conflict, sandbox.Internal}[i%3]; sandbox.CodeOf(err) != want {
			t.Errorf("write %d = %v, want %q", i, err, want)
		}
	}
	if n, err := st.CountSandboxes(t.Context(), "t"); err != nil || n[sandbox.Running] != 8 {
		t.Errorf("stored %v, %v, want 8", n, err)
	}
	if keys, err := st.Keys(t.Context(), "t"); err != nil || len(keys) != 0 {
		t.Errorf("stored the keys %+v, %v", keys, err)
	}
	alone := st.InsertKeyTwice(t.Context(), sandbox.Key{ID: "k", Tenant: "t"})
	codetest.Want(t, "a key twice, alone", alone, sandbox.Internal)
	if keys, err := st.Keys(t.Context(), "t"); err != nil || len(keys) != 0 {
		t.Errorf("stored the keys %+v, %v", keys, err)
	}
}

// A caller that leaves while its write is queued has written nothing.
func TestGivenUpWriteNeverHappens(t *testing.T) {
	st := open(t, filepath.Join(t.TempDir(), "x.db"))
	release := st.HoldWriter(t)
	ctx, cancel := context.WithCancel(t.Context())
	sb := record()
	result := make(chan error)
	go func() {
		_, err := st.InsertSandbox(ctx, sb)
		result <- err
	}()
	st.WaitQueued(t, 1)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("InsertSandbox = %v, want context.Canceled", err)
	}
	release()
	if _, err := st.InsertSandbox(t.Context(), record()); err != nil { // flushes the queue
		t.Fatal(err)
	}
	if _, err := st.SandboxByID(t.Context(), sb.ID); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("the given up record = %v, want not_found", err)
	}
}

// Reads by key do not wait for long queries, and wait for a connection no longer than
// their client does.
func TestBriefReads(t *testing.T) {
	for name, read := range map[string]func(ctx context.Context, st *sqlstore.Store, sb sandbox.Sandbox) error{
		"by ID": func(ctx context.Context, st *sqlstore.Store, sb sandbox.Sandbox) error {
			_, err := st.SandboxByID(ctx, sb.ID)
			return err
		},
		"by name": func(ctx context.Context, st *sqlstore.Store, sb sandbox.Sandbox) error {
			_, err := st.SandboxByName(ctx, sb.Tenant, sb.Name)
			return err
		},
		"key": func(ctx context.Context, st *sqlstore.Store, _ sandbox.Sandbox) error {
			if _, err := st.KeyByHash(ctx, sandbox.KeyHash{}); !errors.Is(err, sandbox.Anonymous) && !errors.Is(err, sandbox.NotFound) {
				return err
			}
			return nil
		},
		"quota": func(ctx context.Context, st *sqlstore.Store, sb sandbox.Sandbox) error {
			_, err := st.TenantQuota(ctx, sb.Tenant)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := open(t, filepath.Join(t.TempDir(), "x.db"))
			sb := record()
			sb.Name = "web"
			sb, err := st.InsertSandbox(t.Context(), sb)
			if err != nil {
				t.Fatal(err)
			}
			st.HoldReads(t, false)
			if err := read(t.Context(), st, sb); err != nil {
				t.Errorf("beside long queries: %v", err)
			}
			st.HoldReads(t, true)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if err := read(ctx, st, sb); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("without a connection: %v", err)
			}
		})
	}
}

func BenchmarkInsert(b *testing.B) {
	st := open(b, filepath.Join(b.TempDir(), "x.db"))
	for b.Loop() {
		if _, err := st.InsertSandbox(b.Context(), record()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	st := open(b, filepath.Join(b.TempDir(), "x.db"))
	sb, err := st.InsertSandbox(b.Context(), record())
	for b.Loop() {
		if err == nil {
			sb, err = st.UpdateSandbox(b.Context(), sb)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInsertParallel(b *testing.B) {
	st := open(b, filepath.Join(b.TempDir(), "x.db"))
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := st.InsertSandbox(context.Background(), record()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkByID(b *testing.B) {
	st := open(b, filepath.Join(b.TempDir(), "x.db"))
	sb, err := st.InsertSandbox(b.Context(), record())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := st.SandboxByID(b.Context(), sb.ID); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList(b *testing.B) {
	st := open(b, filepath.Join(b.TempDir(), "x.db"))
	sb := record()
	for range 100 {
		one := record()
		one.Tenant = sb.Tenant
		if _, err := st.InsertSandbox(b.Context(), one); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if page, err := st.ListSandboxes(b.Context(), sb.Tenant, sandbox.ListQuery{}); err != nil || len(page.Sandboxes) != 100 {
			b.Fatal(len(page.Sandboxes), err)
		}
	}
}

func BenchmarkKeyByHash(b *testing.B) {
	st := open(b, filepath.Join(b.TempDir(), "x.db"))
	k := sandbox.Key{ID: "k", Tenant: "a", Scopes: []sandbox.Scope{"sessions"}, Hash: sandbox.KeyHash{1}, CreatedAt: time.Now()}
	if err := st.InsertKey(b.Context(), k); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := st.KeyByHash(b.Context(), k.Hash); err != nil {
			b.Fatal(err)
		}
	}
}
