package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// otherParts copies the program and its parts into a new folder. It returns the copied
// program, which uses the parts beside it.
func otherParts(t *testing.T) (bin string) {
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
		if out, err := rig.Command("cp", filepath.Join(stage, part), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return filepath.Join(dir, "cloud-sandbox")
}

// anotherBuild returns the same program with a different part, as after an upgrade.
func anotherBuild(t *testing.T) string {
	t.Helper()
	bin := otherParts(t)
	link, err := os.OpenFile(filepath.Join(filepath.Dir(bin), "link"), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = link.WriteString("another build") // trailing bytes do not affect a program
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := link.Close(); err != nil {
		t.Fatal(err)
	}
	return bin
}

// nextGVisor is the version of gVisor after an upgrade: newer than any.
const nextGVisor = "v0.0.0-99991231235959-000000000000"

// gvisorNamed builds, once, a sentry whose gVisor has the version nextGVisor.
var gvisorNamed = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-gvisor-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	sentry := filepath.Join(dir, "sentry")
	edits, err := rig.Command("../../scripts/gvisor.sh").Output()
	if err != nil {
		return nil, err
	}
	args := append([]string{"build"}, strings.Fields(string(edits))...)
	cmd := rig.Command("go", append(args, "-ldflags", "-s -w -X gvisor.dev/gvisor/runsc/version.version="+nextGVisor, "-o", sentry, "../../cmd/sentry")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false") // as the Makefile does
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(sentry)
})

// acrossGVisors returns the programs before and after an upgrade of gVisor. Both have
// the same code, since a second gVisor takes minutes to build. Only the version differs:
// a sentry refuses memory that another version saved. CLOUD_SANDBOX_OLD_GVISOR names a
// sentry of this program with an older gVisor, which then makes the program before.
func acrossGVisors(t *testing.T) (before, after string) {
	t.Helper()
	other := otherParts(t)
	var named []byte
	bin, err := rig.Binary()
	if err != nil {
		t.Fatal(err)
	}
	before, after = bin, other
	if path := os.Getenv("CLOUD_SANDBOX_OLD_GVISOR"); path != "" {
		before, after = other, bin
		named, err = os.ReadFile(path)
	} else {
		named, err = gvisorNamed()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(other), "gvisor_sentry"), named, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return before, after
}

// builds lists the builds that are unpacked in a data folder.
func builds(t *testing.T, s *rig.Server) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.Data, "lib", strings.Repeat("[0-9a-f]", 16)))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// buildOf returns the build whose sentry host runs a Sandbox.
func buildOf(t *testing.T, s *rig.Server, id string) string {
	t.Helper()
	line := strings.Join(s.SentryOf(t, id).Args, " ")
	_, after, _ := strings.Cut(line, "--root="+filepath.Join(s.Data, "hosts")+"/")
	build, _, ok := strings.Cut(after, "/")
	if !ok {
		t.Fatalf("the sentry of %s runs as %s", id, line)
	}
	return build
}

// An upgrade ends no Sandbox. New Sandboxes use the new build at once. The old build is
// removed after its last Sandbox.
func TestUpgrade(t *testing.T) {
	rig.OneMachine(t)
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
	fresh := c.Create(t, nil).ID
	works(t, c, fresh)
	if got := buildOf(t, s, fresh); got == filepath.Base(old[0]) {
		t.Errorf("a new sandbox runs with the build from before the upgrade")
	}
	var page struct {
		Sessions []rig.Sandbox `json:"sessions"`
	}
	c.Must(t, "GET", "/api/v1/sessions", nil, &page)
	for _, sb := range page.Sessions {
		c.Must(t, "DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
	}
	s.PoolIdle(t)
	rig.Within(t, rig.Patience, "the end of the old build", func() bool {
		hosts, err := os.ReadDir(filepath.Join(s.Data, "hosts"))
		now := builds(t, s)
		return err == nil && len(hosts) == 1 && len(now) == 1 && !slices.Equal(now, old) && len(s.Processes(rig.SentryHost)) == 1
	})
	start()
	works(t, c, c.Create(t, nil).ID)
	s.PoolIdle(t)
}

// A session that was paused with one build resumes with the next, as do its forks and
// snapshots. The parts of the old build stay while a saved state needs them.
func TestPausedAcrossAnUpgrade(t *testing.T) {
	rig.OneMachine(t)
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
	start() // no sandbox runs: only the new build is used from here on
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
	act(t, c, paused.ID, "pause", rig.Body{}) // saved by the new build, with a guest of the old one
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

// The same for a state that is only in Blobs: no state on the disk shows that the old
// build is needed.
func TestPausedInBlobsAcrossAnUpgrade(t *testing.T) {
	rig.OneMachine(t)
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

// An upgrade adopts the Sandboxes of an older build whose sentry host was killed.
func TestUpgradeAfterAKill(t *testing.T) {
	rig.OneMachine(t)
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

// Memory that one version of gVisor saved resumes after an upgrade, in a sentry of the
// build that saved it. Crashes do not change that. A resume or pause without memory
// moves it to the new build. An old build is kept only while a state needs it.
func TestPausedAcrossAVersionOfGVisor(t *testing.T) {
	rig.OneMachine(t)
	t.Parallel()
	before, after := acrossGVisors(t)
	s := rig.Own(t, rig.Options{Pool: 1, Bin: before})
	c := s.Client(t, "upgraded")
	sb := create(t, c, rig.Body{"checkpoint_every_seconds": 3600})
	output(t, c, sb.ID, "python", "x = 42")
	c.Sh(t, sb.ID, "echo written > /workspace/file")
	var snap saved
	c.Must(t, "POST", "/api/v1/sessions/"+sb.ID+"/snapshots", rig.Body{"name": "kept"}, &snap)
	output(t, c, sb.ID, "python", "x = 43")
	act(t, c, sb.ID, "pause", rig.Body{})
	old := filepath.Base(builds(t, s)[0])
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
	goesOn := func(id, want string) {
		t.Helper()
		if got := output(t, c, id, "python", "print(x)"); got != want {
			t.Errorf("%s goes on with %q, want %q", id, got, want)
		}
		if got := buildOf(t, s, id); got != old {
			t.Errorf("%s goes on in build %s, want %s", id, got, old)
		}
	}
	oldHost := func() (p rig.Process) {
		t.Helper()
		rig.Within(t, rig.Patience, "one sentry host of the old build", func() bool {
			var of []rig.Process
			for _, h := range s.Processes(rig.SentryHost) {
				if strings.Contains(h.Args[0], old) {
					of = append(of, h)
				}
			}
			if len(of) == 1 {
				p = of[0]
			}
			return len(of) == 1
		})
		return p
	}
	onlyNew := func() {
		t.Helper()
		rig.Within(t, rig.Patience, "the end of the old sentry host", func() bool {
			hosts := s.Processes(rig.SentryHost)
			left, err := os.ReadDir(filepath.Join(s.Data, "hosts"))
			return len(hosts) == 1 && !strings.Contains(hosts[0].Args[0], old) && err == nil && len(left) == 1
		})
	}
	s.Bin = after
	start()
	onlyNew() // nothing runs that needs the old one
	goesOn(sb.ID, "43\n")
	if got := buildOf(t, s, create(t, c, rig.Body{}).ID); got == old {
		t.Error("a new session runs in the old build")
	}

	output(t, c, sb.ID, "python", "x = 44") // saved again by the old one
	act(t, c, sb.ID, "pause", rig.Body{})
	onlyNew()
	goesOn(sb.ID, "44\n")
	var reply struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+sb.ID+"/fork", rig.Body{"count": 2}, &reply)
	if len(reply.Forks) != 2 {
		t.Fatalf("forks: %+v", reply)
	}
	for _, f := range reply.Forks {
		goesOn(f.ID, "44\n")
	}

	dead := oldHost() // it is restarted and adopts the running sentries
	rig.Kill(t, dead)
	rig.Within(t, rig.Patience, "another sentry host", func() bool { return oldHost().Pid != dead.Pid })
	goesOn(sb.ID, "44\n")
	rig.Within(t, rig.Patience, "the connection to it", func() bool {
		return c.Try("POST", "/api/v1/sessions/"+reply.Forks[0].ID+"/pause", rig.Body{}, nil) == nil
	})
	goesOn(reply.Forks[0].ID, "44\n")

	dead = oldHost() // all sentry hosts and the server die at once
	for _, p := range append(s.Processes(rig.Launcher), s.Processes(rig.SentryHost)...) {
		rig.Kill(t, p)
	}
	waitDone(t, s)
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	c = s.Client(t, "upgraded")
	if oldHost().Pid == dead.Pid {
		t.Fatal("the sentry host was not killed")
	}
	goesOn(sb.ID, "44\n")

	// A checkpoint belongs to the old build, and so does a restore from it.
	first := look(t, c, sb.ID).Snapshot
	patch(t, c, sb.ID, rig.Body{"checkpoint_every_seconds": 10})
	rig.Within(t, rig.Patience, "a checkpoint", func() bool { now := look(t, c, sb.ID).Snapshot; return now != "" && now != first })
	patch(t, c, sb.ID, rig.Body{"checkpoint_every_seconds": 3600})
	output(t, c, sb.ID, "python", "x = 'lost'")
	rig.Kill(t, s.SentryOf(t, sb.ID))
	rig.Within(t, noticed, "the way back", func() bool { return look(t, c, sb.ID).State == "paused" })
	goesOn(sb.ID, "44\n")

	act(t, c, sb.ID, "rollback", rig.Body{"snapshot_id": "kept"})
	goesOn(sb.ID, "42\n")
	onFiles := func(id string) {
		t.Helper()
		if os.Getenv("CLOUD_SANDBOX_OLD_GVISOR") != "" {
			return // the older gVisor's format of files may differ
		}
		if got := c.Sh(t, id, "cat /workspace/file"); got != "written\n" {
			t.Errorf("its file holds %q", got)
		}
		if got := buildOf(t, s, id); got == old {
			t.Errorf("%s goes on in the old build without its memory", id)
		}
	}
	act(t, c, reply.Forks[0].ID, "pause", rig.Body{})
	if os.Getenv("CLOUD_SANDBOX_OLD_GVISOR") == "" {
		act(t, c, reply.Forks[0].ID, "resume", rig.Body{"memory": false})
	}
	onFiles(reply.Forks[0].ID)
	for _, f := range reply.Forks {
		c.Must(t, "DELETE", "/api/v1/sessions/"+f.ID, nil, nil)
	}

	told, err := rig.Command(s.Bin, "builds", "--data", s.Data, "--json").Output()
	var known []struct {
		Build, GVisor    string
		Running          bool
		Boots, Snapshots int
	}
	if err != nil || json.Unmarshal(told, &known) != nil || len(known) != 2 {
		t.Fatalf("builds: %s, %v", told, err)
	}
	for _, b := range known {
		if was := b.Build == old; !b.Running || b.GVisor == "" || (b.Snapshots > 0) != was || was && b.Boots != 1 {
			t.Errorf("build %+v, the old one is %s", b, old)
		}
	}

	// A pause without memory moves it out of the old build.
	act(t, c, sb.ID, "pause", rig.Body{"memory": false})
	onlyNew()
	onFiles(sb.ID)
	start()
	if now := builds(t, s); len(now) != 2 {
		t.Errorf("%q are there while a snapshot needs the old one", now)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
	c.Must(t, "DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil)
	rig.Within(t, rig.Patience, "no state with memory of the old build", func() bool {
		var page struct{ Snapshots []saved }
		c.Must(t, "GET", "/api/v1/snapshots", nil, &page)
		return len(page.Snapshots) == 0
	})
	start()
	if now := builds(t, s); len(now) != 1 || filepath.Base(now[0]) == old {
		t.Errorf("%q stay when nothing needs %q", now, old)
	}
}

// Sandboxes in an old build survive another upgrade. `down` ends the Sandboxes of all
// builds.
func TestOldGVisorRunsThroughAnotherUpgrade(t *testing.T) {
	rig.OneMachine(t)
	if os.Getenv("CLOUD_SANDBOX_OLD_GVISOR") != "" {
		t.Skip("the third build has the first one's gVisor only when that is ours")
	}
	t.Parallel()
	before, after := acrossGVisors(t)
	third := anotherBuild(t) // with the first gVisor again
	s := rig.Own(t, rig.Options{Pool: 1, Bin: before})
	c := s.Client(t, "upgraded")
	sb := create(t, c, rig.Body{})
	output(t, c, sb.ID, "python", "x = 42")
	act(t, c, sb.ID, "pause", rig.Body{})
	old := filepath.Base(builds(t, s)[0])
	upgrade := func(bin string) {
		t.Helper()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		s.Bin = bin
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
		c = s.Client(t, "upgraded")
	}
	goesOn := func() {
		t.Helper()
		if got := output(t, c, sb.ID, "python", "print(x)"); got != "42\n" {
			t.Errorf("it goes on with %q", got)
		}
	}
	upgrade(after)
	goesOn()
	second := create(t, c, rig.Body{})
	output(t, c, second.ID, "python", "y = 1")
	upgrade(third)
	goesOn()
	if got := buildOf(t, s, sb.ID); got != old {
		t.Errorf("it runs in %s", got)
	}
	if got := output(t, c, second.ID, "python", "print(y)"); got != "1\n" {
		t.Errorf("the second goes on with %q", got)
	}
	act(t, c, sb.ID, "pause", rig.Body{})
	goesOn()
	if got := buildOf(t, s, sb.ID); got == old || len(builds(t, s)) != 3 {
		t.Errorf("it goes on in %s although the present build has its gVisor; there are %q", got, builds(t, s))
	}
	act(t, c, second.ID, "pause", rig.Body{})
	if got := output(t, c, second.ID, "python", "print(y)"); got != "1\n" {
		t.Errorf("the second goes on with %q", got)
	}
	if hosts := s.Processes(rig.SentryHost); len(hosts) < 2 {
		t.Errorf("sentry hosts: %v", hosts)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Down(); err != nil {
		t.Fatal(err)
	}
	if left := s.Left(); len(left) > 0 {
		t.Errorf("down left %v", left)
	}
}

// If the operator refuses an old gVisor or a build is missing, a resume is refused and
// the error names it. The saved state is kept.
func TestOldGVisorIsRefused(t *testing.T) {
	rig.OneMachine(t)
	t.Parallel()
	before, after := acrossGVisors(t)
	s := rig.Own(t, rig.Options{Pool: 1, Bin: before})
	c := s.Client(t, "upgraded")
	sb := create(t, c, rig.Body{})
	output(t, c, sb.ID, "python", "x = 42")
	act(t, c, sb.ID, "pause", rig.Body{})
	old := builds(t, s)[0]
	refused := func(why ...string) {
		t.Helper()
		status, raw, err := c.Do("POST", "/api/v1/sessions/"+sb.ID+"/resume", rig.Body{})
		if err != nil || status != http.StatusConflict || slices.ContainsFunc(why, func(word string) bool { return !strings.Contains(string(raw), word) }) {
			t.Errorf("resume: %d %s, %v; want %q", status, raw, err, why)
		}
		if hosts := s.Processes(rig.SentryHost); slices.ContainsFunc(hosts, func(p rig.Process) bool {
			return strings.HasPrefix(p.Args[0], old) && len(p.Args) > 1 && p.Args[1] == "host"
		}) {
			t.Errorf("%v run", hosts)
		}
	}
	start := func(env ...string) {
		t.Helper()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		s.SetEnv(env...)
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
		c = s.Client(t, "upgraded")
	}
	s.Bin = after
	start("OLDEST_GVISOR=" + nextGVisor)
	refused("older than " + nextGVisor)
	start()
	if err := os.Rename(old, old+".away"); err != nil {
		t.Fatal(err)
	}
	refused(filepath.Base(old), "is not here")
	if err := os.Rename(old+".away", old); err != nil {
		t.Fatal(err)
	}
	if got := output(t, c, sb.ID, "python", "print(x)"); got != "42\n" {
		t.Errorf("it goes on with %q", got)
	}
}
