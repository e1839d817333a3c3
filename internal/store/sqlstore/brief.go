package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// briefQueries find at most one row by its key, for requests that wait for the result.
type briefQueries struct{ byID, byName, keyByHash, ownQuota *sql.Stmt }

func (q *briefQueries) all() []prepared {
	return []prepared{
		{&q.byID, sandboxTable.record + `WHERE id = ?`},
		{&q.byName, sandboxTable.record + `WHERE tenant = ? AND name = ? AND name <> '' AND state <> 'ended'`},
		{&q.keyByHash, keyTable.record + `WHERE hash = ?1 OR previous_hash = ?1`},
		{&q.ownQuota, ownQuotaText},
	}
}

// briefLimit is how long a server may take to answer a brief query.
const briefLimit = 15 * time.Second

// briefReaders are dedicated connections for briefQueries, so that these do not wait
// behind long queries, nor for a connection after their client has left. Connections to
// a server may break, so there they are any of the pool's.
type briefReaders struct {
	pooled *briefQueries // nil: there are dedicated ones
	free   chan *briefReader
	all    []*briefReader
	done   chan struct{} // closed: no connection is given out any more
}

type briefReader struct {
	briefQueries
	conn *sql.Conn
}

// openBrief takes n connections of db permanently.
func openBrief(ctx context.Context, db *sql.DB, d *dialect, n int) (_ *briefReaders, err error) {
	b := &briefReaders{free: make(chan *briefReader, n), done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if d.pooled {
		b.pooled = &briefQueries{}
		if err = d.prepare(ctx, db, b.pooled.all()); err != nil {
			return nil, err
		}
		return b, nil
	}
	for range n {
		r := &briefReader{}
		if r.conn, err = db.Conn(ctx); err != nil {
			return nil, err
		}
		b.all = append(b.all, r)
		b.free <- r
		if err := d.prepare(ctx, r.conn, r.briefQueries.all()); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// do runs one query. It waits for a connection until ctx ends; the query then runs to its
// end. To make it interruptible, the driver and database/sql would start a goroutine
// each, and waking these takes longer than the query.
func (b *briefReaders) do(ctx context.Context, query func(context.Context, *briefQueries) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.pooled != nil {
		select {
		case <-b.done:
			return errClosed
		default:
		}
		limited, cancel := context.WithTimeout(ctx, briefLimit)
		defer cancel()
		err := query(limited, b.pooled)
		if limited.Err() != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) { // not the caller's
			return sandbox.Errorf(sandbox.Unavailable, "the database is busy").WithCause(err)
		}
		return err
	}
	select {
	case r := <-b.free:
		defer func() { b.free <- r }()
		return query(context.WithoutCancel(ctx), &r.briefQueries)
	case <-ctx.Done():
		return ctx.Err()
	case <-b.done:
		return errClosed
	}
}

// close waits for running queries and releases the connections.
func (b *briefReaders) close() error {
	close(b.done)
	var errs []error
	if b.pooled != nil {
		for _, p := range b.pooled.all() {
			if *p.stmt != nil {
				errs = append(errs, (*p.stmt).Close())
			}
		}
	}
	for range b.all {
		r := <-b.free
		for _, p := range r.briefQueries.all() {
			if *p.stmt != nil {
				errs = append(errs, (*p.stmt).Close())
			}
		}
		errs = append(errs, r.conn.Close())
	}
	return errors.Join(errs...)
}
