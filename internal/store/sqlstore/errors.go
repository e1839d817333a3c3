package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// classify gives a statement's error its Code.
func classify(err error) error {
	var own *sandbox.Error
	var connecting *pgconn.ConnectError
	switch {
	case errors.As(err, &connecting): // also by a time limit of its own, which is not the caller's
		return sandbox.Errorf(sandbox.Unavailable, "the database server cannot be reached").WithCause(err)
	case err == nil, errors.As(err, &own), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, sql.ErrConnDone), errors.Is(err, errClosed):
		return sandbox.Errorf(sandbox.Unavailable, "the server is stopping").WithCause(err)
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
	switch state := sqlState(err); {
	case state == "53100":
		return sandbox.Errorf(sandbox.Exhausted, "the disk of the database server is full").WithCause(err)
	case state == "25006":
		return sandbox.Errorf(sandbox.Unavailable, "the database server takes no writes: the operator must set the address of a primary server").WithCause(err)
	case broken(err):
		return sandbox.Errorf(sandbox.Unavailable, "the database server does not answer").WithCause(err)
	case state == "22021", state == "22P05": // characters not in the repertoire
		return sandbox.Errorf(sandbox.Invalid, "a text has a NUL character, or bytes that are not UTF-8, and the database stores neither: remove them").WithCause(err)
	case state == "57014", strings.HasPrefix(state, "25P"), // time limits of the server
		strings.HasPrefix(state, "40"), strings.HasPrefix(state, "55"), strings.HasPrefix(state, "53"):
		return sandbox.Errorf(sandbox.Unavailable, "the database is busy").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Internal, "the database failed").WithCause(err)
}

// A violation is of a constraint on a table's rows.
type violation int

const (
	violatedNone   violation = iota
	violatedKey              // the primary key
	violatedUnique           // another unique index
	violatedOther
)

// violated returns the kind of constraint that a statement violated.
func violated(err error) violation {
	switch extendedCode(err) {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE:
		return violatedUnique
	case sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return violatedKey
	}
	var e *pgconn.PgError
	switch {
	case primaryCode(err) == sqlite3.SQLITE_CONSTRAINT:
		return violatedOther
	case !errors.As(err, &e) || !strings.HasPrefix(e.Code, "23"):
		return violatedNone
	case e.Code != "23505": // unique_violation
		return violatedOther
	case strings.HasSuffix(e.ConstraintName, "_pkey"):
		return violatedKey
	}
	return violatedUnique
}

// broken reports whether the connection to a database server is useless after err.
func broken(err error) bool {
	state := sqlState(err)
	var network net.Error
	return strings.HasPrefix(state, "57P") || strings.HasPrefix(state, "08") || // it shuts down, or lost the connection
		state == "" && (errors.Is(err, driver.ErrBadConn) || errors.As(err, &network) || pgconn.Timeout(err) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF))
}

// sqlState is PostgreSQL's code of an error; empty when err is not from its server.
func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// primaryCode is SQLite's result code without its extension; 0 when err is not
// from SQLite.
func primaryCode(err error) int {
	return extendedCode(err) & 0xff
}

func extendedCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}
