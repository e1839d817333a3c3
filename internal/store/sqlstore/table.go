package sqlstore

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// columns are the columns of a record, each with a pointer to its field: to a string,
// number, bool or []byte, or a cell. A statement binds the field's value, and a row is
// scanned into it.
type columns struct {
	places   []any
	named    bool // names is filled too
	names    []string
	computed int // how many of them, the last ones, are expressions
}

func (c *columns) add(name string, place any) {
	c.places = append(c.places, place)
	if c.named {
		c.names = append(c.names, name)
	}
}

// compute adds an expression that is read with the columns and never written. It comes
// after all columns.
func (c *columns) compute(expression string, place any) {
	c.add(expression, place)
	c.computed++
}

// A cell is a field whose value has another form in its column.
type cell interface {
	driver.Valuer
	sql.Scanner
}

// A table declares once how records of type R are stored: describe adds each column with
// its field. The texts of all statements and the order of their arguments are derived
// from it once.
type table[R any] struct {
	name     string
	describe func(*R, *columns)
	names    []string
	stored   []string // names without the computed ones
	record   string   // "SELECT every column FROM name "
	insert   command[R]
}

// A command is a statement that binds columns of a record.
type command[R any] struct {
	table *table[R]
	text  string
	order []int // of the arguments: indices of columns
}

func newTable[R any](name string, describe func(*R, *columns)) *table[R] {
	all := columns{named: true}
	describe(new(R), &all)
	t := &table[R]{name: name, describe: describe, names: all.names}
	t.stored = all.names[:len(all.names)-all.computed]
	t.record = "SELECT " + strings.Join(t.names, ", ") + " FROM " + name + " "
	t.insert = t.command("INSERT INTO " + name + " (" + strings.Join(t.stored, ", ") + ") VALUES ($" + strings.Join(t.stored, ", $") + ")")
	return t
}

// places are the fields of r, in the order of names.
func (t *table[R]) places(r *R) []any {
	all := columns{places: make([]any, 0, len(t.names))}
	t.describe(r, &all)
	return all.places
}

// command compiles a statement text in which $name is the value of a column.
func (t *table[R]) command(text string) command[R] {
	c := command[R]{table: t}
	c.text = os.Expand(text, func(name string) string {
		i := slices.Index(t.names, name)
		if i < 0 {
			panic("table " + t.name + " has no column " + name)
		}
		c.order = append(c.order, i)
		return "?"
	})
	return c
}

// replacing is the INSERT that replaces a row with the same key, which these columns are.
func (t *table[R]) replacing(key ...string) command[R] {
	var set []string
	for _, n := range t.stored {
		if !slices.Contains(key, n) {
			set = append(set, n+" = excluded."+n)
		}
	}
	return t.inserting("ON CONFLICT (" + strings.Join(key, ", ") + ") DO UPDATE SET " + strings.Join(set, ", "))
}

// inserting is the INSERT followed by a clause without arguments.
func (t *table[R]) inserting(clause string) command[R] {
	c := t.insert
	c.text += " " + clause
	return c
}

// update sets the named columns of the rows that a condition selects.
func (t *table[R]) update(where string, names ...string) command[R] {
	set := make([]string, len(names))
	for i, n := range names {
		set[i] = n + " = $" + n
	}
	return t.command("UPDATE " + t.name + " SET " + strings.Join(set, ", ") + " WHERE " + where)
}

// updateBut sets all columns except the named ones.
func (t *table[R]) updateBut(where string, names ...string) command[R] {
	set := slices.DeleteFunc(slices.Clone(t.stored), func(n string) bool { return slices.Contains(names, n) })
	return t.update(where, set...)
}

// scan reads a row that record selects.
func (t *table[R]) scan(scan func(...any) error) (R, error) {
	r := new(R)
	err := scan(t.places(r)...)
	return *r, err
}

// args are the arguments of the command for a record. It changes r to the values that a
// later read returns: times in microseconds, nil for an empty map.
func (c *command[R]) args(r *R) ([]any, error) {
	places := c.table.places(r)
	args := make([]any, len(c.order))
	for i, n := range c.order {
		value, err := bound(places[n])
		if err != nil {
			return nil, fmt.Errorf("encode the column %s: %w", c.table.names[n], err)
		}
		args[i] = value
	}
	return args, nil
}

// exec runs the command, prepared as stmt, for a record.
func (c *command[R]) exec(stmt *sql.Stmt, r *R) (sql.Result, error) {
	args, err := c.args(r)
	if err != nil {
		return nil, err
	}
	return stmt.Exec(args...)
}

// send adds the command, prepared as stmt, for a record to a pipeline.
func (c *command[R]) send(p *pipeline, stmt *sql.Stmt, r *R) {
	args, err := c.args(r)
	if err != nil {
		p.fail(err)
		return
	}
	p.exec(stmt, args...)
}

// bound is a field's value for the driver.
func bound(place any) (any, error) {
	switch p := place.(type) {
	case *string:
		return *p, nil
	case *int64:
		return *p, nil
	case *int:
		return int64(*p), nil
	case *float64:
		return *p, nil
	case *bool:
		return *p, nil
	case *[]byte:
		return *p, nil
	case cell:
		return p.Value()
	}
	return nil, fmt.Errorf("a %T is no place of a column", place)
}

// one scans the row of a query. If the query returns no row, missing makes the error.
func one[R any](row *sql.Row, scan func(func(...any) error) (R, error), missing func() error) (R, error) {
	r, err := scan(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		err = missing()
	}
	if err != nil {
		return *new(R), classify(err)
	}
	return r, nil
}

// changed returns the error of a statement that should change a row; missing makes the
// error if it did not.
func changed(result sql.Result, err error, missing func() error) error {
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = missing()
	}
	return err
}

// A moment is a time in microseconds of Unix time; the zero time is 0.
type moment time.Time

// Value implements driver.Valuer.
func (m *moment) Value() (driver.Value, error) {
	n := micros(time.Time(*m))
	*m = moment(fromMicros(n))
	return n, nil
}

// Scan implements sql.Scanner.
func (m *moment) Scan(src any) error {
	n, err := integer(src)
	*m = moment(fromMicros(n))
	return err
}

// A span is a time.Duration in microseconds.
type span time.Duration

// Value implements driver.Valuer.
func (s *span) Value() (driver.Value, error) {
	n := time.Duration(*s).Microseconds()
	*s = span(n) * span(time.Microsecond)
	return n, nil
}

// Scan implements sql.Scanner.
func (s *span) Scan(src any) error {
	n, err := integer(src)
	*s = span(n) * span(time.Microsecond)
	return err
}

func integer(src any) (int64, error) {
	n, ok := src.(int64)
	if !ok {
		return 0, fmt.Errorf("a %T where a number should be", src)
	}
	return n, nil
}

// textOf is the text of a column; SQLite returns values bound as bytes as bytes.
func textOf(src any) (string, error) {
	switch s := src.(type) {
	case string:
		return s, nil
	case []byte:
		return string(s), nil
	}
	return "", fmt.Errorf("a %T where a text should be", src)
}

// labels are a map as a JSON object; an empty one is read as nil.
type labels map[string]string

// Value implements driver.Valuer.
func (l *labels) Value() (driver.Value, error) {
	if len(*l) == 0 {
		*l = nil
	}
	return encode(*l)
}

func encode(m map[string]string) (string, error) {
	if len(m) == 0 {
		return "{}", nil
	}
	b, err := json.Marshal(m)
	return string(b), err
}

// Scan implements sql.Scanner.
func (l *labels) Scan(src any) error {
	text, err := textOf(src)
	if err != nil || text == "{}" {
		*l = nil
		return err
	}
	return json.Unmarshal([]byte(text), (*map[string]string)(l))
}

// asJSON is the cell of a value stored as JSON.
func asJSON(at any) cell { return inJSON{at} }

type inJSON struct{ at any }

// Value implements driver.Valuer.
func (j inJSON) Value() (driver.Value, error) {
	b, err := json.Marshal(j.at)
	return string(b), err
}

// Scan implements sql.Scanner.
func (j inJSON) Scan(src any) error {
	text, err := textOf(src)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), j.at)
}

// A blob is never NULL.
type blob []byte

// Value implements driver.Valuer.
func (b *blob) Value() (driver.Value, error) { return append([]byte{}, *b...), nil }

// Scan implements sql.Scanner.
func (b *blob) Scan(src any) error {
	from, ok := src.([]byte)
	if !ok {
		return fmt.Errorf("a %T where bytes should be", src)
	}
	*b = append([]byte{}, from...)
	return nil
}

// A hash is a SHA-256.
type hash sandbox.KeyHash

// Value implements driver.Valuer.
func (h *hash) Value() (driver.Value, error) { return h[:], nil }

// Scan implements sql.Scanner.
func (h *hash) Scan(src any) error {
	b, _ := src.([]byte)
	if len(b) != len(h) {
		return errors.New("the hash is damaged")
	}
	copy(h[:], b)
	return nil
}

// An optionalHash is NULL when unset: a unique column may hold many NULLs.
type optionalHash hash

// Value implements driver.Valuer.
func (h *optionalHash) Value() (driver.Value, error) {
	if *h == (optionalHash{}) {
		return nil, nil
	}
	return h[:], nil
}

// Scan implements sql.Scanner.
func (h *optionalHash) Scan(src any) error {
	if src == nil {
		return nil
	}
	return (*hash)(h).Scan(src)
}
