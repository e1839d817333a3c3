package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// SavedCommand is the subcommand of cloud-sandbox that finds a saved state that needs an
// image or a build.
const SavedCommand = "saved-on"

// Arguments of SavedCommand: what a Snapshot may need.
const (
	savedImage = "image" // of a Template, by digest
	savedBuild = "build" // of the Engine
)

// OpenTemplates opens the Template store of a data folder for changes; images that
// Snapshots need are kept. This program must be cloud-sandbox.
func OpenTemplates(layout launch.Layout) (*template.Store, error) {
	store, err := template.Open(layout.Templates())
	if err == nil {
		store.SetSaved(func(ctx context.Context, image string) (sandbox.Snapshot, error) {
			return savedOn(ctx, "/proc/self/exe", layout, savedImage, image)
		})
	}
	return store, err
}

// Saved reports whether a Snapshot needs the parts of a build. See
// launch.Options.
func Saved(ctx context.Context, cfg config.Config, build string) (bool, error) {
	exe, err := program(cfg)
	if err != nil {
		return false, err
	}
	_, err = savedOn(ctx, exe, launch.Layout{Root: cfg.Data}, savedBuild, build)
	if errors.Is(err, sandbox.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// savedOn finds a Snapshot that needs something in the database, by a process of its own:
// its caller is root, and root does not open files that the server writes.
func savedOn(ctx context.Context, exe string, layout launch.Layout, kind, name string) (snap sandbox.Snapshot, err error) {
	if !hasDatabase(layout) {
		return snap, sandbox.Errorf(sandbox.NotFound, "nothing is saved")
	}
	cmd := exec.CommandContext(ctx, exe, SavedCommand, kind, name, "--data", layout.Root)
	cmd.Env = withoutSecrets(os.Environ())
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return snap, fmt.Errorf("ask for saved states: %w: %s", err, problem.Bytes())
	}
	if out.Len() == 0 {
		return snap, sandbox.Errorf(sandbox.NotFound, "no saved state needs %s %s", kind, name)
	}
	if err := json.Unmarshal(out.Bytes(), &snap); err != nil || snap.SandboxID == "" {
		return snap, fmt.Errorf("ask for saved states: %q, %w", out.Bytes(), err)
	}
	return snap, nil
}

// PrintSaved is SavedCommand: it prints a Snapshot that needs the named image or build,
// as JSON, or nothing. For a Sandbox that has the image and no Snapshot, perhaps on another
// Node, it prints a Snapshot without an ID.
func PrintSaved(ctx context.Context, layout launch.Layout, kind, name string, out io.Writer) error {
	return WithStore(ctx, layout, func(s sandbox.Store) error {
		find, ok := map[string]func(context.Context, string) (sandbox.Snapshot, error){
			savedImage: s.SnapshotOfImage, savedBuild: s.SnapshotOfBuild,
		}[kind]
		if !ok {
			return sandbox.Errorf(sandbox.Invalid, "ask for %q or %q", savedImage, savedBuild)
		}
		snap, err := find(ctx, name)
		if errors.Is(err, sandbox.NotFound) && kind == savedImage {
			snap, err = runsFrom(ctx, s, name)
		}
		if errors.Is(err, sandbox.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(sandbox.Snapshot{ID: snap.ID, Tenant: snap.Tenant, SandboxID: snap.SandboxID})
	})
}

// runsFrom finds a Sandbox of an image and returns it as a Snapshot without an ID. The
// file locks of images show only the Sandboxes of this host.
func runsFrom(ctx context.Context, s sandbox.SandboxStore, image string) (sandbox.Snapshot, error) {
	all, err := s.SandboxesNotEnded(ctx)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	for _, sb := range all {
		if sb.Image == image {
			return sandbox.Snapshot{Tenant: sb.Tenant, SandboxID: sb.ID}, nil
		}
	}
	return sandbox.Snapshot{}, sandbox.Errorf(sandbox.NotFound, "no sandbox has the image %s", image)
}
