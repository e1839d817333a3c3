package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// Memory that one version of gVisor saved cannot be restored by another one. A start from
// it therefore runs in a sentry of the build that saved it, and the sentry host of that
// build starts and watches the sentry. That sentry host has a separate folder of saved
// states, which holds only states that were shared with it and states that it has just
// saved. So neither disturbs the other, however they keep states: see
// sentryhost.EarlierSaved.

// home returns the build whose sentry host starts from a state.
func (h *Host) home(name string) (r sentryhost.HomeReply, err error) {
	m, _, _, err := h.knownManifest(name)
	if err != nil {
		return r, err
	}
	r.Engine, r.CPU = m.Engine, m.CPU
	if r.Lacks = h.lacks(m); r.Lacks != "" {
		return r, nil
	}
	r.Build, err = h.homeOf(m)
	return r, err
}

// homeOf returns the build whose sentry host starts from a state; empty: this one. It
// returns Conflict when no build here does.
func (h *Host) homeOf(m *sentryhost.Manifest) (string, error) {
	if m.Engine == h.engineVersion() || savesInPlace() && m.Engine == h.engineVersion()+inPlaceSuffix {
		return "", nil
	}
	if !m.Memory { // layer files have their own format, whose version the sentry checks
		if !slices.EqualFunc(m.Files, layerFiles, func(f sentryhost.SavedFile, name string) bool { return f.Name == name }) {
			return "", sandbox.Errorf(sandbox.Conflict, "the files of the saved state %s are kept as gVisor %.80s did, which %s does not read", m.Name, m.Engine, h.engineVersion())
		}
		return "", nil
	}
	if m.Build == h.cfg.Build || !sentryhost.ValidBuild(m.Build) { // such a manifest is wrong
		return "", damaged(m.Name, fmt.Errorf("it is of build %.80q and of gVisor %.80s", m.Build, m.Engine))
	}
	for _, part := range []string{payload.Sentry, filepath.Base(h.cfg.GuestImage)} {
		if err := h.hasPart(m, part); err != nil {
			return "", err
		}
	}
	return m.Build, nil
}

// hasPart returns Conflict when a part of the build whose Guest is in a state's memory is
// missing here.
func (h *Host) hasPart(m *sentryhost.Manifest, part string) error {
	if m.Build == h.cfg.Build {
		return nil
	}
	if _, err := os.Stat(filepath.Join(h.buildDir(m.Build), part)); err != nil {
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s holds memory of build %.80s of Cloud Sandbox, with gVisor %.80s, and the %s of that build is not here: start from it where that build is, or from a state of files alone",
			m.Name, m.Build, m.Engine, part).WithCause(err)
	}
	return h.trustBuild(m.Build)
}

// earlierDir is the folder of a state in an earlier build's folder of saved states.
func (h *Host) earlierDir(r sentryhost.EarlierRequest) (string, error) {
	if !sandbox.ValidSnapshotID(r.Name) {
		return "", sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", r.Name)
	}
	if !sentryhost.ValidBuild(r.Build) || r.Build == h.cfg.Build {
		return "", sandbox.Errorf(sandbox.Invalid, "%.80q is not an earlier build", r.Build)
	}
	return filepath.Join(sentryhost.EarlierSaved(h.cfg.Saved, r.Build), r.Name), nil
}

// shareWithEarlier puts a state where the sentry host of an earlier build finds it, as hard links to
// the same files. It is idempotent.
func (h *Host) shareWithEarlier(r sentryhost.EarlierRequest) error {
	to, err := h.earlierDir(r)
	if err != nil {
		return err
	}
	m, _, err := h.readManifest(r.Name)
	if err != nil {
		return err
	}
	files, done, err := h.openReady(m) // the start verifies them
	if err != nil {
		return err
	}
	closeAll(files)
	defer done()
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	const mine = 0o700
	if err := os.MkdirAll(filepath.Dir(to), mine); err != nil {
		return fmt.Errorf("make the folder of an earlier build's states: %w", err)
	}
	aside, err := os.MkdirTemp(filepath.Dir(to), asidePrefix+r.Name+"-")
	if err != nil {
		return fmt.Errorf("share a saved state with an earlier build: %w", err)
	}
	defer os.RemoveAll(aside)
	for _, name := range append(filesOf(m), sentryhost.ManifestName) {
		if err := os.Link(filepath.Join(h.savedDir(r.Name), name), filepath.Join(aside, name)); err != nil {
			return fmt.Errorf("share a saved state with an earlier build: %w", err)
		}
	}
	return os.Rename(aside, to)
}

// revokeFromEarlier undoes shareWithEarlier; without one it succeeds. A concurrent start from the state,
// which has no caller any more, has the files open or fails.
func (h *Host) revokeFromEarlier(r sentryhost.EarlierRequest) error {
	from, err := h.earlierDir(r)
	if err != nil {
		return err
	}
	aside := filepath.Join(filepath.Dir(from), asidePrefix+r.Name+"-back")
	err = os.RemoveAll(aside) // left by a crash
	if err == nil {
		err = os.Rename(from, aside)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("revoke a saved state from an earlier build: %w", err)
	}
	return os.RemoveAll(aside)
}

// importFromEarlier takes a state that the sentry host of an earlier build saved. A state of the
// same name and Boot that is here already is the result of an earlier import.
func (h *Host) importFromEarlier(r sentryhost.EarlierRequest) (sandbox.Saved, error) {
	from, err := h.earlierDir(r)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer h.lockName(r.Name)()
	made, rawMade, err := manifestIn(filepath.Dir(from), r.Name)
	if err != nil {
		return sandbox.Saved{}, err
	}
	there, raw, _, err := h.knownManifest(r.Name)
	switch {
	case errors.Is(err, sandbox.NotFound):
	case err == nil && there.Boot == made.Boot && there.Memory == made.Memory:
		return savedOf(there, raw), os.RemoveAll(from)
	default:
		return sandbox.Saved{}, errors.Join(sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", r.Name).WithCause(err), os.RemoveAll(from))
	}
	if err := os.Rename(from, h.savedDir(r.Name)); err != nil {
		return sandbox.Saved{}, fmt.Errorf("import a state of an earlier build: %w", err)
	}
	if err := errors.Join(syncDir(h.cfg.Saved), syncDir(filepath.Dir(from))); err != nil {
		return sandbox.Saved{}, err
	}
	return savedOf(made, rawMade), nil
}
