package sqlite

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// LimitPages bounds the size of the database file, as a full disk would.
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

// WaitQueued waits until n writes wait.
func (s *Store) WaitQueued(t *testing.T, n int) {
	t.Helper()
	for len(s.writer.queue) < n {
		runtime.Gosched()
	}
}
