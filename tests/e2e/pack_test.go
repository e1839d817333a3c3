package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// savedBytes returns the disk space of a server's saved states in bytes.
func savedBytes(t *testing.T, s *rig.Server) (total int64) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(s.Data, "saved"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if os.IsNotExist(err) {
				return nil // it was just removed
			}
			return err
		}
		if info, err := d.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return total
}

// Idle snapshots are deduplicated. They still can be started from, exported, resumed and
// deleted, also after a crash of the server and the sentry host.
func TestSnapshotsArePacked(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{Env: []string{"SNAPSHOT_PACK_SECONDS=1", "SNAPSHOT_CACHE_MB=0"}})
	c := srv.Client(t, "packer")
	s := create(t, c, rig.Body{})
	output(t, c, s.ID, "python", "import os\nheap = [os.urandom(4096) for _ in range(10000)]")
	const chain = 5
	snaps := make([]saved, chain)
	for i := range snaps {
		output(t, c, s.ID, "python", fmt.Sprintf("x = %d\nfor k in range(100): heap[k * 90 + x] = os.urandom(4096)", i))
		c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/snapshots", rig.Body{}, &snaps[i])
	}
	act(t, c, s.ID, "pause", rig.Body{})
	packed := func(what string, most int64) {
		t.Helper()
		rig.Within(t, 2*time.Minute, "less room, "+what, func() bool {
			raw, err := filepath.Glob(filepath.Join(srv.Data, "saved", "*", "pages.img"))
			return err == nil && len(raw) == 0 && savedBytes(t, srv) < most
		})
	}
	packed("packed", 2*snaps[0].Size)

	// The server and the sentry host are killed and restarted.
	rig.Kill(t, srv.One(t, rig.ServerRole))
	waitDone(t, srv)
	rig.Kill(t, srv.One(t, rig.SentryHost))
	if err := srv.Launch(); err != nil {
		t.Fatal(err)
	}
	c = srv.Client(t, "packer")
	if got := output(t, c, s.ID, "python", "print(x, sum(map(len, heap)))"); got != fmt.Sprintf("%d 40960000\n", chain-1) {
		t.Errorf("the paused session holds %q", got)
	}
	for i, snap := range snaps {
		if i%2 == 1 {
			continue
		}
		other := create(t, c, rig.Body{"snapshot_id": snap.ID})
		if got := output(t, c, other.ID, "python", "print(x, sum(map(len, heap)))"); got != fmt.Sprintf("%d 40960000\n", i) {
			t.Errorf("what starts from snapshot %d holds %q", i, got)
		}
		_ = c.Try("DELETE", "/api/v1/sessions/"+other.ID, nil, nil)
	}
	status, file, err := c.Do("GET", "/api/v1/snapshots/"+snaps[1].ID+"/export", nil)
	if err != nil || status != 200 || !strings.HasPrefix(string(file), "CSBXSNAP") {
		t.Errorf("exported %d, %d bytes, %v", status, len(file), err)
	}
	_ = c.Try("DELETE", "/api/v1/sessions/"+s.ID, nil, nil)
	for _, snap := range snaps[:chain-1] {
		c.Must(t, "DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil)
	}
	packed("with one left", snaps[0].Size*5/4)
	last := create(t, c, rig.Body{"snapshot_id": snaps[chain-1].ID})
	if got := output(t, c, last.ID, "python", "print(x)"); got != fmt.Sprintln(chain-1) {
		t.Errorf("the last snapshot holds %q", got)
	}
	_ = c.Try("DELETE", "/api/v1/sessions/"+last.ID, nil, nil)
	c.Must(t, "DELETE", "/api/v1/snapshots/"+snaps[chain-1].ID, nil, nil)
	packed("of nothing", 1<<10)
}
