package sqlite

import (
	"context"
	"database/sql"
)

const (
	// checkpointEvery is how many writes go into the log before it is copied to the
	// database: a megabyte or two.
	checkpointEvery = 200
	// maxLogPages bounds the log, in pages, where writes come without a pause, so
	// that it can never be begun anew: a commit then copies the rest itself.
	maxLogPages = 8000
)

// A checkpointer copies SQLite's log (WAL) to the database, beside the writer. A
// commit does that by itself when the log is long, and then its caller waits for
// the disk, twice.
//
// When all is copied the writer begins the log anew and, by journal_size_limit,
// cuts the file: to overwrite a file that the page cache no longer has, the kernel
// first reads every page of it.
type checkpointer struct {
	writes int // since the last one was asked for; the writer's alone
	due    chan struct{}
	cancel context.CancelFunc
	done   chan struct{} // closed: it has ended
}

func startCheckpointer(db *sql.DB) *checkpointer {
	ctx, cancel := context.WithCancel(context.Background())
	c := &checkpointer{due: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	go c.run(ctx, db)
	return c
}

// wrote tells that n more writes were committed. Only the writer calls it.
func (c *checkpointer) wrote(n int) {
	if c.writes += n; c.writes < checkpointEvery {
		return
	}
	c.writes = 0
	select {
	case c.due <- struct{}{}:
	default: // one is about to begin
	}
}

func (c *checkpointer) run(ctx context.Context, db *sql.DB) {
	defer close(c.done)
	for {
		select {
		case <-c.due:
		case <-ctx.Done():
			return
		}
		// One that fails, or that another process is at, is made up for by the next.
		_, _ = db.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
	}
}

// close ends it; a checkpoint under way is interrupted.
func (c *checkpointer) close() {
	c.cancel()
	<-c.done
}
