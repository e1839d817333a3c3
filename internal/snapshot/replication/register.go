package replication

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// identityFile has the identity of the folder with an earlier version, which named packs by
// it.
const identityFile = "id"

// forgetIdentity makes an earlier version that is started again on this folder give its packs
// other names than before: the former packs may be shared with other hosts by then, and that
// version deletes packs of its own names.
func forgetIdentity(dir string) error {
	if err := os.Remove(filepath.Join(dir, identityFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the identity of the folder of copies: %w", err)
	}
	return nil
}

// register moves the names of blobs that an earlier version has recorded in files to the
// records of copies. It returns when to call it again; zero: that is done.
func (e *Engine) register(ctx context.Context) (later time.Duration) {
	if !e.unregistered {
		return 0
	}
	if later = time.Until(e.registerAt); later > 0 {
		return later
	}
	if err := e.registerAll(ctx); err != nil {
		e.refused++
		later = e.backoff(e.refused)
		e.registerAt = time.Now().Add(later)
		if ctx.Err() == nil {
			e.cfg.Log.WarnContext(ctx, "registering copies of an earlier version failed; will retry", "attempt", e.refused, telemetry.KeyError, err)
		}
		return later
	}
	e.unregistered = false
	return 0
}

// registerAll registers the copies of all states that are not being deleted. After that,
// remove knows which packs only states that are being deleted have.
func (e *Engine) registerAll(ctx context.Context) error {
	e.mu.Lock()
	var earlier []*state
	for _, s := range e.states {
		if len(s.Packs) > 0 && !s.Deleting {
			earlier = append(earlier, s)
		}
	}
	e.mu.Unlock()
	for _, s := range earlier {
		err := e.registerOne(ctx, s)
		if errors.Is(err, sandbox.NotFound) { // it is being deleted, or has no Snapshot
			e.cfg.Log.WarnContext(ctx, "a saved state that has a copy of an earlier version is needed no more", telemetry.KeySnapshot, s.Name)
			continue
		}
		if err != nil {
			return fmt.Errorf("of the saved state %s: %w", s.Name, err)
		}
	}
	return nil
}

func (e *Engine) registerOne(ctx context.Context, s *state) error {
	e.mu.Lock()
	r := s.record
	e.mu.Unlock()
	var last sandbox.CopyAttempt // of the copy's prefix, if it is complete
	for _, packs := range chunked(r.Packs) {
		prefix := prefixOf(packs[0])
		attempt := last
		if attempt.Prefix != prefix {
			var err error
			if attempt, err = e.cfg.Records.BeginCopy(ctx, e.cfg.Node, sandbox.CopyRef{Snapshot: r.Name, Prefix: prefix}); err != nil {
				return err
			}
		}
		if _, err := e.cfg.Records.UsePacks(ctx, e.cfg.Node, sandbox.PackUse{CopyAttempt: attempt, Packs: packs}); err != nil {
			return err
		}
		if prefix == r.prefix() {
			last = attempt
		}
	}
	if r.Copied && last.Number > 0 {
		if err := e.cfg.Records.CompleteCopy(ctx, e.cfg.Node, last); err != nil {
			return err
		}
	}
	if err := os.Rename(e.file(r.Name, earlierListSuffix), e.file(r.Name, listSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return e.change(s, true, func() { s.Prefix, s.Packs = r.prefix(), nil })
}

// chunked divides the names of packs into parts for a call each: of one prefix.
func chunked(packs []string) (parts [][]string) {
	packs = slices.Sorted(slices.Values(packs))
	for len(packs) > 0 {
		n := 1
		for n < min(len(packs), sandbox.MaxPacks) && prefixOf(packs[n]) == prefixOf(packs[0]) {
			n++
		}
		parts, packs = append(parts, packs[:n]), packs[n:]
	}
	return parts
}

// abandon records that a copy of a state that is being deleted has stopped, and the packs
// that it may have put.
func (e *Engine) abandon(ctx context.Context, name string, packs []string) error {
	for _, some := range append([][]string{nil}, chunked(packs)...) {
		c := sandbox.AbandonedCopy{CopyRef: sandbox.CopyRef{Snapshot: name}, Packs: some}
		if len(some) > 0 {
			c.Prefix = prefixOf(some[0])
		}
		if err := e.cfg.Records.AbandonCopy(ctx, e.cfg.Node, c); err != nil {
			return fmt.Errorf("%w: abandon a copy: %w", errRecords, err)
		}
	}
	return nil
}
