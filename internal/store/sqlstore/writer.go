package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// maxBatch bounds how many writes share a transaction, and so how long the first of
	// them waits.
	maxBatch = 256
	// queueLength is how many writes are queued before callers block.
	queueLength = 1024
)

var errClosed = errors.New("the store is closed")

// A writer owns the one connection that writes. It commits all queued writes in one
// transaction and then answers their callers.
type writer struct {
	db      *sql.DB
	dialect *dialect
	conn    *sql.Conn // nil: it broke
	socket  net.Conn  // of conn; nil: it is no connection to a server
	stmts   statements
	texts   map[*sql.Stmt]string // of stmts; nil: SQLite
	queue   chan *write
	quit    chan struct{} // closed: accept no more
	done    chan struct{} // closed: the writer has ended
	once    sync.Once

	checkpoints *checkpointer
}

// A write is one caller's change. do runs at most once. The caller may read its results
// only after done is closed.
type write struct {
	do    func(*pipeline) error
	later bool        // see sandbox.CommitLater
	taken atomic.Bool // by the writer, or by a caller that gave up
	err   error       // valid once done is closed
	done  chan struct{}
}

func startWriter(ctx context.Context, db *sql.DB, d *dialect, checkpoints *checkpointer) (*writer, error) {
	w := &writer{
		db:      db,
		dialect: d,
		queue:   make(chan *write, queueLength),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),

		checkpoints: checkpoints,
	}
	if err := w.connect(ctx); err != nil {
		return nil, err
	}
	go w.run()
	return w, nil
}

const (
	// connectLimit is how long a writer whose connection broke tries to get another one,
	// while all writes wait. Preparing its statements takes a round trip for each.
	connectLimit = 10 * time.Second
	// batchLimit is how long a database server may take for a batch.
	batchLimit = 30 * time.Second
)

// connect takes a connection and prepares the statements on it.
func (w *writer) connect(ctx context.Context) (err error) {
	if w.conn, err = w.db.Conn(ctx); err != nil {
		return err
	}
	if w.dialect.pooled {
		w.socket = socketOf(w.conn)
	}
	all := w.stmts.all(w.dialect)
	if err := w.dialect.prepare(ctx, w.conn, all); err != nil {
		return errors.Join(err, w.release())
	}
	if w.dialect.pooled {
		w.texts = make(map[*sql.Stmt]string, len(all))
		for _, p := range all {
			w.texts[*p.stmt] = w.dialect.text(p.text)
		}
	}
	return nil
}

// write runs do in a transaction and returns its error once that is committed. If ctx
// ends first, the write has not happened and never will. Statements that do leaves in the
// pipeline run too.
func (w *writer) write(ctx context.Context, do func(*pipeline) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := &write{do: do, later: sandbox.CommitsLater(ctx), done: make(chan struct{})}
	select {
	case w.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.quit:
		return classify(errClosed)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-r.done // it is being written: the caller must learn the result
	case <-w.done:
		if r.taken.CompareAndSwap(false, true) {
			return classify(errClosed)
		}
		<-r.done
	}
	return classify(r.err)
}

// close finishes the queued writes and stops the writer.
func (w *writer) close() {
	w.once.Do(func() { close(w.quit) })
	<-w.done
}

// release closes the connection after its prepared statements: SQLite keeps a file open,
// and its log beside it, while a statement remains.
func (w *writer) release() error {
	if w.conn == nil {
		return nil
	}
	var errs []error
	for _, p := range w.stmts.all(w.dialect) {
		if *p.stmt != nil {
			errs = append(errs, (*p.stmt).Close())
			*p.stmt = nil
		}
	}
	errs = append(errs, w.conn.Close())
	w.conn, w.socket, w.texts = nil, nil, nil
	return errors.Join(errs...)
}

func (w *writer) run() {
	defer close(w.done)
	defer w.release() //nolint:errcheck // the database is closed next, which tells
	for {
		select {
		case first := <-w.queue:
			w.commit(w.gather(first))
		case <-w.quit:
			w.drain()
			return
		}
	}
}

func (w *writer) drain() {
	for {
		select {
		case first := <-w.queue:
			w.commit(w.gather(first))
		default:
			return
		}
	}
}

// gather collects first and the queued writes. It skips writes whose callers gave up.
func (w *writer) gather(first *write) []*write {
	var batch []*write
	take := func(r *write) {
		if r.taken.CompareAndSwap(false, true) {
			batch = append(batch, r)
		}
	}
	take(first)
	for len(batch) < maxBatch {
		select {
		case r := <-w.queue:
			take(r)
		default:
			return batch
		}
	}
	return batch
}

// commit runs a batch in one transaction. A write that fails is rolled back alone; a
// transaction that fails fails all its writes.
func (w *writer) commit(batch []*write) {
	if len(batch) == 0 {
		return
	}
	if err := w.transact(batch); err != nil {
		for _, r := range batch {
			r.err = err
		}
	}
	for _, r := range batch {
		close(r.done)
	}
	if w.checkpoints != nil {
		w.checkpoints.wrote(len(batch))
	}
}

func (w *writer) transact(batch []*write) error {
	// The writer's statements are never interrupted: the caller of one write may leave,
	// the rest of the batch stays.
	ctx := context.Background()
	if w.conn == nil {
		limited, cancel := context.WithTimeout(ctx, connectLimit)
		defer cancel()
		if err := w.connect(limited); err != nil {
			return sandbox.Errorf(sandbox.Unavailable, "the database server cannot be reached").WithCause(err)
		}
	}
	if socket := w.socket; socket != nil {
		// Closing the socket ends a statement that waits for a silent server.
		defer time.AfterFunc(batchLimit, func() { _ = socket.Close() }).Stop()
	}
	p := &pipeline{st: &w.stmts, conn: w.conn, texts: w.texts}
	err := w.begin(p, !slices.ContainsFunc(batch, func(r *write) bool { return !r.later }))
	if err == nil {
		err = w.each(ctx, p, batch)
	}
	if err != nil {
		// After some failures SQLite has rolled back already: ignore the error of a
		// second rollback.
		_, _ = w.stmts.rollback.ExecContext(ctx)
		return w.dropBroken(err)
	}
	p.exec(w.stmts.commit)
	if err := p.flush(); err != nil {
		_, _ = w.stmts.rollback.ExecContext(ctx)
		if err := w.dropBroken(err); w.conn != nil {
			return err
		}
		return sandbox.Errorf(sandbox.Unavailable, "the database server was lost while it committed, and the request may have taken effect: check the state before you repeat it").WithCause(errors.Join(sandbox.ErrUncertain, err))
	}
	return nil
}

// begin begins the transaction, and waits for the writers before. With later its commit
// does not wait for the disk.
func (w *writer) begin(p *pipeline, later bool) error {
	p.exec(w.stmts.begin)
	if w.stmts.commitLater != nil && later {
		p.exec(w.stmts.commitLater)
	}
	if w.stmts.lock != nil {
		p.exec(w.stmts.lock)
	}
	if p.texts == nil {
		return p.flush()
	}
	return nil // it is sent with the first statements
}

// dropBroken releases the connection if it is a broken connection to a server. Then it
// returns Unavailable with the cause err, and the next batch takes another connection.
// Otherwise it returns err.
func (w *writer) dropBroken(err error) error {
	if w.socket == nil || !isClosed(w.conn) {
		return err
	}
	_ = w.release() // it is lost anyway
	return sandbox.Errorf(sandbox.Unavailable, "the database server does not answer").WithCause(err)
}

// each runs every write of a batch; an error fails the whole batch.
func (w *writer) each(ctx context.Context, p *pipeline, batch []*write) error {
	if len(batch) == 1 {
		r := batch[0]
		if r.err = r.do(p); r.err == nil {
			r.err = p.settle()
		}
		return r.err
	}
	for _, r := range batch {
		before, trips := len(p.queued), p.trips
		p.exec(w.stmts.savepoint)
		// Its last statements are sent before the next write's: they may fail, and it alone
		// is rolled back.
		if r.err = r.do(p); r.err == nil {
			r.err = p.flush()
		}
		switch {
		case r.err == nil:
		case p.texts != nil && p.trips == trips: // not even its savepoint was sent
			p.queued = p.queued[:before]
			continue
		default:
			p.queued, p.err = nil, nil
			if _, err := w.stmts.rollbackTo.ExecContext(ctx); err != nil {
				return r.err // the transaction failed with this error
			}
		}
		p.exec(w.stmts.release)
	}
	return nil
}
