package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

const earlierBuild, earlierEngine = "0123456789abcdef", "v0.0.0-20200101000000-000000000000"

// stateAs is stateOf with a changed manifest.
func stateAs(t *testing.T, h *Host, change func(*sentryhost.Manifest)) *sentryhost.Manifest {
	t.Helper()
	name := stateOf(t, h, true)
	m, _, err := h.readManifest(name)
	must(t, err)
	change(m)
	must(t, os.RemoveAll(h.savedDir(name)))
	d, err := h.newDraft(m, 1<<20, 0)
	must(t, err)
	for _, f := range d.files {
		_, err := f.WriteString("content of " + filepath.Base(f.Name()))
		must(t, err)
	}
	_, err = d.finish()
	must(t, err)
	return m
}

func ofEarlier(m *sentryhost.Manifest) { m.Build, m.Engine = earlierBuild, earlierEngine }

// home names the build that a state needs, if its programs exist here.
func TestHome(t *testing.T) {
	h := portHost(t)
	here := func(part string) string {
		return filepath.Join(filepath.Dir(h.cfg.SidecarDir), earlierBuild, part)
	}
	must(t, os.Mkdir(here(""), 0o700))
	memory := stateAs(t, h, ofEarlier)
	for _, part := range []string{payload.Sentry, "guest.erofs"} {
		if got, err := h.home(memory.Name); err != nil || got.Lacks != earlierBuild || got.Engine != earlierEngine {
			t.Errorf("without its %s: %+v, %v", part, got, err)
		}
		_, err := h.homeOf(memory)
		if !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), earlierBuild) || !strings.Contains(err.Error(), part) {
			t.Errorf("without its %s: %v", part, err)
		}
		must(t, os.WriteFile(here(part), nil, 0o600))
	}
	for what, tt := range map[string]struct {
		change func(*sentryhost.Manifest)
		build  string
		want   error
	}{
		"ours":                     {func(*sentryhost.Manifest) {}, "", nil},
		"memory of another gVisor": {ofEarlier, earlierBuild, nil},
		"memory of our gVisor and an earlier guest": {func(m *sentryhost.Manifest) { m.Build = earlierBuild }, "", nil},
		"files of another gVisor":                   {func(m *sentryhost.Manifest) { ofEarlier(m); m.Memory = false }, "", nil},
		"another gVisor in our build":               {func(m *sentryhost.Manifest) { m.Engine = earlierEngine }, "", sandbox.Conflict},
		"a build that is a path":                    {func(m *sentryhost.Manifest) { ofEarlier(m); m.Build = "../lib/" + earlierBuild }, "", sandbox.Conflict},
	} {
		m := stateAs(t, h, tt.change)
		got, err := h.home(m.Name)
		if got.Build != tt.build || got.Lacks != "" || !errors.Is(err, tt.want) || err == nil && got.Engine != m.Engine {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
		if err == nil && got.Build != "" && !errors.Is(h.fits(m, sentryhost.StartRequest{Image: m.Image, Shape: m.Shape}), sandbox.Conflict) {
			t.Errorf("%s: it would be started here", what)
		}
	}
	if _, err := h.home(sandbox.NewSnapshotID()); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("of none: %v", err)
	}
	files := stateAs(t, h, func(m *sentryhost.Manifest) { ofEarlier(m); m.Memory = false })
	files.Files[0].Name = "manifest of long ago"
	if _, err := h.homeOf(files); !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), earlierEngine) {
		t.Errorf("files kept otherwise: %v", err)
	}
}

// A shared state has the same files, packed or not. Revoking it changes nothing of the
// original.
func TestShareWithEarlier(t *testing.T) {
	h := portHost(t)
	earlier := &Host{cfg: Config{Saved: sentryhost.EarlierSaved(h.cfg.Saved, earlierBuild)}, naming: map[string]chan struct{}{}, opened: map[string]int{}, log: h.log}
	for _, packed := range []bool{false, true} {
		m := stateAs(t, h, ofEarlier)
		if packed {
			must(t, h.share(sentryhost.ShareRequest{Name: m.Name, Group: "t"}))
			must(t, h.packAndEvict(m))
		}
		r := sentryhost.EarlierRequest{Name: m.Name, Build: earlierBuild}
		for range 2 {
			must(t, h.shareWithEarlier(r))
		}
		got, _, err := earlier.readManifest(m.Name)
		must(t, err)
		files, _, err := earlier.openReady(got)
		must(t, err)
		must(t, verify(got, files))
		for _, f := range files {
			shared, err := f.Stat()
			must(t, err)
			own, err := os.Stat(filepath.Join(h.savedDir(m.Name), filepath.Base(f.Name())))
			must(t, err)
			if !os.SameFile(shared, own) {
				t.Errorf("packed %t: %s is another file", packed, f.Name())
			}
		}
		closeAll(files)
		h.removeDrafts()
		must(t, os.MkdirAll(filepath.Join(earlier.cfg.Saved, "."+m.Name+"-back", "cut"), 0o700)) // left by a crash
		for range 2 {
			must(t, h.revokeFromEarlier(r))
		}
		if _, err := h.openSaved(m); err != nil {
			t.Errorf("packed %t: after it was taken back: %v", packed, err)
		}
		if left, err := os.ReadDir(earlier.cfg.Saved); err != nil || len(left) > 0 {
			t.Errorf("packed %t: left are %v, %v", packed, left, err)
		}
	}
	if names, err := h.listSaved(); err != nil || len(names) != 2 {
		t.Errorf("our states are %v, %v", names, err)
	}
	m := stateAs(t, h, ofEarlier)
	for what, tt := range map[string]struct {
		r    sentryhost.EarlierRequest
		want error
	}{
		"none":         {sentryhost.EarlierRequest{Name: sandbox.NewSnapshotID(), Build: earlierBuild}, sandbox.NotFound},
		"another name": {sentryhost.EarlierRequest{Name: "../" + m.Name, Build: earlierBuild}, sandbox.Invalid},
		"a path":       {sentryhost.EarlierRequest{Name: m.Name, Build: "../../" + earlierBuild}, sandbox.Invalid},
		"our build":    {sentryhost.EarlierRequest{Name: m.Name, Build: h.cfg.Build}, sandbox.Invalid},
	} {
		if err := h.shareWithEarlier(tt.r); !errors.Is(err, tt.want) {
			t.Errorf("share %s: %v, want %v", what, err, tt.want)
		}
		if err := h.revokeFromEarlier(tt.r); !errors.Is(err, tt.want) && tt.want != sandbox.NotFound {
			t.Errorf("take back %s: %v, want %v", what, err, tt.want)
		}
	}
}

// A state saved by an earlier build is imported once, and never replaces another state.
func TestCollect(t *testing.T) {
	h := portHost(t)
	earlier := &Host{cfg: h.cfg}
	earlier.cfg.Saved = sentryhost.EarlierSaved(h.cfg.Saved, earlierBuild)
	must(t, os.MkdirAll(earlier.cfg.Saved, 0o700))
	m := stateAs(t, earlier, ofEarlier)
	r := sentryhost.EarlierRequest{Name: m.Name, Build: earlierBuild}
	saved, err := h.importFromEarlier(r)
	must(t, err)
	if !saved.Memory || saved.Build != earlierBuild || saved.Bytes == 0 || saved.Digest == "" {
		t.Errorf("collected %+v", saved)
	}
	if _, err := os.Lstat(earlier.savedDir(m.Name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	again := func(boot string) (sandbox.Saved, error) {
		t.Helper()
		stateAs(t, earlier, func(o *sentryhost.Manifest) { ofEarlier(o); o.Name, o.Boot = m.Name, boot })
		got, err := h.importFromEarlier(r)
		if _, statErr := os.Lstat(earlier.savedDir(m.Name)); !errors.Is(statErr, fs.ErrNotExist) {
			t.Errorf("the second is still there: %v", statErr)
		}
		return got, err
	}
	if got, err := again(m.Boot); err != nil || got != saved {
		t.Errorf("the same Boot again: %+v, %v; want %+v", got, err, saved)
	}
	if _, err := again(sandbox.NewBootID()); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("another Boot: %v", err)
	}
	if got, _, err := h.readManifest(m.Name); err != nil || got.Boot != m.Boot {
		t.Errorf("what was collected is %+v, %v", got, err)
	}
	if _, err := h.importFromEarlier(r); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("nothing: %v", err)
	}
	if _, err := h.importFromEarlier(sentryhost.EarlierRequest{Name: m.Name, Build: ".."}); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("a path: %v", err)
	}
}
