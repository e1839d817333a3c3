package template

import (
	"archive/tar"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRealTemplates builds from the distribution's mirror and the npm registry.
// It runs when TEMPLATE_E2E is set and keeps downloads in TEMPLATE_CACHE when
// that is set.
func TestRealTemplates(t *testing.T) {
	if os.Getenv("TEMPLATE_E2E") == "" {
		t.Skip("TEMPLATE_E2E is not set")
	}
	needHost(t)
	b := &Builder{Store: newStore(t), Cache: os.Getenv("TEMPLATE_CACHE")}
	host := newRegistry(t)

	// No registry has this image, so it is made of packages.
	base := realBuild(t, b, "base", Base(host+"/absent:1"))
	if !strings.HasPrefix(base.Source, "debian:") && !strings.HasPrefix(base.Source, "ubuntu:") {
		t.Errorf("base is made of %s", base.Source)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	extract(t, b.Store, base, tree)
	checkInside(t, tree, base)

	if again, err := b.Build(t.Context(), "base", Base(host+"/absent:1"), nil); err != nil || !again.Cached {
		t.Errorf("again: %+v, %v, want it cached", again, err)
	}

	// The same tree without some of its tools is a small Debian image, with a Python of
	// its own.
	for _, args := range [][]string{
		{"ln", "-s", "/usr/bin/python3", "/usr/local/bin/python3"},
		{"dpkg", "--purge", "jq", "sudo", "tree", "python3-pil"},
		{"rm", "-rf", "/usr/local/bin/node", "/usr/local/lib/node_modules", "/tmp/.keep"},
	} {
		if err := (confinedRun{Root: tree, Env: []string{"SUDO_FORCE_REMOVE=yes"}}).run(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	ref := host + "/debian/small:1"
	push(t, ref, []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin", "FROM_IMAGE=yes"}, func() (io.ReadCloser, error) { return tarOf(tree), nil })
	for _, source := range []Source{OCI(ref), Base(ref)} {
		image := realBuild(t, b, "image", source)
		if !strings.HasPrefix(image.Source, "oci:"+host+"/debian/small@sha256:") || image.Env["FROM_IMAGE"] != "yes" {
			t.Errorf("made of %s with %v", image.Source, image.Env)
		}
		out := filepath.Join(t.TempDir(), "tree")
		extract(t, b.Store, image, out)
		checkInside(t, out, image)
	}
	if again, err := b.Build(t.Context(), "image", Base(ref), nil); err != nil || !again.Cached {
		t.Errorf("again: %+v, %v, want it cached", again, err)
	}
}

func realBuild(t *testing.T, b *Builder, name string, source Source) Image {
	t.Helper()
	began, stages := time.Now(), map[string]bool{}
	image, err := b.Build(t.Context(), name, source, func(p Progress) { stages[p.Stage] = true })
	if err != nil {
		t.Fatalf("build %s of %s: %v", name, source, err)
	}
	t.Logf("%s: %s, %d MiB in %v", source, image.Digest, image.Size>>20, time.Since(began).Round(time.Second))
	if !stages["node"] || !stages["erofs"] {
		t.Errorf("progress told of %v", stages)
	}
	return image
}

// extract unpacks an image, which also proves that it is a sound one.
func extract(t *testing.T, s *Store, image Image, to string) {
	t.Helper()
	file, err := s.Path(t.Context(), image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("fsck.erofs", "--extract="+to, file).CombinedOutput(); err != nil {
		t.Fatalf("extract: %v: %s", err, out)
	}
	// The extractor sets owners after modes, which clears setuid bits.
	if mode := modeInImage(t, file, "/usr/bin/sudo"); mode != syscall.S_IFREG|0o4755 {
		t.Fatalf("sudo in the image has mode %o", mode)
	}
	if err := os.Chmod(filepath.Join(to, "usr/bin/sudo"), os.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
}

// modeInImage reads a file's inode: dump.erofs tells where it is, and not its
// setuid bit.
func modeInImage(t *testing.T, image, name string) uint16 {
	t.Helper()
	said, err := exec.Command("dump.erofs", "--path="+name, image).CombinedOutput()
	if err != nil {
		t.Fatalf("find %s: %v: %s", name, err, said)
	}
	_, rest, _ := strings.Cut(string(said), "NID: ")
	var nid int64
	if _, err := fmt.Sscan(rest, &nid); err != nil {
		t.Fatalf("find %s: %v: %s", name, err, said)
	}
	f, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var super, inode [64]byte
	if _, err := f.ReadAt(super[:], 1024); err != nil {
		t.Fatal(err)
	}
	meta := int64(binary.LittleEndian.Uint32(super[40:]))
	if _, err := f.ReadAt(inode[:], meta<<super[12]+nid*32); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint16(inode[4:])
}

// checkInside runs what every Sandbox is promised, as "user", in the tree.
func checkInside(t *testing.T, tree string, image Image) {
	t.Helper()
	const script = `set -e
cd /workspace; touch here /code/x; touch /usr/local/bin/x; rm here /code/x /usr/local/bin/x
test "$(id -un) $(id -u) $(id -g) $HOME" = "user 1000 1000 /home/user"
python3 -c 'import json, ssl, sqlite3, venv; print("python", json.dumps([1]))'
python3 -m pip --version
python3 -c 'import PIL; print("Pillow", PIL.__version__)'
node -e 'console.log("node", process.versions.node)'
npm --version; npx --version
git init -q /tmp/repo; git -C /tmp/repo status --short
test "$(echo '{"a":1}' | jq .a)" = 1
sudo -n id -u
for p in curl rg tree unzip xz file make ps ip less nano ssh tput; do command -v $p; done
locale -a | grep -qi '^c.utf'
`
	var lines []string
	run := confinedRun{
		Root: tree,
		Env:  []string{"PATH=" + image.Env["PATH"], "HOME=/home/user", "LANG=" + image.Env["LANG"]},
		Line: func(line string) { lines = append(lines, line) },
	}
	if err := run.run(t.Context(), "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "/bin/bash", "-c", script); err != nil {
		t.Errorf("inside the tree: %v", err)
	}
	out := strings.Join(lines, "\n")
	for _, want := range []string{"python [1]", "node 24.", "\n0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("inside the tree nothing said %q:\n%s", want, out)
		}
	}
	for _, name := range []string{"etc/machine-id", "usr/sbin/policy-rc.d", "debootstrap"} {
		if _, err := os.Lstat(filepath.Join(tree, name)); err == nil {
			t.Errorf("/%s is left", name)
		}
	}
	if _, err := os.Lstat(filepath.Join(tree, "tmp/.keep")); err != nil {
		t.Errorf("/tmp is empty, and gVisor would hide it: %v", err)
	}
}

// tarOf streams a folder as a layer.
func tarOf(dir string) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeTar(dir, w)) }()
	return r
}

func writeTar(dir string, out io.Writer) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(name); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		h.Name, h.Uid, h.Gid = strings.TrimPrefix(name, dir+"/"), int(st.Uid), int(st.Gid)
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
