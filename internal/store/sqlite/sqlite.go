// Package sqlite is the Store of an installation on one machine, in one SQLite file.
//
// Writes of concurrent callers share a transaction (group commit), so that a burst costs
// few commits. Reads have their own connections and never wait for a write. Queries that
// every request makes never wait for a long read.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"
	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cloud-sandbox/cloud-sandbox"
)

//go:embed migrations/*.sql
var migrations embed.FS

// busyTimeout is how long a statement waits for another process's write to the file.
const busyTimeout = 5 * time.Second

// Store is a sandbox.Store in one SQLite file. Use Open. It returns an empty map of a
// record as nil.
type Store struct {
	reads  *sql.DB
	writes *sql.DB
	writer *writer
	query  queries
	brief  *briefReaders
	quota  sandbox.Quota // of Tenants without their own

	checkpoints *checkpointer

	counter counter
	check   checker

	closeOnce sync.Once
	closeErr  error
}

var _ sandbox.Store = (*Store)(nil)

// Open opens the database at path, makes it and its folder if missing, and migrates its
// schema. An unwritable path, a file that is no database, a full disk and a newer
// program's schema each give a one-sentence error.
func Open(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("database path: %w", err)
	}
	if err := checkWritable(path); err != nil {
		return nil, err
	}
	s := &Store{check: checker{folder: filepath.Dir(path)}}
	if err := s.open(ctx, path); err != nil {
		return nil, errors.Join(explain(path, err), s.closeHandles())
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, path string) (err error) {
	limits := []string{fmt.Sprintf("wal_autocheckpoint(%d)", maxLogPages), "journal_size_limit(0)"}
	if s.writes, err = sql.Open("sqlite", source(path, append(limits, "synchronous(NORMAL)", "temp_store(MEMORY)")...)); err != nil {
		return err
	}
	s.writes.SetMaxOpenConns(1)
	if err := migrateAlone(ctx, path, s.writes); err != nil {
		return err
	}
	if s.reads, err = sql.Open("sqlite", source(path, "query_only(1)")); err != nil {
		return err
	}
	readers := max(4, runtime.GOMAXPROCS(0))
	s.reads.SetMaxOpenConns(2 * readers)
	s.reads.SetMaxIdleConns(readers)
	if s.brief, err = openBrief(ctx, s.reads, readers); err != nil {
		return err
	}
	if err := prepare(ctx, s.reads, s.query.all()); err != nil {
		return err
	}
	s.checkpoints = startCheckpointer(s.reads)
	s.writer, err = startWriter(ctx, s.writes, s.checkpoints)
	return err
}

// source is the driver's name for a file, with the pragmas of each connection.
func source(path string, pragmas ...string) string {
	params := url.Values{}
	params.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()))
	params.Add("_pragma", "journal_mode(WAL)")
	for _, p := range pragmas {
		params.Add("_pragma", p)
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: params.Encode()}).String()
}

// checkWritable reports an unwritable path before SQLite does with the useless "out of
// memory (14)".
func checkWritable(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the folder of the database: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("open the database for writing: %w; give the file, and the folder it is in, to user %d", err, os.Geteuid())
	}
	if err != nil {
		return fmt.Errorf("open the database for writing: %w", err)
	}
	return f.Close()
}

// migrateAlone migrates under a lock file: roles start together.
func migrateAlone(ctx context.Context, path string, db *sql.DB) error {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	return migrate(ctx, db)
}

// migrate brings the schema up to date.
func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	have, known, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if have > known {
		return &newerSchemaError{have: have, known: known}
	}
	if have == known {
		return nil
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

type newerSchemaError struct{ have, known int64 }

func (e *newerSchemaError) Error() string {
	return fmt.Sprintf("it has schema version %d and this program knows only %d: it was used by a newer version, start that one", e.have, e.known)
}

// explain turns the errors of a database file into a sentence that names the file and
// what to do.
func explain(path string, err error) error {
	switch primaryCode(err) {
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("database %s: no space left on its disk, make room there: %w", path, err)
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("database %s: the file is damaged or not a database, restore it from a backup, or move it away with all that begins with its name to start with an empty one: %w", path, err)
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY:
		return fmt.Errorf("database %s: the file or its folder cannot be written, give both to user %d: %w", path, os.Geteuid(), err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("database %s: another process holds it, end that first: %w", path, err)
	}
	return fmt.Errorf("database %s: %w", path, err)
}

// primaryCode is SQLite's result code without its extension; 0 when err is not
// from SQLite.
func primaryCode(err error) int {
	return extendedCode(err) & 0xff
}

func extendedCode(err error) int {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// classify gives a statement's error its Code.
func classify(err error) error {
	var own *sandbox.Error
	switch {
	case err == nil, errors.As(err, &own), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	switch primaryCode(err) {
	case sqlite3.SQLITE_FULL:
		return sandbox.Errorf(sandbox.Exhausted, "the server's disk is full").WithCause(err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return sandbox.Errorf(sandbox.Unavailable, "the database is busy").WithCause(err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR:
		return sandbox.Errorf(sandbox.Unavailable, "the disk that the database is on fails or has become read-only: the operator must repair it").WithCause(err)
	case sqlite3.SQLITE_INTERRUPT:
		return context.Canceled
	}
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, errClosed) {
		return sandbox.Errorf(sandbox.Unavailable, "the server is stopping").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Internal, "the database failed").WithCause(err)
}

// Close waits for running writes and closes the file. Later writes are Unavailable.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.writer.close()
		s.closeErr = s.closeHandles()
	})
	return s.closeErr
}

func (s *Store) closeHandles() error {
	if s.checkpoints != nil {
		s.checkpoints.close()
	}
	var errs []error
	if s.brief != nil {
		errs = append(errs, s.brief.close())
	}
	for _, db := range []*sql.DB{s.reads, s.writes} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}
