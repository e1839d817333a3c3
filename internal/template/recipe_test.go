package template

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/decompress"
)

func TestParseRef(t *testing.T) {
	digest := strings.Repeat("0a", 32)
	for text, want := range map[string]Ref{
		"web":               {Owner: "t", Name: "web", Tag: Latest},
		"web:latest":        {Owner: "t", Name: "web", Tag: Latest},
		"web:1.2":           {Owner: "t", Name: "web", Tag: "1.2"},
		"web@" + digest:     {Owner: "t", Name: "web", Digest: digest},
		"":                  {},
		"Web":               {},
		"web:":              {},
		"web:..":            {},
		"web:a/b":           {},
		"web:1@" + digest:   {},
		"web@":              {},
		"web@" + digest[1:]: {},
		"../web":            {},
		"a/b":               {},
		"web\x00":           {},
	} {
		got, err := ParseRef("t", text)
		if text == "web:" {
			continue // an empty tag is the latest
		}
		if got != want || (want == Ref{}) != errors.Is(err, sandbox.Invalid) {
			t.Errorf("%q = %+v, %v", text, got, err)
		}
		if err == nil {
			if again, err := ParseRef("t", got.String()); err != nil || again != got {
				t.Errorf("%q is written %q and read %+v, %v", text, got, again, err)
			}
		}
	}
}

func TestRecipeCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		recipe Recipe
		want   error
	}{
		"nothing but a source":       {Recipe{Source: Debian("")}, nil},
		"all of it":                  {Recipe{Source: OCI("a:1"), Packages: []string{"g++"}, Files: []File{{Path: "/srv/a", Mode: 0o755}}, Env: map[string]string{"A": ""}, Start: "x", Ready: "y"}, nil},
		"no source":                  {Recipe{}, sandbox.Invalid},
		"an option for a package":    {Recipe{Source: Debian(""), Packages: []string{"-o=x"}}, sandbox.Invalid},
		"a path for a package":       {Recipe{Source: Debian(""), Packages: []string{"./x.deb"}}, sandbox.Invalid},
		"packages into an archive":   {Recipe{Source: Tar("/x.tar"), Packages: []string{"git"}}, sandbox.Unsupported},
		"packages into a bare image": {Recipe{Source: OCI("a:1"), Bare: true, Packages: []string{"git"}}, sandbox.Unsupported},
		"a package of npm":           {Recipe{Source: Debian(""), NPM: []string{"@a/b-c@1.2.3", "d"}}, nil},
		"an option for npm":          {Recipe{Source: Debian(""), NPM: []string{"--prefix"}}, sandbox.Invalid},
		"an address for npm":         {Recipe{Source: Debian(""), NPM: []string{"http://x/y.tgz"}}, sandbox.Invalid},
		"npm into an archive":        {Recipe{Source: Tar("/x.tar"), NPM: []string{"a"}}, sandbox.Unsupported},
		"a relative folder":          {Recipe{Source: Dir("x")}, sandbox.Invalid},
		"a file outside":             {Recipe{Source: Debian(""), Files: []File{{Path: "../x"}}}, sandbox.Invalid},
		"a file in /proc":            {Recipe{Source: Debian(""), Files: []File{{Path: "/proc/x"}}}, sandbox.Invalid},
		"a setuid file":              {Recipe{Source: Debian(""), Files: []File{{Path: "/x", Mode: os.ModeSetuid | 0o755}}}, sandbox.Invalid},
		"too much":                   {Recipe{Source: Debian(""), Files: []File{{Path: "/x", Content: make([]byte, maxRecipeBytes+1)}}}, sandbox.TooLarge},
		"a bad variable":             {Recipe{Source: Debian(""), Env: map[string]string{"A-B": ""}}, sandbox.Invalid},
		"ready for nothing":          {Recipe{Source: Debian(""), Ready: "true"}, sandbox.Invalid},
		"a zero byte":                {Recipe{Source: Debian(""), Start: "a\x00"}, sandbox.Invalid},
	} {
		err := tt.recipe.Check()
		if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// A Recipe that adds nothing needs no other build than its Source alone.
func TestRecipeHash(t *testing.T) {
	if h, err := (Recipe{Source: Debian("x"), Private: true}).hash(); err != nil || h != "" {
		t.Errorf("an empty recipe has the hash %q, %v", h, err)
	}
	seen := map[string]bool{}
	for _, r := range []Recipe{
		{Packages: []string{"a"}},
		{Files: []File{{Path: "/a"}}},
		{Files: []File{{Path: "/a", User: true}}},
		{Env: map[string]string{"A": "b"}},
		{Start: "x"},
		{Start: "x", Ready: "y"},
		{Bare: true},
		{NPM: []string{"a"}},
	} {
		h, err := r.hash()
		if err != nil || h == "" || seen[h] {
			t.Errorf("%+v has the hash %q, %v", r, h, err)
		}
		seen[h] = true
	}
}

// small is a root filesystem that is left as it is.
func small(t *testing.T) []byte {
	return archive(t, file("bin/sh", "#!", 0o755), file("srv/setuid", "x", 0o4755), file("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644)).Bytes()
}

func make1(t *testing.T, b *Builder, name string, recipe Recipe, content io.Reader) Image {
	t.Helper()
	ref, err := ParseRef("", name)
	if err != nil {
		t.Fatal(err)
	}
	image, err := b.Make(t.Context(), ref, recipe, content, nil)
	if err != nil {
		t.Fatalf("make %s: %v", name, err)
	}
	return image
}

// inside unpacks an image.
func inside(t *testing.T, s *Store, image Image) string {
	t.Helper()
	path, err := s.Path(t.Context(), image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if said, err := exec.Command("fsck.erofs", "--extract="+out, path).CombinedOutput(); err != nil {
		t.Fatalf("unpack the image: %v: %s", err, said)
	}
	return out
}

// Archives and folders become images of what is in them, with what the Recipe
// adds; equal ones become equal images.
func TestMakeOfFiles(t *testing.T) {
	needHost(t)
	b := &Builder{Store: newStore(t)}
	dir := t.TempDir()
	tarFile, folder := filepath.Join(dir, "x.tar"), filepath.Join(dir, "tree")
	if err := os.WriteFile(tarFile, small(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c", "mkdir "+folder+" && tar -C "+folder+" -xf "+tarFile+" && ln -s /etc/shadow "+folder+"/srv/link && mkfifo "+folder+"/srv/pipe").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	recipe := Recipe{
		Source: Tar(tarFile), Env: map[string]string{"HELLO": `w"orld`}, Start: "serve", Ready: "true",
		Files: []File{{Path: "/srv/app", Content: []byte("app"), Mode: 0o750, User: true}},
	}
	first := make1(t, b, "a:1", recipe, nil)
	if again := make1(t, b, "a:2", recipe, bytes.NewReader(small(t))); again.Digest != first.Digest {
		t.Errorf("equal trees are %s and %s", first.Digest, again.Digest)
	}
	recipe.Source = Dir(folder)
	for name, image := range map[string]Image{"tar": first, "dir": make1(t, b, "b", recipe, nil)} {
		out := inside(t, b.Store, image)
		if info, err := os.Stat(filepath.Join(out, "srv/app")); err != nil || info.Mode().Perm() != 0o750 {
			t.Errorf("%s: the file that was added: %v, %v", name, info, err)
		}
		if body, err := os.ReadFile(filepath.Join(out, "etc/passwd")); err != nil || !strings.Contains(string(body), "user:x:1000:1000::/home/user:/bin/sh") {
			t.Errorf("%s: accounts %q, %v", name, body, err)
		}
		var told guest.Template
		body, err := os.ReadFile(filepath.Join(out, guest.TemplateFile))
		if err != nil || json.Unmarshal(body, &told) != nil || told.Env["HELLO"] != `w"orld` || told.Start != "serve" || told.Ready != "true" {
			t.Errorf("%s: the guest is told %s, %v", name, body, err)
		}
		if name == "dir" {
			if to, err := os.Readlink(filepath.Join(out, "srv/link")); err != nil || to != "/etc/shadow" {
				t.Errorf("the link leads to %q, %v", to, err)
			}
		}
	}
	for name, source := range map[string]Source{"absent": Tar(filepath.Join(dir, "absent")), "no folder": Dir(tarFile), "no tar": Tar("/etc/hostname")} {
		ref, _ := ParseRef("", "c")
		if _, err := b.Make(t.Context(), ref, Recipe{Source: source}, nil, nil); err == nil {
			t.Errorf("%s became a template", name)
		}
	}
	if _, err := b.Store.Find(t.Context(), "", "c"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("after failed builds there is a template: %v", err)
	}
}

// Tags, versions and owners, and what is left when some go.
func TestOwnersAndVersions(t *testing.T) {
	s := newStore(t)
	base := put(t, s, "base", "base image")
	publish := func(owner sandbox.TenantID, text, content string) Image {
		t.Helper()
		image := put(t, s, "scratch", content)
		if err := os.Remove(s.path("refs", "scratch")); err != nil {
			t.Fatal(err)
		}
		image.CreatedAt = time.Now()
		ref, err := ParseRef(owner, text)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.publish(ref, image); err != nil {
			t.Fatal(err)
		}
		return image
	}
	one, two := publish("", "web", "one"), publish("", "web:2", "two")
	mine, hidden := publish("me", "web", "mine"), put(t, s, "hidden", "hidden")
	hidden.Private = true
	if err := s.writeRef(Ref{Name: "hidden", Tag: Latest}, hidden); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		owner sandbox.TenantID
		text  string
		want  string
	}{
		{"", "web", one.Digest},
		{"", "web:2", two.Digest},
		{"", "web@" + one.Digest, one.Digest},
		{"", "hidden", hidden.Digest},
		{"me", "web", mine.Digest},
		{"me", "web:2", two.Digest},
		{"me", "base", base.Digest},
		{"you", "web", one.Digest},
		{"you", "web@" + mine.Digest, ""},
		{"you", "hidden", ""},
		{"", "web@" + mine.Digest, ""},
		{"refs/../me", "web", one.Digest},
		{"me", "none", ""},
	} {
		digest, err := s.Resolve(t.Context(), tt.owner, tt.text)
		if digest != tt.want || (tt.want == "") != errors.Is(err, sandbox.NotFound) {
			t.Errorf("to %q %s is %.8s, %v, want %.8s", tt.owner, tt.text, digest, err, tt.want)
		}
	}
	there := func(i Image) bool {
		path, _ := s.Path(t.Context(), i.Digest)
		_, err := os.Stat(path)
		return err == nil
	}
	if _, _, err := s.Remove("you", "web"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("removing another's = %v", err)
	}
	if _, _, err := s.Remove("", "base"); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("removing base = %v", err)
	}
	if gone, _, err := s.Remove("", "web:2"); err != nil || len(gone) != 1 || !there(two) {
		t.Errorf("removing a tag: %v, %v; its version is there: %v", gone, err, there(two))
	}
	if gone, _, err := s.Remove("", "web@"+two.Digest); err != nil || len(gone) != 1 || there(two) {
		t.Errorf("removing a version: %v, %v; its image is there: %v", gone, err, there(two))
	}
	same := publish("you", "copy", "one")
	if gone, _, err := s.Remove("", "web"); err != nil || len(gone) != 2 || !there(same) {
		t.Errorf("removing what another has too: %v, %v; the image is there: %v", gone, err, there(same))
	}
	if _, _, err := s.Remove("me", "web"); err != nil || there(mine) || !there(base) {
		t.Errorf("removing all: %v", err)
	}

	// Only the last versions stay, and those with a tag.
	var all []Image
	for i := range keptVersions + 3 {
		text := "many"
		if i == 0 {
			text = "many:first"
		}
		all = append(all, publish("me", text, strings.Repeat("x", i+1)))
		time.Sleep(time.Millisecond)
	}
	versions, err := s.Versions("me", "many")
	if err != nil || len(versions) != keptVersions+1 || !there(all[0]) || there(all[1]) || there(all[2]) || !there(all[3]) {
		t.Errorf("%d versions, %v", len(versions), err)
	}
	if tags, err := s.List("me"); err != nil || len(tags) != 2 {
		t.Errorf("tags: %+v, %v", tags, err)
	}
}

// A version that something runs from stays, and so does what names it.
func TestRemoveWhatIsInUse(t *testing.T) {
	s := newStore(t)
	image := put(t, s, "web", "a root filesystem")
	if err := s.publish(Ref{Name: "web", Tag: "1"}, image); err != nil {
		t.Fatal(err)
	}
	path, err := s.Path(t.Context(), image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.Open(path) // as the sentry host does
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	if err := unix.Flock(int(user.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"web", "web@" + image.Digest} {
		if _, _, err := s.Remove("", text); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("removing %s while it is used = %v", text, err)
		}
	}
	if all, err := s.refs(""); err != nil || len(all) != 3 {
		t.Errorf("left: %+v, %v", all, err)
	}
	if gone, _, err := s.Remove("", "web:1"); err != nil || len(gone) != 1 {
		t.Errorf("removing a tag: %v, %v", gone, err)
	}
	user.Close()
	if gone, _, err := s.Remove("", "web"); err != nil || len(gone) != 2 {
		t.Errorf("removing what nobody uses any more: %v, %v", gone, err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the image is left")
	}
}

// A parsed name is a plain file name, and parses to itself.
func FuzzParseRef(f *testing.F) {
	for _, text := range []string{"web", "web:1.2", "web@" + strings.Repeat("0a", 32), "a/b", "web:", "..", "a..b:x", "web:latest"} {
		f.Add(text)
	}
	s := &Store{dir: "/store"}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRef("", text)
		if err != nil {
			return
		}
		if again, err := ParseRef("", r.String()); err != nil || again != r {
			t.Errorf("%q is written %q and read %+v, %v", text, r, again, err)
		}
		if path := s.refFile(r); filepath.Dir(path) != "/store/refs" {
			t.Errorf("%q is kept at %s", text, path)
		}
	})
}

// The files of any archive stay inside.
func FuzzArchive(f *testing.F) {
	needRoot(f)
	whole := archive(f, file("bin/sh", "#!", 0o755)).Bytes()
	var gz bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, _ = g.Write(whole)
	_ = g.Close()
	z, _ := zstd.NewWriter(nil)
	for _, seed := range [][]byte{whole, gz.Bytes(), z.EncodeAll(whole, nil), gz.Bytes()[:20], nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		tree, dir := newTree(t)
		r, err := decompress.Reader(bytes.NewReader(body))
		if err == nil {
			_ = untar(tree, r, 1<<20, func(int) {}) // only what it leaves counts
		}
		checkOutside(t, dir, "fuzz")
	})
}

// Names that Tenants make up leave nothing behind when nothing comes of them,
// and a lock that was removed keeps no build out and admits none twice.
func TestGuardedBuildsLeaveNoFiles(t *testing.T) {
	needHost(t)
	b := &Builder{Store: newStore(t), Guard: &Guard{}}
	if err := b.Store.makeFolders(); err != nil {
		t.Fatal(err)
	}
	var alone atomic.Int32
	var builds sync.WaitGroup
	for range 8 {
		builds.Go(func() {
			for range 3 {
				release, err := b.Store.lock(t.Context(), "shared", func() {})
				if err != nil {
					t.Error(err)
					return
				}
				if alone.Add(1) != 1 {
					t.Error("two have the lock")
				}
				alone.Add(-1)
				if err := b.Store.forgetLock("shared"); err != nil {
					t.Error(err)
				}
				release()
			}
		})
	}
	builds.Wait()
	ref := Ref{Owner: "me", Name: "nothing", Tag: Latest}
	if _, err := b.Make(t.Context(), ref, Recipe{Source: Tar("/archive")}, strings.NewReader("no archive"), nil); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("no archive: %v", err)
	}
	for _, folder := range []string{"locks", "build", "tenants"} {
		if left, err := os.ReadDir(b.Store.path(folder)); err != nil || len(left) != 0 {
			t.Errorf("left in %s: %v, %v", folder, left, err)
		}
	}
}
