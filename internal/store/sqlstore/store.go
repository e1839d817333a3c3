// Package sqlstore is the Store in a SQL database: one SQLite file, the default of an
// installation on one machine, or PostgreSQL, which several machines share.
//
// Writes of concurrent callers of a process share a transaction (group commit), so that a
// burst costs few commits. One transaction writes at a time: SQLite has one writer, and
// on PostgreSQL each writing transaction begins with an advisory lock. So the rows that
// a write reads do not change until it is committed. Reads have their own connections
// and never wait for a write.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/pressly/goose/v3"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Store is a sandbox.Store in a SQL database. Use OpenSQLite or OpenPostgres. It returns
// an empty map of a record as nil.
type Store struct {
	dialect *dialect
	reads   *sql.DB
	writes  *sql.DB
	writer  fencedWriter
	query   queries
	brief   *briefReaders
	quota   sandbox.Quota // of Tenants without their own

	checkpoints *checkpointer // nil: not SQLite
	pulse       *pulse        // nil: not PostgreSQL

	counter *counter
	check   checker

	closeOnce sync.Once
	closeErr  error
}

var _ sandbox.Store = (*Store)(nil)

// start prepares the statements and begins to take writes. Of the readers some answer
// brief queries only.
func (s *Store) start(ctx context.Context, readers int) (err error) {
	s.reads.SetMaxOpenConns(2 * readers)
	s.reads.SetMaxIdleConns(readers)
	if s.brief, err = openBrief(ctx, s.reads, s.dialect, readers); err != nil {
		return err
	}
	if err := s.dialect.prepare(ctx, s.reads, s.query.all(s.dialect)); err != nil {
		return err
	}
	s.writer.writer, err = startWriter(ctx, s.writes, s.dialect, s.checkpoints)
	return err
}

// migrate brings the schema up to date. A schema of a newer program stays as it is, and is
// used if it serves this program.
func migrate(ctx context.Context, db *sql.DB, d *dialect, options ...goose.ProviderOption) error {
	files, err := fs.Sub(migrations, "migrations/"+d.name)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(d.goose, db, files, options...)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	have, known, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if have < known {
		if _, err := provider.Up(ctx); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		// A newer program that started at the same time may have been first.
		if have, _, err = provider.GetVersions(ctx); err != nil {
			return fmt.Errorf("read schema version: %w", err)
		}
	}
	if have <= known {
		return nil
	}
	needs, err := schemaNeeds(ctx, db, d)
	if err != nil {
		return fmt.Errorf("read which programs the schema serves: %w", err)
	}
	if needs == 0 || known < needs {
		return &newerSchemaError{have: have, known: known, needs: needs}
	}
	return nil
}

// schemaNeeds returns the lowest schema version that a program must know to use this
// database; zero: the database does not say.
func schemaNeeds(ctx context.Context, db *sql.DB, d *dialect) (needs int64, err error) {
	var column string
	err = db.QueryRowContext(ctx, d.text(d.columnsOf), "schema_needs").Scan(&column)
	if err == nil {
		err = db.QueryRowContext(ctx, `SELECT version FROM schema_needs`).Scan(&needs)
	}
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return needs, err
}

type newerSchemaError struct{ have, known, needs int64 }

func (e *newerSchemaError) Error() string {
	needs := ""
	if e.needs > 0 {
		needs = fmt.Sprintf(" and serves programs that know version %d", e.needs)
	}
	return fmt.Sprintf("it has schema version %d%s, and this program knows only %d: it was used by a newer version, start that one", e.have, needs, e.known)
}

// Close waits for running writes and releases the database. Later writes are Unavailable.
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
	if s.pulse != nil {
		errs = append(errs, s.pulse.close())
	}
	return errors.Join(errs...)
}
