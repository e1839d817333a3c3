package sqlite

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// checkEvery is how long the result of one check is given again: whoever may
	// ask whether a server is ready may ask often.
	checkEvery = time.Second
	// minRoom is how much room on the disk the next writes may need, in bytes: a
	// write that fits into what the journal has already tells nothing of them.
	minRoom = 4 << 20
)

// checkStatements are what the writer has prepared to try whether it can write: they
// change a number in the head of the file that means nothing.
type checkStatements struct {
	touch, touchAgain *sql.Stmt
}

func (s *checkStatements) all() []prepared {
	return []prepared{{&s.touch, `PRAGMA user_version = 1`}, {&s.touchAgain, `PRAGMA user_version = 2`}}
}

// checker remembers the last check.
type checker struct {
	folder string // of the database

	mu  sync.Mutex
	at  time.Time
	odd bool
	err error
}

// CheckWrite implements sandbox.Store.
func (s *Store) CheckWrite(ctx context.Context) error {
	c := &s.check
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < checkEvery {
		return c.err
	}
	c.odd = !c.odd
	err := c.room()
	if err == nil {
		err = s.writer.write(ctx, func(st *statements) error {
			touch := st.touch
			if c.odd {
				touch = st.touchAgain
			}
			_, err := touch.Exec()
			return err
		})
	}
	if err != nil && ctx.Err() != nil {
		return err // which says nothing of the database
	}
	c.at, c.err = time.Now(), err
	return err
}

// room returns Exhausted when the disk is as good as full.
func (c *checker) room() error {
	var disk unix.Statfs_t
	if err := unix.Statfs(c.folder, &disk); err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the folder of the database cannot be looked at").WithCause(err)
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < minRoom {
		return sandbox.Errorf(sandbox.Exhausted, "the disk that the database is on is full: make room there")
	}
	return nil
}
