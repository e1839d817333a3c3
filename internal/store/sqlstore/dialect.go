package sqlstore

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*/*.sql
var migrations embed.FS

// A dialect has the differences between SQLite and PostgreSQL. Both databases accept the
// text of most statements, in which "?" or "?1" is an argument. The other statements, or
// their parts, are fields of the dialect.
type dialect struct {
	name  string // also of the folder of its migrations
	goose goose.Dialect
	// numbered rewrites "?" and "?1" to "$1".
	numbered bool
	// begin begins a writing transaction. lock makes it wait for the other processes'
	// transactions before; empty: begin does. commitLater makes its commit not wait for the
	// disk; empty: no commit does.
	begin, lock, commitLater string
	// inStates and withMetadata filter a list: ?4 is a JSON array of States, ?5 a JSON
	// object.
	inStates, withMetadata string
	// inList follows a column whose value is in ?1, a JSON array.
	inList string
	// mountsVolume is true of a row of sandboxes that mounts the Volume ?2.
	mountsVolume string
	// forgettable are the users of a Tenant that may be forgotten, from their index.
	forgettable string
	// dropNames deletes the remembered names of Templates of a Tenant; empty: no names are
	// remembered.
	dropNames string
	// touch and touchAgain change a value that no query reads; CheckWrite alternates them.
	touch, touchAgain string
	// columnsOf selects the names of a table's columns.
	columnsOf string
	// clock is the database's clock in microseconds of Unix time; 0: the process's clock,
	// because the database is on this machine.
	clock string
	// pooled: connections may break, so statements are prepared on any of a pool.
	pooled bool
	// snapshot are the options of a transaction whose reads are of one moment.
	snapshot sql.TxOptions
}

// text is a statement as this database reads it.
func (d *dialect) text(text string) string {
	if !d.numbered {
		return text
	}
	var b strings.Builder
	next := 1
	for {
		before, after, found := strings.Cut(text, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		digits := len(after) - len(strings.TrimLeft(after, "0123456789"))
		number := after[:digits]
		if number == "" {
			number = strconv.Itoa(next)
			next++
		}
		b.WriteString("$" + number)
		text = after[digits:]
	}
}

// clockName is the database's clock in the texts of statements.
const clockName = "clock()"

// clocked puts the database's clock into a text.
func (d *dialect) clocked(text string) string { return strings.ReplaceAll(text, clockName, d.clock) }

// clockAt is the time that a statement read from the database's clock.
func clockAt(n int64) time.Time {
	if n == 0 {
		return time.Now()
	}
	return fromMicros(n)
}

// storable reports whether each database can store a text: PostgreSQL takes neither NUL
// nor bytes that are no UTF-8.
func storable(text string) bool { return !strings.ContainsRune(text, 0) && utf8.ValidString(text) }

// A prepared is a statement's text and where to put it.
type prepared struct {
	stmt **sql.Stmt
	text string
}

func (d *dialect) prepare(ctx context.Context, on interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}, all []prepared,
) error {
	for _, p := range all {
		var err error
		if *p.stmt, err = on.PrepareContext(ctx, d.text(p.text)); err != nil {
			return fmt.Errorf("prepare %q: %w", p.text, err)
		}
	}
	return nil
}
