package offload

import (
	"context"
	"errors"
	"fmt"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// An Engine knows the states of its own host only, so that it can tell that a pack is
// unneeded only where no other Engine shares its packs. The first one that copies below a
// prefix owns it, as the blob ownerName says, and only the owner deletes packs.

func ownerName(prefix string) string { return prefix + "/owner" }

// claim makes the Engine the owner of a prefix without one, before it puts or shares packs
// there.
func (e *Engine) claim(ctx context.Context, prefix string) error {
	e.mu.Lock()
	claimed := e.claimed[prefix]
	e.mu.Unlock()
	if claimed {
		return nil
	}
	owns, err := e.owns(ctx, prefix)
	if err != nil {
		return err
	}
	if !owns {
		e.cfg.Log.WarnContext(ctx, "another data folder shares the copies of snapshots: this one deletes no chunks of them", "prefix", prefix)
	}
	e.mu.Lock()
	e.claimed[prefix] = true
	e.mu.Unlock()
	return nil
}

// owns reports whether the Engine owns a prefix now. A prefix without an owner becomes its
// own.
func (e *Engine) owns(ctx context.Context, prefix string) (bool, error) {
	name := ownerName(prefix)
	owner, err := e.cfg.Blobs.Get(ctx, name)
	if errors.Is(err, sandbox.NotFound) {
		if err := e.cfg.Blobs.Put(ctx, name, []byte(e.id)); err != nil {
			return false, fmt.Errorf("own the copies of snapshots: %w", err)
		}
		owner, err = e.cfg.Blobs.Get(ctx, name) // another Engine may have put its own
	}
	if err != nil {
		return false, fmt.Errorf("ask who owns the copies of snapshots: %w", err)
	}
	return string(owner) == e.id, nil
}

// owned returns the blobs below prefixes that the Engine owns.
func (e *Engine) owned(ctx context.Context, packs []string) (mine []string, err error) {
	owns := map[string]bool{}
	for _, name := range packs {
		prefix := prefixOf(name)
		is, known := owns[prefix]
		if !known {
			if is, err = e.owns(ctx, prefix); err != nil {
				return nil, err
			}
			owns[prefix] = is
		}
		if is {
			mine = append(mine, name)
		}
	}
	return mine, nil
}
