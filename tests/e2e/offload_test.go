package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

const blobsKey = "CLOUD_SANDBOX_BLOBS_KEY=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// inBucket is the environment of a server that copies snapshots to a bucket and keeps
// almost nothing on its own disk.
func inBucket(s3 *s3rig.Server, bucket string) []string {
	return append(s3.Settings(bucket), blobsKey, "SNAPSHOT_DISK_MB=1", "POOL_MIN_SIZE=1", "POOL_MAX_SIZE=2")
}

// objects returns the paths of the files below a folder, in which others delete folders.
func objects(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && !d.IsDir():
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// onlyInBlobs waits until no state is on the host.
func onlyInBlobs(t *testing.T, s *rig.Server) {
	t.Helper()
	rig.Within(t, 2*time.Minute, "no state on the host", func() bool { return len(states(t, s)) == 0 })
}

// Paused sessions resume from S3 alone with memory and files, also after the server was
// killed. So do forks and snapshots. Deleting them removes their objects.
func TestSessionsLiveInS3(t *testing.T) {
	rig.OneMachine(t)
	t.Parallel()
	s3 := s3rig.Start(t)
	bucket := s3.Bucket(t)
	srv := rig.Own(t, rig.Options{Env: inBucket(s3, bucket)})
	c := srv.Client(t, "s3")
	s := create(t, c, rig.Body{})
	output(t, c, s.ID, "python", "import os\nsecret = 'what nobody may read'\nheap = os.urandom(20 << 20)")
	c.Sh(t, s.ID, "echo 'what nobody may read' > /workspace/file")
	act(t, c, s.ID, "pause", rig.Body{})
	onlyInBlobs(t, srv)
	for _, path := range objects(t, s3.Dir) {
		raw, err := os.ReadFile(path)
		if err != nil || bytes.Contains(raw, []byte("what nobody may read")) {
			t.Errorf("%s can be read, %v", path, err)
		}
	}

	rig.Kill(t, srv.One(t, rig.ServerRole))
	waitDone(t, srv)
	if err := srv.Launch(); err != nil {
		t.Fatal(err)
	}
	c = srv.Client(t, "s3")
	goesOn := func(id string) {
		t.Helper()
		if got := output(t, c, id, "python", "print(len(heap), open('/workspace/file').read() == secret + '\\n')"); got != "20971520 True\n" {
			t.Errorf("%s goes on with %q", id, got)
		}
	}
	goesOn(s.ID)
	var snap saved
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/snapshots", rig.Body{"name": "kept"}, &snap)
	act(t, c, s.ID, "pause", rig.Body{})
	onlyInBlobs(t, srv)
	if n := srv.Metric("cloud_sandbox_snapshots_kept"); n < 2 {
		t.Errorf("%v snapshots are kept", n)
	}
	var reply struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/fork", rig.Body{"count": 2}, &reply)
	for _, f := range reply.Forks {
		goesOn(f.ID)
		_ = c.Try("DELETE", "/api/v1/sessions/"+f.ID, nil, nil)
	}
	if len(reply.Forks) != 2 {
		t.Errorf("forks: %+v", reply)
	}
	act(t, c, s.ID, "rollback", rig.Body{"snapshot_id": "kept"})
	goesOn(s.ID)
	onlyInBlobs(t, srv)
	status, file, err := c.Do("GET", "/api/v1/snapshots/"+snap.ID+"/export", nil)
	if err != nil || status != http.StatusOK || !strings.HasPrefix(string(file), "CSBXSNAP") {
		t.Errorf("exported %d, %d bytes, %v", status, len(file), err)
	}

	_ = c.Try("DELETE", "/api/v1/sessions/"+s.ID, nil, nil)
	c.Must(t, "DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil)
	rig.Within(t, rig.Patience, "nothing but a key in S3", func() bool {
		left := objects(t, filepath.Join(s3.Dir, bucket))
		return len(left) == 1 && filepath.Base(left[0]) == "key"
	})
}

// While S3 is down, sessions pause and resume from this host, the server stays ready,
// and sessions that are only in S3 answer 503. A damaged copy is refused with the
// snapshot's ID.
func TestS3AwayAndDamaged(t *testing.T) {
	rig.OneMachine(t)
	t.Parallel()
	s3 := s3rig.Start(t)
	bucket := s3.Bucket(t)
	srv := rig.Own(t, rig.Options{Env: inBucket(s3, bucket)})
	c := srv.Client(t, "s3-away")
	there := create(t, c, rig.Body{})
	output(t, c, there.ID, "python", "x = 1")
	act(t, c, there.ID, "pause", rig.Body{})
	onlyInBlobs(t, srv)

	s3.Stop()
	here := create(t, c, rig.Body{})
	output(t, c, here.ID, "python", "x = 2")
	act(t, c, here.ID, "pause", rig.Body{})
	if got := output(t, c, here.ID, "python", "print(x)"); got != "2\n" {
		t.Errorf("went on from this host with %q", got)
	}
	act(t, c, here.ID, "pause", rig.Body{})
	refused := func(id, code string, status int) string {
		t.Helper()
		got, raw, err := c.Do("POST", "/api/v1/sessions/"+id+"/resume", rig.Body{})
		if err != nil || got != status || !strings.Contains(string(raw), fmt.Sprintf("%q", code)) {
			t.Fatalf("resumed: %d %s, %v, want %d %s", got, raw, err, status, code)
		}
		if now := c.Get(t, id); now.State != "paused" {
			t.Errorf("it is %s now", now.State)
		}
		return string(raw)
	}
	refused(there.ID, "unavailable", http.StatusServiceUnavailable)
	if got, raw, err := c.Do("GET", "/ready", nil); err != nil || got != http.StatusOK {
		t.Errorf("/ready: %d %s, %v", got, raw, err)
	}
	rig.Within(t, rig.Patience, "the metric of it", func() bool {
		return srv.Metric("cloud_sandbox_blobs_reachable") == 0 && srv.Metric("cloud_sandbox_snapshots_uncopied") >= 1
	})

	if err := s3.Up(); err != nil {
		t.Fatal(err)
	}
	// Retries back off exponentially, up to five minutes.
	rig.Within(t, 6*time.Minute, "no state on the host", func() bool { return len(states(t, srv)) == 0 })
	for id, want := range map[string]string{there.ID: "1\n", here.ID: "2\n"} {
		if got := output(t, c, id, "python", "print(x)"); got != want {
			t.Errorf("went on with %q, want %q", got, want)
		}
	}

	act(t, c, there.ID, "pause", rig.Body{})
	onlyInBlobs(t, srv)
	for _, path := range objects(t, filepath.Join(s3.Dir, bucket)) {
		if !strings.Contains(path, "/p/") {
			continue
		}
		flip(t, path)
	}
	var history struct {
		Snapshots []saved `json:"snapshots"`
	}
	c.Must(t, "GET", "/api/v1/sessions/"+there.ID+"/snapshots", nil, &history)
	text := refused(there.ID, "conflict", http.StatusConflict)
	if last := history.Snapshots[len(history.Snapshots)-1].ID; !strings.Contains(text, last) || !strings.Contains(text, "damaged") {
		t.Errorf("the error does not name %s: %s", last, text)
	}
}

// Copies in a folder replace saved states that were deleted or damaged on the host.
func TestCopiesInAFolder(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-blobs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, serverUID, serverUID); err != nil {
		t.Fatal(err)
	}
	srv := rig.Own(t, rig.Options{Env: []string{"CLOUD_SANDBOX_BLOBS=file://" + dir, blobsKey, "POOL_MIN_SIZE=1", "POOL_MAX_SIZE=1"}})
	c := srv.Client(t, "folder")
	s := create(t, c, rig.Body{})
	output(t, c, s.ID, "python", "x = 1")
	act(t, c, s.ID, "pause", rig.Body{})
	rig.Within(t, rig.Patience, "a copy", func() bool { return srv.Metric("cloud_sandbox_snapshots_uncopied") == 0 })
	here := states(t, srv)
	if len(here) == 0 {
		t.Fatal("nothing was saved, or it did not stay")
	}
	for _, name := range here {
		if err := os.RemoveAll(filepath.Join(srv.Data, "saved", name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := output(t, c, s.ID, "python", "print(x)"); got != "1\n" {
		t.Errorf("went on with %q", got)
	}

	// A resume of a damaged state uses the copy, unless the copy is damaged too.
	s = act(t, c, s.ID, "pause", rig.Body{})
	rig.Within(t, rig.Patience, "a copy", func() bool { return srv.Metric("cloud_sandbox_snapshots_uncopied") == 0 })
	spoil := func() {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(srv.Data, "saved", "s*", "pages.img"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no state has files: %v", err)
		}
		for _, file := range files {
			flip(t, file)
		}
	}
	spoil()
	if got := output(t, c, s.ID, "python", "print(x)"); got != "1\n" {
		t.Errorf("after damage went on with %q", got)
	}
	if n := srv.Metric("cloud_sandbox_snapshots_healed_total"); n < 1 {
		t.Errorf("%v were brought back in the place of something damaged", n)
	}
	act(t, c, s.ID, "pause", rig.Body{})
	rig.Within(t, rig.Patience, "a copy", func() bool { return srv.Metric("cloud_sandbox_snapshots_uncopied") == 0 })
	spoil()
	for _, path := range objects(t, dir) {
		if strings.Contains(path, "/p/") {
			flip(t, path)
		}
	}
	status, raw, err := c.Do("POST", "/api/v1/sessions/"+s.ID+"/resume", rig.Body{})
	if err != nil || status != http.StatusConflict || !strings.Contains(string(raw), "its copy is damaged") {
		t.Errorf("resumed from damage: %d %s, %v", status, raw, err)
	}
	_ = c.Try("DELETE", "/api/v1/sessions/"+s.ID, nil, nil)
}

// States that were saved before copies were enabled are copied at the next start, and
// resume from the copies. After a key rotation they resume without the old key.
func TestCopiesOfWhatWasThere(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-blobs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, serverUID, serverUID); err != nil {
		t.Fatal(err)
	}
	srv := rig.Own(t, rig.Options{Pool: 1})
	c := srv.Client(t, "folder")
	s := create(t, c, rig.Body{})
	output(t, c, s.ID, "python", "x = 1")
	act(t, c, s.ID, "pause", rig.Body{})
	with := func(keys string, done func() bool) {
		t.Helper()
		if err := srv.Stop(); err != nil {
			t.Fatal(err)
		}
		srv.SetEnv("CLOUD_SANDBOX_BLOBS=file://"+dir, "CLOUD_SANDBOX_BLOBS_KEY="+keys)
		if err := srv.Launch(); err != nil {
			t.Fatal(err)
		}
		c = srv.Client(t, "folder")
		rig.Within(t, rig.Patience, "all is copied", func() bool { return done() && srv.Metric("cloud_sandbox_snapshots_uncopied") == 0 })
	}
	goesOn := func() {
		t.Helper()
		for _, name := range states(t, srv) {
			if err := os.RemoveAll(filepath.Join(srv.Data, "saved", name)); err != nil {
				t.Fatal(err)
			}
		}
		if got := output(t, c, s.ID, "python", "print(x)"); got != "1\n" {
			t.Errorf("went on with %q", got)
		}
		act(t, c, s.ID, "pause", rig.Body{})
	}
	first, second := strings.TrimPrefix(blobsKey, "CLOUD_SANDBOX_BLOBS_KEY="), strings.Repeat("0123", 16)
	with(first, func() bool {
		return srv.Metric("cloud_sandbox_snapshot_copies_total") >= 1 && srv.Metric("cloud_sandbox_snapshots_backlog") == 0
	})
	goesOn()
	resealed := func() bool { return srv.Metric("cloud_sandbox_blobs_keys_old") == 0 }
	with(second+","+first, resealed)
	with(second, resealed)
	goesOn()
	_ = c.Try("DELETE", "/api/v1/sessions/"+s.ID, nil, nil)
}

// serverUID is the user ID of the server.
const serverUID = 61740

// flip changes one bit in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], info.Size()/2); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], info.Size()/2); err != nil {
		t.Fatal(err)
	}
}
