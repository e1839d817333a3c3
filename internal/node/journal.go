package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A journal holds one file for each Boot that has, or may have, an owner. It is
// written before the Guest is bound and removed after the Boot is destroyed, so
// a Boot without one has never run a user's code.
//
// Files are not synced: a crash that loses them also ends the Boots.
type journal struct{ dir string }

// entry is one file of the journal.
type entry struct {
	SandboxID string                `json:"sandbox_id"`
	Number    int64                 `json:"number"`
	Tenant    sandbox.TenantID      `json:"tenant"`
	Network   sandbox.NetworkPolicy `json:"network"`
	Image     string                `json:"image"`
	Shape     sandbox.Shape         `json:"shape"`
	Pooled    bool                  `json:"pooled,omitempty"`
	Revision  int64                 `json:"revision,omitempty"`
	Secrets   bool                  `json:"secrets,omitempty"` // its link has some
	Volumes   []string              `json:"volumes,omitempty"` // that this Node stores: their IDs
	Homes     map[string][]string   `json:"homes,omitempty"`   // IDs of other Volumes, by their Node
	Held      bool                  `json:"held,omitempty"`    // restored, and not thawed yet
	Fenced    bool                  `json:"fenced,omitempty"`  // frozen by the fence
	Paused    bool                  `json:"paused,omitempty"`  // saved and frozen, about to be stopped
	Epoch     int64                 `json:"epoch,omitempty"`   // of the Lease when it was bound
	Ended     *ending               `json:"ended,omitempty"`   // it died; not yet accepted by the session manager
}

type ending struct {
	Cause sandbox.Cause `json:"cause"`
	At    time.Time     `json:"at"`
}

const (
	entrySuffix = ".json"
	asideSuffix = ".new"
	maxEntry    = 64 << 10
)

func openJournal(dir string) (journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return journal{}, fmt.Errorf("make the folder of the journal: %w", err)
	}
	return journal{dir: dir}, nil
}

func (j journal) path(bootID string) string { return filepath.Join(j.dir, bootID+entrySuffix) }

// write makes or replaces the entry of a Boot; a crash leaves the old or the
// new one.
func (j journal) write(bootID string, e entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	aside := j.path(bootID) + asideSuffix
	if err := os.WriteFile(aside, b, 0o600); err != nil {
		_ = os.Remove(aside)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return sandbox.Errorf(sandbox.Exhausted, "the host's disk is full").WithCause(err)
		}
		return fmt.Errorf("write journal: %w", err)
	}
	if err := os.Rename(aside, j.path(bootID)); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

// remove forgets a Boot; an unknown one is a success.
func (j journal) remove(bootID string) error {
	err := os.Remove(j.path(bootID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// read returns every entry by Boot ID. An entry that cannot be parsed is nil: its Boot's
// owner is lost.
func (j journal) read() (map[string]*entry, error) {
	files, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	all := map[string]*entry{}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), asideSuffix) {
			_ = os.Remove(filepath.Join(j.dir, f.Name())) // an interrupted write
			continue
		}
		id, ok := strings.CutSuffix(f.Name(), entrySuffix)
		if !ok || !sandbox.ValidBootID(id) {
			continue
		}
		all[id] = j.readOne(id)
	}
	return all, nil
}

func (j journal) readOne(bootID string) *entry {
	b, err := os.ReadFile(j.path(bootID))
	var e entry
	if err != nil || len(b) > maxEntry || json.Unmarshal(b, &e) != nil || !sandbox.ValidSandboxID(e.SandboxID) {
		return nil
	}
	return &e
}

// entry returns the journal's entry of b, which has an owner.
func (b *boot) entry() entry {
	return entry{
		SandboxID: b.owner.ref.SandboxID,
		Number:    b.owner.ref.Number,
		Tenant:    b.owner.ref.Tenant,
		Network:   b.owner.network,
		Image:     b.image,
		Shape:     b.shape,
		Pooled:    b.pooled,
		Revision:  b.owner.revision,
		Secrets:   b.owner.secrets,
		Volumes:   b.owner.volumes.here,
		Homes:     b.owner.volumes.homes,
		Held:      b.held,
		Fenced:    b.fenced,
		Paused:    b.paused,
		Epoch:     b.epoch,
	}
}

// own makes b the Boot that e describes.
func (b *boot) own(e entry) {
	b.state, b.pooled = bound, e.Pooled
	b.fenced, b.paused, b.epoch = e.Fenced, e.Paused, e.Epoch
	b.owner = owner{
		ref:     sandbox.BootRef{BootID: b.id, SandboxID: e.SandboxID, Number: e.Number, Tenant: e.Tenant},
		network: e.Network, secrets: e.Secrets, volumes: mounted{e.Volumes, e.Homes}, revision: e.Revision,
	}
	if e.Secrets {
		b.owner.revision-- // so that the engine is sent them again
	}
}
