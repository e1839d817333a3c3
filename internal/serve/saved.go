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
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// SavedCommand is the subcommand of cloud-sandbox that finds a saved state that needs an
// image or a build.
const SavedCommand = "saved-on"

// Arguments of SavedCommand: the kinds of objects that a Snapshot may need.
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

// savedOn searches the records for a Snapshot that needs the named image or build; for
// an image, also for a Sandbox that has not ended. It runs SavedCommand as a separate
// process, because the caller is root, and root must not open files that the server
// writes.
func savedOn(ctx context.Context, exe string, layout launch.Layout, kind, name string) (snap sandbox.Snapshot, err error) {
	if !hasDatabase(layout) && !hasAccess(layout) {
		if node.HasRun(layout.Node()) {
			return snap, errors.New("a node has used this data folder, but the location of its records is unknown: start the node once")
		}
		return snap, sandbox.Errorf(sandbox.NotFound, "nothing is saved")
	}
	cmd := exec.CommandContext(ctx, exe, SavedCommand, kind, name, "--data", layout.Root)
	cmd.Env = withoutSecrets(os.Environ())
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return snap, fmt.Errorf("ask for saved states: %w: %s", err, problem.Bytes())
	}
	var found saved
	switch err := json.Unmarshal(out.Bytes(), &found); {
	case err != nil:
		return snap, fmt.Errorf("ask for saved states: %q, %w", out.Bytes(), err)
	case !found.Needed:
		return snap, sandbox.Errorf(sandbox.NotFound, "no saved state needs %s %s", kind, name)
	}
	return sandbox.Snapshot{ID: found.Snapshot, Tenant: found.Tenant, SandboxID: found.Sandbox}, nil
}

// saved is the output of SavedCommand.
type saved struct {
	Needed bool `json:"needed"`
	// The Snapshot or Sandbox that needs the image. Snapshot is empty for a Sandbox
	// that has not ended.
	Snapshot string           `json:"snapshot,omitempty"`
	Tenant   sandbox.TenantID `json:"tenant,omitempty"`
	Sandbox  string           `json:"sandbox,omitempty"`
}

// PrintSaved implements SavedCommand. It prints as JSON whether a Snapshot needs the
// named image or build. For an image, Sandboxes count too.
func PrintSaved(ctx context.Context, layout launch.Layout, kind, name string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	return WithNodeRecords(ctx, layout, func(records sandbox.NodeRecords) (err error) {
		var found saved
		switch kind {
		case savedImage:
			snap, failed := records.NeedsImage(ctx, "", name)
			found, err = saved{failed == nil, snap.ID, snap.Tenant, snap.SandboxID}, failed
		case savedBuild:
			n, failed := records.SnapshotsOfBuild(ctx, name)
			found, err = saved{Needed: n > 0}, failed
		default:
			err = sandbox.Errorf(sandbox.Invalid, "unknown kind: use %q or %q", savedImage, savedBuild)
		}
		if err != nil && !errors.Is(err, sandbox.NotFound) {
			return err
		}
		return json.NewEncoder(out).Encode(found)
	})
}
