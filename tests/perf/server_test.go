package perf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// diskUsed tolerates files that are created and removed meanwhile, and counts a file
// with two names once.
func TestDiskUsed(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := errors.Join(os.WriteFile(kept, make([]byte, 1<<20), 0o644), os.Link(kept, filepath.Join(dir, "again"))); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				brief := filepath.Join(dir, "brief")
				_ = os.MkdirAll(filepath.Join(brief, "deep"), 0o755)
				_ = os.RemoveAll(brief)
			}
		}
	}()
	for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); {
		used, err := diskUsed(dir)
		if err != nil || used < 1<<20 || used > 1<<20+1<<17 {
			t.Fatalf("%d bytes, %v", used, err)
		}
	}
	close(stop)
	<-stopped
}
