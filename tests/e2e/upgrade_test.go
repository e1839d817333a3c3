package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// anotherBuild is the same program with other parts inside, as after an upgrade.
func anotherBuild(t *testing.T) string {
	t.Helper()
	bin, err := rig.Binary()
	if err != nil {
		t.Fatal(err)
	}
	stage := filepath.Join(filepath.Dir(bin), "stage")
	dir, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-upgrade-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, part := range []string{"cloud-sandbox", "gvisor_sentry", "link", "guest.erofs"} {
		if _, err := os.Stat(filepath.Join(stage, part)); err != nil {
			t.Skipf("the parts are not beside the binary: %v", err)
		}
		if out, err := exec.Command("cp", filepath.Join(stage, part), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	link, err := os.OpenFile(filepath.Join(dir, "link"), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = link.WriteString("another build") // nothing reads what follows a program
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := link.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "cloud-sandbox")
}

// builds lists what is unpacked in a data folder.
func builds(t *testing.T, s *rig.Server) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.Data, "lib", strings.Repeat("[0-9a-f]", 16)))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// An upgrade ends no Sandbox. The first start that finds none of the old build
// uses the new one for everything.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	next := anotherBuild(t)
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "upgraded")
	l := begin(t, c, nil)
	old := builds(t, s)
	start := func() {
		t.Helper()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
	}
	s.Bin = next
	start()
	l.goesOn(t)
	works(t, c, c.Create(t, nil).ID)
	var page struct {
		Sessions []rig.Sandbox `json:"sessions"`
	}
	c.Must(t, "GET", "/api/v1/sessions", nil, &page)
	for _, sb := range page.Sessions {
		c.Must(t, "DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
	}
	s.PoolIdle(t) // Boots of the old build wait in it
	start()
	if now := builds(t, s); len(now) != 1 || slices.Equal(now, old) {
		t.Errorf("%q are there, before the upgrade %q", now, old)
	}
	hosts, err := os.ReadDir(filepath.Join(s.Data, "hosts"))
	if err != nil || len(hosts) != 1 {
		t.Errorf("hosts of %v, %v", hosts, err)
	}
	works(t, c, c.Create(t, nil).ID)
	s.PoolIdle(t)
}

// What was paused with one build goes on with the next, forks and all, from a
// snapshot or where it was; the parts of the old one that this needs stay for as long
// as it does.
func TestPausedAcrossAnUpgrade(t *testing.T) {
	t.Parallel()
	next := anotherBuild(t)
	s := rig.Own(t, rig.Options{Pool: 1})
	c := s.Client(t, "upgraded")
	paused := create(t, c, rig.Body{})
	output(t, c, paused.ID, "python", "x = 42")
	var snap saved
	c.Must(t, "POST", "/api/v1/sessions/"+paused.ID+"/snapshots", rig.Body{"name": "kept"}, &snap)
	output(t, c, paused.ID, "python", "x = 43")
	act(t, c, paused.ID, "pause", rig.Body{})
	old := builds(t, s)
	start := func() {
		t.Helper()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
		c = s.Client(t, "upgraded")
	}
	s.Bin = next
	start() // nobody's sandbox runs: all is done by the new build from here on
	now := builds(t, s)
	if len(old) != 1 || len(now) != 2 || !slices.Contains(now, old[0]) {
		t.Fatalf("%q are there, before the upgrade %q", now, old)
	}
	if hosts, err := os.ReadDir(filepath.Join(s.Data, "hosts")); err != nil || len(hosts) != 1 || hosts[0].Name() == filepath.Base(old[0]) {
		t.Errorf("hosts of %v, %v", hosts, err)
	}
	goesOn := func(id, want string) {
		t.Helper()
		if got := output(t, c, id, "python", "print(x)"); got != want {
			t.Errorf("%s goes on with %q, want %q", id, got, want)
		}
	}
	goesOn(paused.ID, "43\n")
	act(t, c, paused.ID, "rollback", rig.Body{"snapshot_id": "kept"})
	goesOn(paused.ID, "42\n")
	var reply struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+paused.ID+"/fork", rig.Body{"count": 1}, &reply)
	goesOn(reply.Forks[0].ID, "42\n")
	act(t, c, paused.ID, "pause", rig.Body{}) // saved by the new build, of a guest of the old one
	c.Must(t, "DELETE", "/api/v1/sessions/"+reply.Forks[0].ID, nil, nil)
	start()
	goesOn(paused.ID, "42\n")

	c.Must(t, "DELETE", "/api/v1/sessions/"+paused.ID, nil, nil)
	c.Must(t, "DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil)
	rig.Within(t, rig.Patience, "no state", func() bool {
		return !slices.ContainsFunc(states(t, s), func(name string) bool { return name[0] == 's' })
	})
	start()
	if now := builds(t, s); len(now) != 1 || now[0] == old[0] {
		t.Errorf("%q stay when nothing needs %q", now, old)
	}
}

// So does what is kept in Blobs alone when its build is not that of the server any
// more: no state on the disk tells that the old one is needed.
func TestPausedInBlobsAcrossAnUpgrade(t *testing.T) {
	t.Parallel()
	next := anotherBuild(t)
	dir, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-blobs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, serverUID, serverUID); err != nil {
		t.Fatal(err)
	}
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{"CLOUD_SANDBOX_BLOBS=file://" + dir, blobsKey, "SNAPSHOT_DISK_MB=1"}})
	c := s.Client(t, "upgraded")
	paused := create(t, c, rig.Body{})
	output(t, c, paused.ID, "python", "x = 42")
	act(t, c, paused.ID, "pause", rig.Body{})
	onlyInBlobs(t, s)
	start := func() []string {
		t.Helper()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
		c = s.Client(t, "upgraded")
		return builds(t, s)
	}
	s.Bin = next
	if now := start(); len(now) != 2 {
		t.Fatalf("%q are there while a session needs the old one", now)
	}
	if got := output(t, c, paused.ID, "python", "print(x)"); got != "42\n" {
		t.Errorf("it goes on with %q", got)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+paused.ID, nil, nil)
	rig.Within(t, rig.Patience, "the end of its snapshot", func() bool {
		var page struct{ Snapshots []saved }
		c.Must(t, "GET", "/api/v1/snapshots", nil, &page)
		return len(page.Snapshots) == 0
	})
	if now := start(); len(now) != 1 {
		t.Errorf("%q are there when nothing needs the old one", now)
	}
}

// What a sentry host of an older build left when it was killed is found by an
// upgrade too.
func TestUpgradeAfterAKill(t *testing.T) {
	t.Parallel()
	next := anotherBuild(t)
	s := rig.Own(t, rig.Options{})
	l := begin(t, s.Client(t, "upgraded"), nil)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Processes(rig.SentryHost) {
		rig.Kill(t, p)
	}
	s.Bin = next
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	l.goesOn(t)
}
