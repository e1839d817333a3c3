package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver
	sqlite3 "modernc.org/sqlite/lib"
)

var sqliteDialect = dialect{
	name:     "sqlite",
	goose:    goose.DialectSQLite3,
	begin:    `BEGIN IMMEDIATE`,
	inStates: `state IN (SELECT value FROM json_each(?4))`,
	inList:   `IN (SELECT value FROM json_each(?1))`,
	// The same encoder wrote both sides of the comparison, so keys are equal however
	// json_each shows them.
	withMetadata: `NOT EXISTS (SELECT 1 FROM json_each(?5) AS want WHERE NOT EXISTS (
		SELECT 1 FROM json_each(sandboxes.metadata) AS have WHERE have.key = want.key AND have.value = want.value))`,
	mountsVolume: `EXISTS (SELECT 1 FROM json_each(sandboxes.volumes) AS mount WHERE mount.value ->> 'volume' = ?2)`,
	forgettable:  `users INDEXED BY users_forgettable`,
	// They change an unused number in the file's header.
	touch:      `PRAGMA user_version = 1`,
	touchAgain: `PRAGMA user_version = 2`,
	columnsOf:  `SELECT name FROM pragma_table_info(?)`,
	clock:      `0`,
	snapshot:   sql.TxOptions{ReadOnly: true},
}

// busyTimeout is how long a statement waits for another process's write to the file.
const busyTimeout = 5 * time.Second

// OpenSQLite opens the database at path, makes it and its folder if missing, and migrates its
// schema. An unwritable path, a file that is no database, a full disk and a newer
// program's schema each give a one-sentence error.
func OpenSQLite(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("database path: %w", err)
	}
	if err := checkWritable(path); err != nil {
		return nil, err
	}
	s := &Store{dialect: &sqliteDialect, counter: &counter{}, check: checker{folder: filepath.Dir(path)}}
	if err := s.openSQLite(ctx, path); err != nil {
		return nil, errors.Join(explainFile(path, err), s.closeHandles())
	}
	return s, nil
}

func (s *Store) openSQLite(ctx context.Context, path string) (err error) {
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
	s.checkpoints = startCheckpointer(s.reads)
	return s.start(ctx, max(4, runtime.GOMAXPROCS(0)))
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
	return migrate(ctx, db, &sqliteDialect)
}

// explainFile turns the errors of a database file into a sentence that names the file and
// what to do.
func explainFile(path string, err error) error {
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
