package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "templates"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put stores an image with that content and lets name mean it.
func put(t *testing.T, s *Store, name, content string) Image {
	t.Helper()
	if err := s.makeFolders(); err != nil {
		t.Fatal(err)
	}
	file := s.path("build", "image")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	digest, size, err := s.adopt(file)
	if err != nil {
		t.Fatal(err)
	}
	image := Image{Digest: digest, Size: size, CreatedAt: time.Now().UTC(), Inputs: content[:min(len(content), 100)]}
	ref, err := ParseRef("", name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.writeRef(ref, image); err != nil {
		t.Fatal(err)
	}
	return image
}

// An image that came by itself gets a name, once, and goes with it.
func TestKeep(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	named := put(t, s, "base", "known")
	file := s.path("build", "image")
	if err := os.WriteFile(file, []byte("brought"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest, size, err := s.adopt(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Keep(sandbox.Quota{}, "t", "base:old", digest); err != nil {
			t.Fatal(err)
		}
	}
	found, err := s.Find(ctx, "t", "base@"+digest)
	if err != nil || found.Image.Digest != digest || found.Size != size || found.Owner != "t" {
		t.Errorf("kept as %+v, %v", found, err)
	}
	if _, err := s.Find(ctx, "u", "base@"+digest); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("another tenant finds it: %v", err)
	}
	if got, err := s.Resolve(ctx, "t", "base"); err != nil || got != named.Digest {
		t.Errorf("base is %s, %v", got, err)
	}
	for text, digest := range map[string]string{"base": strings.Repeat("0", 64), "../base": digest, "base@x": digest} {
		if err := s.Keep(sandbox.Quota{}, "t", text, digest); err == nil {
			t.Errorf("kept %s as %s", digest, text)
		}
	}
	if _, _, err := s.Remove("t", "base@"+digest); err != nil {
		t.Error(err)
	}
	if _, err := s.size(digest); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("the image stays: %v", err)
	}
	version, err := ParseRef("", "base@"+named.Digest)
	if err == nil {
		err = s.writeRef(version, named)
	}
	if err == nil {
		err = s.Keep(sandbox.Quota{}, "t", "base", named.Digest)
	}
	if all, listErr := s.refs("t"); err != nil || listErr != nil || len(all) != 0 {
		t.Errorf("what the operator has is also the tenant's: %v, %v, %v", all, err, listErr)
	}
}

func TestOpenWantsAbsolutePath(t *testing.T) {
	if _, err := Open("templates"); err == nil {
		t.Error("a relative path was taken")
	}
}

func TestResolve(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	if _, err := s.Resolve(ctx, "", "base"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("absent: %v, want NotFound", err)
	}
	if err := s.makeFolders(); err != nil {
		t.Fatal(err)
	}
	release, err := s.lock(ctx, "base", func() {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(ctx, "", "base"); !errors.Is(err, sandbox.Unavailable) || !errors.Is(err, sandbox.ErrBeingBuilt) {
		t.Errorf("while it is built: %v, want Unavailable because it is being built", err)
	}
	image := put(t, s, "base", "one")
	if digest, err := s.Resolve(ctx, "", "base"); err != nil || digest != image.Digest {
		t.Errorf("while it is rebuilt: %q, %v, want the present version", digest, err)
	}
	release()
	if _, err := s.Resolve(ctx, "", "other"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("another: %v, want NotFound", err)
	}
	second := put(t, s, "base", "two")
	if digest, err := s.Resolve(ctx, "", "base"); err != nil || digest != second.Digest {
		t.Errorf("after a rebuild: %q, %v, want %q", digest, err, second.Digest)
	}
	path, err := s.Path(t.Context(), image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the first version is %v, %v: it must stay, readable by all", info, err)
	}
	path, _ = s.Path(t.Context(), second.Digest)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(ctx, "", "base"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("image gone: %v, want NotFound", err)
	}
}

func TestRefThatIsDamaged(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "not JSON": "{", "no digest": "{}", "path": `{"digest":"../../etc/passwd"}`,
	} {
		s := newStore(t)
		if err := s.makeFolders(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path("refs", "base"), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		if digest, err := s.Resolve(t.Context(), "", "base"); err == nil || digest != "" {
			t.Errorf("%s: %q, %v, want an error", name, digest, err)
		}
	}
}

func TestNamesAndDigests(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{"", ".", "..", "a/b", "../a", ".lock", "A", "a..b", "-a", "a\x00", strings.Repeat("a", 64)} {
		if _, err := s.Resolve(t.Context(), "", name); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("Resolve(%q) = %v, want Invalid", name, err)
		}
	}
	for _, name := range []string{"base", "a", "python-3.11", strings.Repeat("a", 63)} {
		if _, err := s.Resolve(t.Context(), "", name); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("Resolve(%q) = %v, want NotFound", name, err)
		}
	}
	good := strings.Repeat("0a", 32)
	for _, digest := range []string{"", "base", "sha256:" + good, good[1:], good + "0", strings.ToUpper(good), "../" + good, good + "\n"} {
		if _, err := s.Path(t.Context(), digest); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("Path(%q) = %v, want Invalid", digest, err)
		}
	}
	if path, err := s.Path(t.Context(), good); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("Path(%q) = %q, %v", good, path, err)
	}
}

// Readers must never see half of a ref.
func TestRefIsReplacedWhole(t *testing.T) {
	s := newStore(t)
	images := map[string]bool{put(t, s, "base", "one").Digest: true, put(t, s, "base", "two").Digest: true}
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			digest, err := s.Resolve(t.Context(), "", "base")
			if err != nil || !images[digest] {
				done <- errors.Join(err, errors.New("read "+digest))
				return
			}
		}
	}()
	for i := range 100 {
		put(t, s, "base", []string{"one", "two"}[i%2])
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	left, err := fs.Glob(os.DirFS(s.path("refs")), ".*")
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestParseSource(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Source
		code error
	}{
		{"oci:python:3.11-slim", OCI("python:3.11-slim"), nil},
		{"oci:localhost:5000/a/b@sha256:" + strings.Repeat("a", 64), OCI("localhost:5000/a/b@sha256:" + strings.Repeat("a", 64)), nil},
		{"debian:trixie", Debian("trixie"), nil},
		{"debian:", Debian(""), nil},
		{"base:python:3.11-slim", Base("python:3.11-slim"), nil},
		{"python:3.11-slim", Source{}, sandbox.Invalid},
		{"oci:", Source{}, sandbox.Invalid},
		{"oci:A B", Source{}, sandbox.Invalid},
		{"debian:../x", Source{}, sandbox.Invalid},
		{"debian:--help", Source{}, sandbox.Invalid},
		{"", Source{}, sandbox.Invalid},
	} {
		got, err := ParseSource(tt.text)
		if !errors.Is(err, tt.code) {
			t.Errorf("ParseSource(%q) = %v, want %v", tt.text, err, tt.code)
		}
		if err == nil && (got != tt.want || got.String() != tt.text) {
			t.Errorf("ParseSource(%q) = %v, want %v", tt.text, got, tt.want)
		}
	}
}

// Tags are given to what is there, and taken back without the rest.
func TestTag(t *testing.T) {
	s := newStore(t)
	image := put(t, s, "web:1", "one")
	ref, _ := ParseRef("", "web")
	if err := s.publish(ref.at(image.Digest), image); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]error{
		"web:1": nil, "web@" + image.Digest: nil, "web:absent": sandbox.NotFound, "absent": sandbox.NotFound, "web:1:2": sandbox.Invalid,
	} {
		found, err := s.Tag("", text, []string{"stable", "new"})
		if !errors.Is(err, want) || err == nil && found.Image.Digest != image.Digest {
			t.Errorf("%s: %+v, %v", text, found, err)
		}
	}
	if _, err := s.Tag("", "web:1", []string{"fine", "not fine"}); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("a bad tag: %v", err)
	}
	if _, err := s.Tag("other", "web:1", []string{"mine"}); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("another's: %v", err)
	}
	if _, _, err := s.Remove("", "web:1"); err != nil {
		t.Fatal(err)
	}
	var left []string
	listed, err := s.List("")
	for _, l := range listed {
		left = append(left, l.Ref.String())
	}
	if got := strings.Join(left, " "); err != nil || got != "web:new web:stable" {
		t.Errorf("left are %s, %v", got, err)
	}
}

// An image gets another name without being made again, with what that says of it,
// and stays until its last name goes.
func TestReuse(t *testing.T) {
	s := newStore(t)
	image := put(t, s, "base", "one")
	hidden := image
	hidden.Private = true
	for name, i := range map[string]Image{"hidden": hidden, "base:old": image} {
		ref, _ := ParseRef("", name)
		if err := s.writeRef(ref, i); err != nil {
			t.Fatal(err)
		}
	}
	ref := func(owner sandbox.TenantID, name string) Ref {
		r, err := ParseRef(owner, name)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	as := Image{Digest: image.Digest, Defaults: sandbox.TemplateDefaults{User: "root"}, Build: "b", Layer: "l"}
	other := as
	other.Digest = strings.Repeat("0", 64)
	for _, tt := range []struct {
		from string
		to   Ref
		as   Image
		want error
	}{
		{"base", ref("t", "mine:1"), as, nil},
		{"mine@" + image.Digest, ref("t", "other"), as, nil},
		{"mine:1", ref("u", "stolen"), as, sandbox.NotFound},
		{"hidden", ref("t", "stolen"), as, sandbox.NotFound},
		{"absent", ref("t", "stolen"), as, sandbox.NotFound},
		{"base", ref("t", "stolen"), other, sandbox.Conflict},
		{"../base", ref("t", "stolen"), as, sandbox.Invalid},
	} {
		found, err := s.Reuse(t.Context(), tt.from, tt.to, tt.as)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s as %s: %v, want %v", tt.from, tt.to, err, tt.want)
		}
		if err == nil && (found.Image.Digest != image.Digest || found.Ref != tt.to) {
			t.Errorf("%s as %s: %+v", tt.from, tt.to, found)
		}
	}
	for _, name := range []string{"mine:1", "mine@" + image.Digest, "other"} {
		found, err := s.Find(t.Context(), "t", name)
		if err != nil || found.Owner != "t" || found.Defaults != as.Defaults || found.Build != "b" || found.Layer != "l" || found.Inputs != "" || found.Size != image.Size || !found.MadeAt.Equal(image.CreatedAt) || found.CreatedAt.Before(found.MadeAt) {
			t.Errorf("%s is %+v, %v", name, found, err)
		}
	}
	if _, err := s.Find(t.Context(), "u", "stolen"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("what was refused is there: %v", err)
	}
	for owner, names := range map[sandbox.TenantID][]string{"": {"hidden", "base:old"}, "t": {"mine", "other"}} {
		for _, name := range names {
			if _, _, err := s.Remove(owner, name); err != nil {
				t.Errorf("remove %s: %v", name, err)
			}
		}
	}
	if _, err := s.size(image.Digest); err != nil {
		t.Errorf("the image went before its last name: %v", err)
	}
	if found, err := s.Find(t.Context(), "", "base"); err != nil || found.Defaults != image.Defaults || found.Inputs != "one" {
		t.Errorf("base is %+v, %v", found, err)
	}
}

// A version that something saved stands on is neither removed nor pruned; which, is
// told only to whom it belongs.
func TestSavedKeepsItsVersion(t *testing.T) {
	s := newStore(t)
	var stands sandbox.Snapshot
	var problem error
	first := put(t, s, "web", "first")
	s.SetSaved(func(_ context.Context, image string) (sandbox.Snapshot, error) {
		if problem != nil || stands.ID != "" && image == first.Digest {
			return stands, problem
		}
		return sandbox.Snapshot{}, sandbox.NotFound
	})
	there := func() bool {
		_, err := s.size(first.Digest)
		return err == nil
	}
	publish := func(i int, owner sandbox.TenantID) {
		t.Helper()
		image := first
		if i > 0 {
			image = put(t, s, "web", strconv.Itoa(i))
		}
		image.CreatedAt = first.CreatedAt.Add(time.Duration(i) * time.Second)
		if err := s.publish(Ref{Owner: owner, Name: "web", Tag: Latest}, image); err != nil {
			t.Fatal(err)
		}
	}
	publish(0, "")
	stands = sandbox.Snapshot{ID: "s1", SandboxID: "i1", Tenant: "t"}
	for i := range keptVersions + 2 {
		publish(i+1, "")
	}
	if _, _, err := s.Remove("", "web"); !there() || !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), "s1") || !strings.Contains(err.Error(), "i1") {
		t.Errorf("while it is needed: %v", err)
	}
	problem = errors.New("no answer")
	publish(keptVersions+3, "")
	if _, _, err := s.Remove("", "web@"+first.Digest); !there() || !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("while nobody knows: %v", err)
	}
	problem, stands = nil, sandbox.Snapshot{}
	publish(keptVersions+4, "")
	if there() {
		t.Error("it stays although nothing needs it")
	}

	// A tenant learns nothing of another's.
	first = put(t, s, "web", "shared")
	if _, _, err := s.Remove("", "web"); err != nil { // the next one is a tenant's alone
		t.Fatal(err)
	}
	first = put(t, s, "other", "shared")
	publish(0, "u")
	if _, _, err := s.Remove("", "other"); err != nil {
		t.Fatal(err)
	}
	stands = sandbox.Snapshot{ID: "s1", SandboxID: "i1", Tenant: "t"}
	if _, _, err := s.Remove("u", "web"); !there() || !errors.Is(err, sandbox.Conflict) || strings.Contains(err.Error(), "i1") {
		t.Errorf("of another tenant's: %v", err)
	}
}

// Images that were made from others are kept as deltas; a base stays while one of them
// needs it, and goes with the last.
func TestCompact(t *testing.T) {
	s := newStore(t)
	text := func(n int, more string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%4095d\n", i)
		}
		return b.String() + more
	}
	first := put(t, s, "first", text(300, ""))
	made := func(name, more string, base Image) Image {
		i := put(t, s, name, text(300, more))
		i.Inputs, i.Base = name, base.Digest
		if err := s.publish(Ref{Name: name, Tag: Latest}, i); err != nil {
			t.Fatal(err)
		}
		return i
	}
	block := strings.Repeat("x", 4096)
	second := made("second", block, first)
	third := made("third", block+block, second)
	other := put(t, s, "other", text(5, ""))
	c := Compactor{Store: s, Log: slog.New(slog.DiscardHandler)}
	for range 2 {
		if err := c.compact(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	all := s.images()
	for name, i := range map[string]Image{"first": first, "second": second, "third": third, "other": other} {
		n, err := all.Stored(i.Digest)
		_, whole := os.Stat(all.Path(i.Digest))
		if delta := i.Base != ""; err != nil || delta != (n < 100_000 && whole != nil) && i.Digest != other.Digest {
			t.Errorf("%s: %d bytes, %v, whole: %v", name, n, err, whole)
		}
		if path, err := s.Path(t.Context(), i.Digest); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if info, err := os.Stat(path); err != nil || info.Size() != i.Size {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	for _, step := range []struct {
		remove string
		left   []Image
	}{
		{"first", []Image{first, second, third}}, // it has no name, and the others need it
		{"second", []Image{first, third}},
		{"third", nil},
	} {
		if _, _, err := s.Remove("", step.remove); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Resolve(t.Context(), "", step.remove); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("%s is found: %v", step.remove, err)
		}
		for _, i := range []Image{first, second, third} {
			want := slices.ContainsFunc(step.left, func(l Image) bool { return l.Digest == i.Digest })
			if all.Has(i.Digest) != want {
				t.Errorf("without %s: an image is there: %v", step.remove, !want)
			}
		}
	}
	if !all.Has(other.Digest) {
		t.Error("another image is gone")
	}
}
