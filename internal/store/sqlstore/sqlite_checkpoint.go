package sqlstore

import (
	"context"
	"database/sql"
)

const (
	// checkpointEvery is how many writes go to the log between checkpoints: one or two
	// megabytes.
	checkpointEvery = 200
	// maxLogPages bounds the log, in pages, under writes without a pause, when the log
	// can never restart: a commit then checkpoints the rest itself.
	maxLogPages = 8000
)

// A checkpointer copies SQLite's log (WAL) to the database in the background. Otherwise a
// commit does so when the log is long, and its caller waits for the disk twice.
//
// After a full checkpoint the writer restarts the log and, by journal_size_limit,
// truncates the file: overwriting a file that is not in the page cache makes the kernel
// read every page first.
type checkpointer struct {
	writes int // since the last request; only the writer uses it
	due    chan struct{}
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
}

func startCheckpointer(db *sql.DB) *checkpointer {
	ctx, cancel := context.WithCancel(context.Background())
	c := &checkpointer{due: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	go c.run(ctx, db)
	return c
}

// wrote counts n more committed writes. Only the writer calls it.
func (c *checkpointer) wrote(n int) {
	if c.writes += n; c.writes < checkpointEvery {
		return
	}
	c.writes = 0
	select {
	case c.due <- struct{}{}:
	default: // one is already requested
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
		// A checkpoint that fails, or meets another process's, is made up for by the
		// next.
		_, _ = db.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
	}
}

// close stops it and interrupts a running checkpoint.
func (c *checkpointer) close() {
	c.cancel()
	<-c.done
}
