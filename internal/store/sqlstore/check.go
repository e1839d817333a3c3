package sqlstore

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// checkEvery is how long a result is cached, because any client may poll readiness
	// often.
	checkEvery = time.Second
	// minRoom is the disk space that the next writes may need, in bytes. A test write may
	// fit into the journal's existing space and so prove nothing about them.
	minRoom = 4 << 20
)

// checkStatements are the writer's prepared statements for a test write.
type checkStatements struct {
	touch, touchAgain *sql.Stmt
}

func (s *checkStatements) all(d *dialect) []prepared {
	return []prepared{{&s.touch, d.touch}, {&s.touchAgain, d.touchAgain}}
}

// checker caches the last check.
type checker struct {
	folder string // of the database; empty: it is on a server

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
		return err // not about the database
	}
	c.at, c.err = time.Now(), err
	return err
}

// room returns Exhausted if the disk is nearly full.
func (c *checker) room() error {
	if c.folder == "" {
		return nil
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(c.folder, &disk); err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the folder of the database cannot be examined").WithCause(err)
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < minRoom {
		return sandbox.Errorf(sandbox.Exhausted, "the disk that the database is on is full: make room there")
	}
	return nil
}
