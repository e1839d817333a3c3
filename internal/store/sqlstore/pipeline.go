package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// A pipeline runs the statements of the writer's transaction. On a server it queues them,
// and sends all that are queued in one round trip: when a write needs their results
// (flush), or with the commit. On SQLite each one runs at once.
//
// After a statement has failed, the ones queued behind it do not run.
type pipeline struct {
	st    *statements // of conn; run one by itself only after direct
	conn  *sql.Conn
	texts map[*sql.Stmt]string // of st, as the server has prepared them; nil: SQLite

	queued []step
	err    error // since the last flush, of a statement that was not queued, or of fail
	trips  int   // round trips, counted to learn whether a statement was sent
}

// A step is one statement, and the function that takes its result: at most one of count, row
// and rows is set.
type step struct {
	stmt *sql.Stmt
	args []any

	count func(changed int64) error
	row   func(scan scanner) error // it calls scan, which returns sql.ErrNoRows without a row
	rows  func(scan scanner) error // called for each row
	// last says that the write does not depend on the result, which may be read after the
	// commit.
	last bool
}

type scanner = func(...any) error

// decides reports whether the write depends on the result of s.
func (s step) decides() bool {
	return !s.last && (s.count != nil || s.row != nil || s.rows != nil)
}

// exec adds a statement that needs only to succeed.
func (p *pipeline) exec(stmt *sql.Stmt, args ...any) { p.add(step{stmt: stmt, args: args}) }

// changed adds a statement; count takes the number of rows that it changed.
func (p *pipeline) changed(stmt *sql.Stmt, count func(int64) error, args ...any) {
	p.add(step{stmt: stmt, args: args, count: count})
}

// row adds a query of one row at most. If scan returns an error, flush does.
func (p *pipeline) row(stmt *sql.Stmt, row func(scanner) error, args ...any) {
	p.add(step{stmt: stmt, args: args, row: row})
}

// rows adds a query; each is called for every row.
func (p *pipeline) rows(stmt *sql.Stmt, each func(scanner) error, args ...any) {
	p.add(step{stmt: stmt, args: args, rows: each})
}

// needs adds a query, and makes the pipeline fail with missing if it finds no row.
func (p *pipeline) needs(stmt *sql.Stmt, missing error, args ...any) {
	p.row(stmt, func(scan scanner) error {
		var one int
		err := scan(&one)
		if errors.Is(err, sql.ErrNoRows) {
			err = missing
		}
		return err
	}, args...)
}

// fail makes the pipeline fail with err, which is none of the database's.
func (p *pipeline) fail(err error) { p.err = cmp.Or(p.err, err) }

func (p *pipeline) add(s step) {
	switch {
	case p.texts != nil:
		p.queued = append(p.queued, s)
	case p.err == nil:
		p.err = s.run()
	}
}

// flush runs the queued statements, and returns the first error of a statement or of the
// function that takes its result.
func (p *pipeline) flush() error {
	if err := p.err; err != nil || len(p.queued) == 0 {
		p.err = nil
		return err
	}
	queued := p.queued
	p.queued = nil
	p.trips++
	return p.conn.Raw(func(driver any) error {
		var batch pgx.Batch
		for _, s := range queued {
			batch.Queue(p.texts[s.stmt], s.args...)
		}
		results := driver.(*stdlib.Conn).Conn().SendBatch(context.Background(), &batch)
		for _, s := range queued {
			if err := s.take(results); err != nil {
				_ = results.Close() // it reads the results that are left, or the connection is lost
				return err
			}
		}
		return results.Close()
	})
}

// settle runs the queued statements if the write depends on a result of theirs.
func (p *pipeline) settle() error {
	if p.err != nil || slices.ContainsFunc(p.queued, step.decides) {
		return p.flush()
	}
	return nil
}

// direct runs the queued statements, and returns the statements to run one at a time.
func (p *pipeline) direct() (*statements, error) { return p.st, p.flush() }

// run runs s alone, on SQLite.
func (s *step) run() error {
	switch {
	case s.row != nil:
		return s.row(s.stmt.QueryRow(s.args...).Scan)
	case s.rows != nil:
		rows, err := s.stmt.Query(s.args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := s.rows(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	}
	result, err := s.stmt.Exec(s.args...)
	if err != nil || s.count == nil {
		return err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return err
	}
	return s.count(n)
}

// take takes the result of s, which is the next one of results.
func (s *step) take(results pgx.BatchResults) error {
	if s.row == nil && s.rows == nil {
		tag, err := results.Exec()
		if err != nil || s.count == nil {
			return err
		}
		return s.count(tag.RowsAffected())
	}
	if s.row != nil {
		return s.row(results.QueryRow().Scan)
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := s.rows(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
