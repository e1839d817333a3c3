package sqlstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// LimitPages bounds the size of the database file, like a full disk.
func (s *Store) LimitPages(t *testing.T, n int) {
	t.Helper()
	err := s.writer.write(t.Context(), func(*statements) error {
		_, err := s.writer.conn.ExecContext(context.Background(), fmt.Sprintf("PRAGMA max_page_count = %d", n))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// HoldWriter keeps the writer busy until release is called.
func (s *Store) HoldWriter(t *testing.T) (release func()) {
	t.Helper()
	started, hold := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.writer.write(context.Background(), func(*statements) error {
			close(started)
			<-hold
			return nil
		})
	})
	<-started
	return func() {
		close(hold)
		wg.Wait()
	}
}

// HoldCommit begins a write that changes something, whose commit waits for the call of
// commit.
func (s *Store) HoldCommit(t *testing.T) (commit func() error) {
	t.Helper()
	started, hold, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- s.writer.write(context.Background(), func(st *statements) error {
			_, err := st.touch.Exec()
			close(started)
			<-hold
			return err
		})
	}()
	<-started
	return func() error {
		close(hold)
		return <-result
	}
}

// ReadFor runs a read that takes so long.
func (s *Store) ReadFor(ctx context.Context, d time.Duration) error {
	_, err := s.reads.ExecContext(ctx, "SELECT pg_sleep($1)", d.Seconds())
	return classify(err)
}

// InsertKeyTwice inserts a Key twice in one write, whose last statement thus fails.
func (s *Store) InsertKeyTwice(ctx context.Context, k sandbox.Key) error {
	return s.writer.send(ctx, func(p *pipeline) error {
		for range 2 {
			keyTable.insert.send(p, p.st.insertKey, &k)
		}
		return nil
	})
}

// WaitQueued waits until n writes are queued.
func (s *Store) WaitQueued(t *testing.T, n int) {
	t.Helper()
	for len(s.writer.queue) < n {
		runtime.Gosched()
	}
}

// HoldReads keeps the connections of long queries busy until release is called or the test
// ends, and with brief also those of brief queries.
func (s *Store) HoldReads(t *testing.T, brief bool) (release func()) {
	t.Helper()
	var held []func()
	release = sync.OnceFunc(func() {
		for _, free := range held {
			free()
		}
	})
	t.Cleanup(release)
	for s.reads.Stats().InUse < s.reads.Stats().MaxOpenConnections {
		conn, err := s.reads.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, func() { _ = conn.Close() })
	}
	if !brief {
		return release
	}
	for range s.brief.all {
		r := <-s.brief.free
		held = append(held, func() { s.brief.free <- r })
	}
	return release
}

// ReadsThatWaited is how many calls have waited, or wait, for a connection of long queries.
func (s *Store) ReadsThatWaited() int64 { return s.reads.Stats().WaitCount }

// Waits returns PostgreSQL's synchronous_commit in the transaction of a write with ctx: off if
// its commit does not wait for the disk.
func (s *Store) Waits(t *testing.T, ctx context.Context) (setting string) {
	t.Helper()
	err := s.writer.write(ctx, func(*statements) error {
		return s.writer.conn.QueryRowContext(context.Background(), "SHOW synchronous_commit").Scan(&setting)
	})
	if err != nil {
		t.Fatal(err)
	}
	return setting
}
