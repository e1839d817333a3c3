package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// In a cluster with a key of builds, the programs of other builds are used only if that key
// signed them. The launcher verifies the programs that it starts. The sentry host verifies the
// others: the Guests of earlier builds, and the programs that the server brings.

// buildDir is the folder of the programs of another build.
func (h *Host) buildDir(build string) string {
	return filepath.Join(filepath.Dir(h.cfg.SidecarDir), filepath.Base(build))
}

// trustBuild returns Conflict if the cluster's builds are signed, and another build that is
// here is not. A verified build is not verified again: only root can change it.
func (h *Host) trustBuild(build string) error {
	key, err := h.keys.BuildKey()
	if err != nil || key == nil {
		return err
	}
	h.mu.Lock()
	by, known := h.trusted[build]
	h.mu.Unlock()
	if known && by == *key {
		return nil
	}
	if err := builds.Verify(h.buildDir(build), *key); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trusted[build] = *key
	return nil
}

// lacks returns the build whose programs a state needs and which is not here, or is here
// without a good signature; empty: none.
func (h *Host) lacks(m *sentryhost.Manifest) string {
	if !m.Memory || m.Build == h.cfg.Build || !sentryhost.ValidBuild(m.Build) {
		return ""
	}
	for _, part := range []string{payload.Sentry, filepath.Base(h.cfg.GuestImage)} {
		if _, err := os.Stat(filepath.Join(h.buildDir(m.Build), part)); errors.Is(err, fs.ErrNotExist) {
			return m.Build
		}
	}
	if h.trustBuild(m.Build) != nil {
		return m.Build
	}
	return ""
}

// admit checks a state before its files are sent.
func (h *Host) admit(r sentryhost.ImportRequest) (sentryhost.AdmitReply, error) {
	m, err := h.signed(r)
	if err != nil {
		return sentryhost.AdmitReply{}, err
	}
	return sentryhost.AdmitReply{Lacks: h.lacks(m)}, nil
}

// setBuildKey keeps the key of builds, which the cluster's authority must have signed.
func (h *Host) setBuildKey(b installation.BuildKey) error {
	if err := h.keys.UpdateBuildKey(b); err != nil {
		return sandbox.Errorf(sandbox.Denied, "the key of builds is not taken").WithCause(err)
	}
	return nil
}

// takeBuild makes the programs of another build available from the bytes of a pipe, until
// ctx ends. The cluster's key must have signed them.
func (h *Host) takeBuild(ctx context.Context, r sentryhost.BuildRequest, req *fdrpc.Request) error {
	pipe, err := req.TakeFile(0)
	if err != nil {
		return err
	}
	defer pipe.Close()
	defer context.AfterFunc(ctx, func() { pipe.Close() })()
	key, err := h.keys.BuildKey()
	if err != nil {
		return err
	}
	if key == nil {
		return sandbox.Errorf(sandbox.Conflict, "this node trusts no build but its own, because its cluster has no key that signs builds")
	}
	m, err := builds.Open(r.Signed, r.Build, *key)
	if err != nil {
		return err
	}
	defer h.lockName("build " + m.Build)()
	switch _, err := os.Lstat(h.buildDir(m.Build)); {
	case err == nil:
		return builds.Keep(h.buildDir(m.Build), r.Signed, *key)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	lib := filepath.Dir(h.cfg.SidecarDir)
	if err := roomFor(lib, "the programs of a build", m.Bytes()); err != nil {
		return err
	}
	if err := builds.Receive(lib, r.Signed, m, pipe, sentryhost.ImportEnd); err != nil {
		return noRoom(err)
	}
	h.log.Info("received the programs of an earlier build", telemetry.KeyBuild, m.Build, "bytes", m.Bytes())
	return nil
}

// removeUnfinishedBuilds removes the folders that a crash of takeBuild left.
func (h *Host) removeUnfinishedBuilds() {
	if err := builds.RemoveUnfinished(filepath.Dir(h.cfg.SidecarDir)); err != nil {
		h.log.Warn("removing an incomplete build failed", telemetry.KeyError, err)
	}
}
