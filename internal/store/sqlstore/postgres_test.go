package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/storetest"
)

func openPostgres(t testing.TB, address string) *sqlstore.Store {
	t.Helper()
	st, err := sqlstore.OpenPostgres(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	closes(t, st)
	return st
}

func TestStoreInPostgres(t *testing.T) {
	server := postgrestest.Start(t)
	storetest.Run(t, func(t *testing.T) sandbox.Store { return openPostgres(t, server.Address(t)) })
}

func TestPairInPostgres(t *testing.T) {
	server := postgrestest.Start(t)
	for range repeats(t) {
		storetest.RunPair(t, func(t *testing.T) [2]sandbox.Store {
			address := server.Address(t)
			return [2]sandbox.Store{openPostgres(t, address), openPostgres(t, address)}
		})
	}
}

// repeats returns how often the race tests of two Stores run: a few times, or as often as
// the environment says.
func repeats(t *testing.T) int {
	t.Helper()
	const name = "CLOUD_SANDBOX_STORE_RACES"
	text := os.Getenv(name)
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s is %q, not a number", name, text)
	}
	return n
}

// Only a write of sandbox.CommitLater does not wait for the disk, and only if all writes of
// its transaction are such writes.
func TestCommitLater(t *testing.T) {
	t.Parallel()
	st := openPostgres(t, postgrestest.Start(t).Address(t))
	later := sandbox.CommitLater(t.Context())
	for _, tt := range []struct {
		ctx  context.Context
		want string
	}{{later, "off"}, {t.Context(), "on"}, {later, "off"}} {
		if got := st.Waits(t, tt.ctx); got != tt.want {
			t.Errorf("synchronous_commit is %s, want %s", got, tt.want)
		}
	}
	release := st.HoldWriter(t)
	settings := make([]string, 2)
	var all sync.WaitGroup
	for i, ctx := range []context.Context{later, t.Context()} {
		all.Go(func() { settings[i] = st.Waits(t, ctx) })
	}
	st.WaitQueued(t, len(settings))
	release()
	all.Wait()
	if settings[0] != "on" || settings[1] != "on" {
		t.Errorf("in one transaction synchronous_commit is %v, want on", settings)
	}
}

// Processes that start concurrently migrate an empty database once.
func TestPostgresIsMigratedOnce(t *testing.T) {
	t.Parallel()
	address := postgrestest.Start(t).Address(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			st, err := sqlstore.OpenPostgres(t.Context(), address)
			if err != nil {
				t.Error(err)
				return
			}
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Processes of this version and of a newer one, which only adds, start together on an
// empty database. All succeed, whichever of them migrates it.
func TestVersionsStartTogetherInPostgres(t *testing.T) {
	t.Parallel()
	address := postgrestest.Start(t).Address(t)
	newer := fstest.MapFS{"09999_later.sql": {Data: []byte("-- +goose Up\nCREATE TABLE later (n BIGINT);\n")}}
	files, err := filepath.Glob("migrations/postgres/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		newer[filepath.Base(path)] = &fstest.MapFile{Data: content}
	}
	migrate := func() error {
		db, err := sql.Open("pgx", address)
		if err != nil {
			return err
		}
		defer db.Close()
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return err
		}
		provider, err := goose.NewProvider(goose.DialectPostgres, db, newer, goose.WithSessionLocker(locker))
		if err == nil {
			_, err = provider.Up(t.Context())
		}
		return err
	}
	open := func() error {
		st, err := sqlstore.OpenPostgres(t.Context(), address)
		if err == nil {
			err = st.Close()
		}
		return err
	}
	var all sync.WaitGroup
	for _, start := range []func() error{open, migrate, open, migrate} {
		all.Go(func() {
			if err := start(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := open(); err != nil {
		t.Errorf("on the schema of the newer version: %v", err)
	}
}

func TestSchemaOfNewerProgramInPostgres(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	schemaOfNewerProgram(t, func(t *testing.T) database {
		address := server.Address(t)
		return database{driver: "pgx", source: address, open: func() (*sqlstore.Store, error) { return sqlstore.OpenPostgres(t.Context(), address) }}
	})
}

// While the server is down, every call fails with Unavailable. Once it is back, the same
// Store works again.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	st := openPostgres(t, server.Address(t))
	sb, err := st.InsertSandbox(t.Context(), record())
	if err != nil {
		t.Fatal(err)
	}
	server.Stop(t)
	for range 3 {
		_, err = st.InsertSandbox(t.Context(), record())
		codetest.Want(t, "a write while it is away", err, sandbox.Unavailable)
		_, err = st.SandboxByID(t.Context(), sb.ID)
		codetest.Want(t, "a read while it is away", err, sandbox.Unavailable)
	}
	codetest.Want(t, "the check", st.CheckWrite(t.Context()), sandbox.Unavailable)
	server.Run(t)
	if _, err := st.InsertSandbox(t.Context(), record()); err != nil {
		t.Errorf("a write when it is back: %v", err)
	}
	if _, err := st.SandboxByID(t.Context(), sb.ID); err != nil {
		t.Errorf("a read when it is back: %v", err)
	}
}

// A process that hangs in the middle of a write does not block the others.
func TestPostgresWriterVanishes(t *testing.T) {
	t.Parallel()
	address := postgrestest.Start(t).Address(t)
	lost, other := openPostgres(t, address), openPostgres(t, address)
	release := sync.OnceFunc(lost.HoldWriter(t))
	defer release()
	began := time.Now()
	if _, err := other.InsertSandbox(t.Context(), record()); err != nil {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	release()
	if _, err := lost.InsertSandbox(t.Context(), record()); err != nil {
		t.Errorf("when the first one is back: %v", err)
	}
}

// silentLimit is how long a call to a silent server may take. The server is asked after a
// second and has four to answer; this machine may be busy.
const silentLimit = 13 * time.Second

// A server that is stopped in its tracks, with its connections open, is Unavailable within
// seconds to reads and writes, and then at once, until it goes on.
func TestPostgresSilent(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	st := openPostgres(t, server.Address(t))
	sb, err := st.InsertSandbox(t.Context(), record())
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"a write":     func() error { return codetest.ErrOf(st.InsertSandbox(t.Context(), record())) },
		"a look-up":   func() error { return codetest.ErrOf(st.SandboxByID(t.Context(), sb.ID)) },
		"a list":      func() error { return codetest.ErrOf(st.Nodes(t.Context())) },
		"the check":   func() error { return st.CheckWrite(t.Context()) },
		"a large one": func() error { return st.SharedBuilds().PutBuildRecord(t.Context(), largeRecord()) },
	}
	for _, call := range calls { // each has a connection
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(1100 * time.Millisecond) // the result of the check counts for a second
	server.Freeze(t, true)
	t.Cleanup(func() { server.Freeze(t, false) })
	all := func(within time.Duration) {
		t.Helper()
		var waiting sync.WaitGroup
		for name, call := range calls {
			waiting.Go(func() {
				began := time.Now()
				err := call()
				codetest.Want(t, name, err, sandbox.Unavailable)
				if took := time.Since(began); took > within {
					t.Errorf("%s took %s, and may take %s: %v", name, took, within, err)
				}
				if err != nil && strings.Contains(err.Error(), "may have taken effect") {
					t.Errorf("%s was not committed: %v", name, err)
				}
			})
		}
		waiting.Wait()
	}
	all(silentLimit)
	all(5 * time.Second)
	server.Freeze(t, false)
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		var errs []error
		for _, call := range calls {
			errs = append(errs, call())
		}
		err := errors.Join(errs...)
		if err == nil {
			break
		}
		if time.Since(began) > silentLimit {
			t.Fatalf("when it is back: %v", err)
		}
	}
}

// largeRecord is more than a connection's buffers hold.
func largeRecord() sandbox.BuildRecord {
	return sandbox.BuildRecord{ID: "large", Tenant: "t", State: sandbox.RecordTaken, Body: []byte("{}"), Log: make([]byte, 32<<20)}
}

// A write whose commit a silent server does not confirm may have taken effect, and says so
// within seconds.
func TestPostgresSilentCommit(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	st := openPostgres(t, server.Address(t))
	commit := st.HoldCommit(t)
	server.Freeze(t, true)
	t.Cleanup(func() { server.Freeze(t, false) })
	began := time.Now()
	err := commit()
	codetest.Want(t, "a commit", err, sandbox.Unavailable)
	if took := time.Since(began); took > silentLimit || !strings.Contains(err.Error(), "may have taken effect") {
		t.Errorf("a commit after %s: %v", took, err)
	}
}

// A server that is slow, and answers other questions meanwhile, is waited for.
func TestPostgresSlow(t *testing.T) {
	t.Parallel()
	st := openPostgres(t, postgrestest.Start(t).Address(t))
	if err := st.ReadFor(t.Context(), silentLimit); err != nil {
		t.Errorf("a slow read: %v", err)
	}
}

func TestOpenPostgresSaysWhatIsWrong(t *testing.T) {
	good, err := url.Parse(postgrestest.Start(t).Address(t))
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*url.URL)) string {
		u := *good
		change(&u)
		return u.String()
	}
	for name, tt := range map[string]struct{ address, want string }{
		"no URL":        {"somewhere", "has the form postgres://"},
		"a bad URL":     {"postgres://u:s3cret%zz@host/name", "has the form postgres://"},
		"nobody there":  {with(func(u *url.URL) { u.Host = "127.0.0.1:1"; u.User = url.UserPassword("u", "s3cret") }), "does not answer, start it or mend the address"},
		"no database":   {with(func(u *url.URL) { u.Path = "/absent" }), "make it with createdb"},
		"no such user":  {with(func(u *url.URL) { u.User = url.UserPassword("absent", "s3cret") }), "refuses the user"},
		"no such place": {with(func(u *url.URL) { u.RawQuery = "sslmode=disable&search_path=absent" }), "no schema"},
	} {
		st, err := sqlstore.OpenPostgres(t.Context(), tt.address)
		if err == nil {
			st.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want it to say %q", name, err, tt.want)
		}
	}
}
