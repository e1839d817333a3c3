package sqlstore_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

// frame is the size of a page in the log, in bytes.
const frame = 4096 + 24

func openLog(t *testing.T) (s *sqlstore.Store, logSize func() int64) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	s, err := sqlstore.OpenSQLite(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, func() int64 {
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
}

func startingSandbox(id string) sandbox.Sandbox {
	now := time.Now()
	sb := sandbox.Sandbox{
		ID: id, Tenant: "t", State: sandbox.Starting, Template: "base", Shape: sandbox.DefaultShape(),
		Boot: sandbox.Boot{ID: sandbox.NewBootID(), Number: 1, Node: "n"}, CreatedAt: now, Deadline: now.Add(time.Minute), Timeout: time.Minute, OnTimeout: sandbox.OnTimeoutEnd,
	}
	sb.Limits = sb.Shape.Limits()
	return sb
}

// A request waits for the write of a state transition, so the transition must change few
// pages: the row, the two indices of its State and deadline, and its usage.
func TestMoveWritesFewPages(t *testing.T) {
	s, logSize := openLog(t)
	sb, err := s.InsertSandbox(t.Context(), startingSandbox(sandbox.NewSandboxID()))
	if err != nil {
		t.Fatal(err)
	}
	before := logSize()
	sb.State, sb.StartedAt = sandbox.Running, time.Now()
	sb.Deadline = sb.StartedAt.Add(time.Minute)
	if _, err := s.UpdateSandbox(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	if pages := (logSize() - before) / frame; pages != 4 {
		t.Errorf("the move wrote %d pages, want 4", pages)
	}
}

// The log is copied to the database in the background, and then restarts.
func TestLogIsBegunAnew(t *testing.T) {
	s, logSize := openLog(t)
	write := func() {
		t.Helper()
		if _, err := s.RenewLease(context.WithoutCancel(t.Context()), sandbox.NodeRecord{Name: "n"}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	const plenty = 1000
	for range plenty {
		write()
	}
	longest := logSize()
	for deadline := time.Now().Add(20 * time.Second); logSize() >= longest; time.Sleep(time.Millisecond) {
		if write(); time.Now().After(deadline) {
			t.Fatalf("after %d writes the log has %d bytes, and is not begun anew", plenty, logSize())
		}
		longest = max(longest, logSize())
	}
}
