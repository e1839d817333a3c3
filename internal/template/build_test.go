package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/standin"
)

// childEnvName makes this test binary a builder process instead; see childMain.
const childEnvName = "TEMPLATE_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnvName); role != "" {
		syscall.Umask(0o077) // a careful administrator's: the store is for all
		if err := childMain(role, os.Args[1]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// childMain builds "base" in the store in dir, as another process would.
func childMain(role, dir string) error {
	s, err := Open(dir)
	if err != nil {
		return err
	}
	fill := fillSmall
	if role == "hang" {
		fill = fillAndHang
	}
	image, err := smallBuild(&Builder{Store: s}, fill)
	if err != nil {
		return err
	}
	fmt.Println("built", image.Digest, image.Cached)
	return nil
}

// smallBuild runs a whole build except that fill brings in the packages.
func smallBuild(b *Builder, fill func(*build, context.Context) error) (Image, error) {
	if err := b.ready(); err != nil {
		return Image{}, err
	}
	run := &build{
		Builder: b, ref: Ref{Name: "base", Tag: Latest}, name: "base", dir: b.Store.path("build", "base"),
		plan: plan{inputs: "the same", recipe: Recipe{Source: Debian("")}, fill: fill},
	}
	return run.locked(context.Background())
}

// fillSmall makes what finishTree insists on, and counts itself in a file.
func fillSmall(b *build, _ context.Context) error {
	b.source, b.newest = "test:", fallbackDate
	for _, names := range mustHave {
		if err := b.tree.write(names[0], 0o755, names[0]); err != nil {
			return err
		}
	}
	count, err := os.OpenFile(b.Store.path("count"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = count.WriteString("x")
	return errors.Join(err, count.Close())
}

// fillAndHang mounts something inside the tree, leaves a background process,
// says so, and never ends.
func fillAndHang(b *build, ctx context.Context) error {
	if err := b.tree.makeFolder("mnt", 0o755, 0); err != nil {
		return err
	}
	run := confinedRun{Line: func(line string) { fmt.Println(line) }}
	return run.run(ctx, "/bin/sh", "-c", `mount -t tmpfs tmpfs "$0/mnt"; sleep 1000 & echo hanging; while :; do echo x >"$0/mnt/f"; sleep 1; done`, b.root)
}

func needHost(t *testing.T) {
	t.Helper()
	needRoot(t)
	if missing := MissingTools(); len(missing) > 0 {
		t.Skipf("the host lacks %v", missing)
	}
}

// child starts a builder process; its output is read line by line.
func child(t *testing.T, role, dir string) (*exec.Cmd, *strings.Builder, chan struct{}) {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir)
	cmd.Env = append(os.Environ(), childEnvName+"="+role)
	out, hanging := &strings.Builder{}, make(chan struct{})
	cmd.Stdout, cmd.Stderr = &until{out: out, word: "hanging", found: hanging}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out, hanging
}

// until closes found when word was written.
type until struct {
	out   *strings.Builder
	word  string
	found chan struct{}
	once  sync.Once
}

func (u *until) Write(p []byte) (int, error) {
	u.out.Write(p)
	if strings.Contains(u.out.String(), u.word) {
		u.once.Do(func() { close(u.found) })
	}
	return len(p), nil
}

func TestTwoBuildersBuildOnce(t *testing.T) {
	needHost(t)
	s := newStore(t)
	first, out1, _ := child(t, "build", s.dir)
	second, out2, _ := child(t, "build", s.dir)
	mine, err := smallBuild(&Builder{Store: s}, fillSmall)
	if err := errors.Join(err, first.Wait(), second.Wait()); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out1, out2)
	}
	if count, err := os.ReadFile(s.path("count")); err != nil || string(count) != "x" {
		t.Errorf("built %d times, %v, want once", len(count), err)
	}
	cached := strings.Count(out1.String()+out2.String(), mine.Digest+" true")
	if mine.Cached {
		cached++
	}
	if cached != 2 {
		t.Errorf("%d of three found it done, want two:\n%s\n%s", cached, out1, out2)
	}
	if digest, err := s.Resolve(t.Context(), "", "base"); err != nil || digest != mine.Digest {
		t.Errorf("Resolve = %q, %v, want %q", digest, err, mine.Digest)
	}
}

func TestUmaskDoesNotMatter(t *testing.T) {
	needHost(t)
	careful, plain := newStore(t), newStore(t)
	cmd, out, _ := child(t, "build", careful.dir)
	want, err := smallBuild(&Builder{Store: plain}, fillSmall)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, err := careful.Resolve(t.Context(), "", "base"); err != nil || got != want.Digest {
		t.Errorf("another umask gave another image, %v", err)
	}
	image, _ := careful.Path(t.Context(), want.Digest)
	for name, mode := range map[string]os.FileMode{
		careful.dir: os.ModeDir | 0o755, filepath.Dir(image): os.ModeDir | 0o755, image: 0o644,
		careful.path("refs"): os.ModeDir | 0o755, careful.path("refs", "base"): 0o644,
		careful.path("locks"): os.ModeDir | 0o755, careful.path("locks", "base.lock"): 0o644,
	} {
		if info, err := os.Stat(name); err != nil || info.Mode() != mode {
			t.Errorf("%s is %v, %v, want %v", name, info, err, mode)
		}
	}
}

func TestKilledBuilderLeavesNothing(t *testing.T) {
	needHost(t)
	s := newStore(t)
	cmd, out, hanging := child(t, "hang", s.dir)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-hanging:
	case err := <-ended:
		t.Fatalf("the builder ended: %v\n%s", err, out)
	case <-time.After(2 * time.Minute):
		t.Fatal("the builder did not begin")
	}
	if _, err := s.Resolve(t.Context(), "", "base"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("while it is built: %v, want Unavailable", err)
	}
	if mounts(t, s.dir) > 0 {
		t.Error("a build's mount is seen outside of it")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended // also waits until no process has its output: all are gone
	if _, err := s.Resolve(t.Context(), "", "base"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("after the kill: %v, want NotFound", err)
	}
	if n := mounts(t, s.dir); n > 0 {
		t.Errorf("%d mounts are left", n)
	}
	image, err := smallBuild(&Builder{Store: s}, fillSmall)
	if err != nil || image.Cached {
		t.Fatalf("the next build: %+v, %v", image, err)
	}
	if _, err := os.Stat(s.path("build", "base")); !os.IsNotExist(err) {
		t.Errorf("scratch is left: %v", err)
	}
}

func mounts(t *testing.T, dir string) int {
	t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(info), dir)
}

func TestCancelledBuildLeavesNothing(t *testing.T) {
	needHost(t)
	b := &Builder{Store: newStore(t)}
	if err := b.ready(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	run := &build{Builder: b, name: "base", dir: b.Store.path("build", "base"), plan: plan{
		fill: func(b *build, ctx context.Context) error {
			run := confinedRun{Line: func(string) { cancel() }}
			return run.run(ctx, "/bin/sh", "-c", "echo; sleep 1000 & sleep 1000")
		},
	}}
	if _, err := run.locked(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	if _, err := os.Stat(run.dir); !os.IsNotExist(err) {
		t.Errorf("scratch is left: %v", err)
	}
	if b.Store.building("base") {
		t.Error("the lock is held")
	}
}

func TestForceAndInputs(t *testing.T) {
	needHost(t)
	b := &Builder{Store: newStore(t)}
	first, err := smallBuild(b, fillSmall)
	if err != nil || first.Cached {
		t.Fatalf("first: %+v, %v", first, err)
	}
	if again, err := smallBuild(b, fillSmall); err != nil || !again.Cached || again.Digest != first.Digest {
		t.Errorf("again: %+v, %v, want it cached", again, err)
	}
	b.Force = true
	forced, err := smallBuild(b, fillSmall)
	if err != nil || forced.Cached {
		t.Errorf("forced: %+v, %v, want it built", forced, err)
	}
	if forced.Digest != first.Digest {
		t.Error("the same tree gave another image")
	}
}

func TestFailedProgramSaysWhy(t *testing.T) {
	needHost(t)
	err := confinedRun{}.run(t.Context(), "/bin/sh", "-c", "echo no space on the moon >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "no space on the moon") {
		t.Errorf("got %v", err)
	}
}

func TestFinishedTree(t *testing.T) {
	needRoot(t)
	b := newBuild(t)
	var dir string
	b.tree, dir = newTree(t)
	b.env = map[string]string{"PATH": "/opt/bin:/usr/bin", "QUOTE": `a"b`}
	if err := fillSmall(b, t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/sh\n",
		"etc/group":  "root:x:0:\nshadow:x:43:\nnode:x:1000:\n",
		"etc/shadow": "root:*:19999:0:99999:7:::\n", "etc/skel/.bashrc": "# bash\n",
		"etc/profile":    "if [ \"$(id -u)\" -eq 0 ]; then\n",
		"etc/machine-id": "abc\n", "var/lib/apt/lists/x": "x", "tmp/junk": "x",
		"usr/share/doc/a/copyright": "c", "usr/share/doc/a/README": "r",
		"usr/local/bin/tool": "t", "usr/local/bin/setuid": "t",
	} {
		if err := b.tree.write(name, 0o644, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.tree.own("usr/local/bin/setuid", os.ModeSetuid|0o755, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.tree.link("/proc/mounts", "etc/resolv.conf"); err != nil {
		t.Fatal(err)
	}
	if err := b.finishTree(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, name := range []string{"etc/passwd", "etc/group", "etc/shadow", "etc/environment", "etc/resolv.conf", "etc/profile", "home/user/.bashrc"} {
		text, err := b.tree.text(name)
		if err != nil {
			t.Error(err)
		}
		got[name] = text
	}
	want := map[string]string{
		"etc/passwd":        "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n",
		"etc/group":         "root:x:0:\nshadow:x:43:\nuser:x:1000:\n",
		"etc/shadow":        "root:*:20000:0:99999:7:::\nuser:*:20000:0:99999:7:::\n",
		"etc/environment":   "LANG=\"C.UTF-8\"\nPATH=\"/opt/bin:/usr/bin\"\n",
		"etc/resolv.conf":   "nameserver 10.0.0.1\noptions timeout:5 attempts:2\n",
		"etc/profile":       "if [ \"${EUID:-$(id -u)}\" -eq 0 ]; then\n",
		"home/user/.bashrc": "# bash\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, mode := range map[string]os.FileMode{
		"workspace": os.ModeDir | 0o755, "code": os.ModeDir | 0o777, ".cloud-sandbox": os.ModeDir | 0o755,
		"tmp": os.ModeDir | os.ModeSticky | 0o777, "tmp/.keep": 0o644, "etc/sudoers.d/90-cloud-sandbox": 0o440,
		"usr/local": os.ModeDir | 0o777, "usr/local/bin/tool": 0o666, "usr/local/bin/setuid": os.ModeSetuid | 0o755,
		"usr/share/doc/a/copyright": 0o644, "etc/shadow": 0o640,
	} {
		if info, err := os.Lstat(filepath.Join(dir, "root", name)); err != nil || info.Mode() != mode {
			t.Errorf("%s is %v, %v, want %v", name, info, err, mode)
		}
	}
	for _, name := range []string{"etc/machine-id", "var/lib/apt/lists/x", "tmp/junk", "usr/share/doc/a/README"} {
		if b.tree.has(name) {
			t.Errorf("/%s is left", name)
		}
	}
}

// A tree whose folders are links that lead out must not be followed.
func TestFinishStaysInside(t *testing.T) {
	needRoot(t)
	for _, link := range []string{"etc", "home", "tmp", "usr/share/doc", "usr/local"} {
		b := newBuild(t)
		var dir string
		b.tree, dir = newTree(t)
		victim := filepath.Join(dir, "secret")
		if err := os.Mkdir(victim, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(victim, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.tree.makeFolder(path.Dir(link), 0o755, 0); err != nil {
			t.Fatal(err)
		}
		if err := b.tree.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
		_ = b.finishTree(t.Context()) // an error or not: only the outside counts
		entries, err := os.ReadDir(victim)
		if err != nil || len(entries) != 1 {
			t.Errorf("%s: outside there is %v, %v", link, entries, err)
		}
		if info, err := os.Stat(filepath.Join(victim, "file")); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: the file outside is %v, %v", link, info, err)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	b := &Builder{Store: newStore(t)}
	if _, err := b.Build(t.Context(), "../x", Debian(""), nil); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("bad name: %v, want Invalid", err)
	}
	if _, err := b.Build(t.Context(), "base", Source{}, nil); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("no source: %v, want Invalid", err)
	}
}

// Packages stand in for an image whose registry does not answer if their version matches
// its name, or the operator allows the difference.
func TestCheckStandIn(t *testing.T) {
	missing := errors.New("no registry")
	bookworm := standin.System{Distribution: "debian", Version: "12", Codename: "bookworm", Python: "3.11"}
	for _, tt := range []struct {
		image   string
		inexact bool
		want    error
	}{
		{"python:3.11-slim", false, nil},
		{"python:3.11.9-slim-bookworm", false, nil},
		{"python:3.13-slim", false, sandbox.Unavailable},
		{"ubuntu:24.04", false, sandbox.Unavailable},
		{"ubuntu:24.04", true, nil},
	} {
		b := &build{Builder: &Builder{Inexact: tt.inexact}, plan: plan{asked: Base(tt.image)}}
		err := b.checkStandIn(missing, bookworm)
		if !errors.Is(err, tt.want) || tt.want != nil && (!errors.Is(err, missing) || !strings.Contains(err.Error(), "CLOUD_SANDBOX_INEXACT_IMAGES")) {
			t.Errorf("%s: %v, want %v", tt.image, err, tt.want)
		}
	}
}

func TestProgressString(t *testing.T) {
	for _, tt := range []struct {
		p    Progress
		want string
	}{
		{Progress{"debootstrap", "unpacking", 87, 131}, "debootstrap: unpacking 87/131"},
		{Progress{"image", "unpacking files", 500, 0}, "image: unpacking files 500"},
		{Progress{"erofs", "writing the image", 0, 0}, "erofs: writing the image"},
	} {
		if got := tt.p.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestGuestImage(t *testing.T) {
	needHost(t)
	dir := t.TempDir()
	binary := filepath.Join(dir, "anything")
	if err := os.WriteFile(binary, []byte("#!guest"), 0o600); err != nil {
		t.Fatal(err)
	}
	var images [2]string
	for i := range images {
		file := filepath.Join(dir, fmt.Sprintf("guest%d.erofs", i))
		if err := BuildGuestImage(t.Context(), binary, file); err != nil {
			t.Fatal(err)
		}
		body, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(body), "#!guest") {
			t.Fatalf("image of %d bytes, %v", len(body), err)
		}
		images[i] = string(body)
	}
	if images[0] != images[1] {
		t.Error("one binary gave two images")
	}
	out := filepath.Join(dir, "out")
	if said, err := exec.Command("fsck.erofs", "--extract="+out, filepath.Join(dir, "guest0.erofs")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if info, err := os.Stat(filepath.Join(out, "guest")); err != nil || info.Mode() != 0o755 {
		t.Errorf("/guest is %v, %v", info, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}
