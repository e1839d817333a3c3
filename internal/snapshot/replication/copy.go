package replication

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/chunks"
)

const (
	puts = 4 // concurrent puts of packs
	gets = 8 // concurrent fetches, checks or deletions of packs
	// shared is how many other states of its group, the most recently used, a copy
	// searches for common chunks.
	shared = 32
	// maxIndex bounds the number of indexed chunks of other states, of some hundred bytes
	// each.
	maxIndex = 1 << 19
	// maxPlaces is the number of chunks whose list still fits a blob.
	maxPlaces = (sandbox.MaxBlob - 1<<20) / placeBytes
)

// copyOut copies a state into Blobs and verifies the copy.
func (e *Engine) copyOut(ctx context.Context, s *state) error {
	key, err := e.keys.of(ctx, s.Group)
	if err != nil {
		return err
	}
	u := newUpload(ctx, e, s, key)
	err = e.exported(ctx, s.Name, u.read)
	if err != nil {
		waited := u.put.Wait() // packs may be deleted only after the puts end
		if errors.Is(err, sandbox.NotFound) {
			// The state was deleted before the copy was complete, by its owner or by
			// hand.
			return e.change(s, true, func() { s.Deleting = true })
		}
		return errors.Join(waited, err)
	}
	l, err := u.finish(ctx)
	if err != nil {
		return err
	}
	if err := e.putList(ctx, key, l); err != nil {
		return err
	}
	if err := e.change(s, true, func() {
		s.Copied, s.Prefix, s.Packs = true, key.prefix, union(s.Packs, l.Packs)
		if s.Bytes == 0 {
			s.Bytes = l.Bytes
		}
	}); err != nil {
		return err
	}
	e.counts.copied.Add(1)
	return nil
}

// exported passes the Engine's export to read, to its end.
func (e *Engine) exported(ctx context.Context, name string, read func(io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := e.inner.ExportSaved(ctx, name, false, in)
		in.CloseWithError(err)
		done <- err
	}()
	readErr := read(out)
	out.CloseWithError(errors.Join(readErr, io.ErrClosedPipe))
	if err := <-done; readErr == nil || errors.Is(readErr, err) {
		return err
	}
	return readErr
}

// union returns the sorted union of a and b.
func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// upload copies one state.
type upload struct {
	engine *Engine
	ctx    context.Context // of put
	state  *state
	key    *groupKey
	put    *errgroup.Group

	sum    hash.Hash
	places []place
	packs  []string            // names; empty for the pack in progress
	index  map[chunks.ID]place // locations of chunks, by index in packs
	sizes  map[string]int64    // of packs that this copy puts
	pack   []byte              // in progress, the last of packs
}

func newUpload(ctx context.Context, e *Engine, s *state, key *groupKey) *upload {
	u := &upload{
		engine: e, state: s, key: key, sum: sha256.New(),
		index: map[chunks.ID]place{}, sizes: map[string]int64{},
	}
	u.put, u.ctx = errgroup.WithContext(ctx)
	u.put.SetLimit(puts)
	for l := range e.others(s, key.prefix) {
		if len(u.index)+len(l.places) > maxIndex {
			break
		}
		base := len(u.packs)
		u.packs = append(u.packs, l.Packs...)
		for _, p := range l.places {
			p.pack += base
			u.index[p.ID] = p
		}
	}
	u.packs = append(u.packs, "")
	return u
}

// others yields the lists of states below a prefix that s may share chunks with. A
// missing list is skipped.
func (e *Engine) others(s *state, prefix string) iter.Seq[*list] {
	return func(yield func(*list) bool) {
		for _, name := range e.siblings(s, prefix) {
			raw, err := os.ReadFile(e.file(name, listSuffix))
			if err != nil {
				continue
			}
			if l, err := decodeList(raw, name); err == nil && !yield(l) {
				return
			}
		}
	}
}

// siblings returns the most recently used states copied below a prefix.
func (e *Engine) siblings(s *state, prefix string) (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.alone {
		return nil
	}
	var all []*state
	for _, o := range e.states {
		if o.prefix() == prefix && o.Copied && !o.Deleting && o != s {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *state) int { return b.used.Compare(a.used) })
	for _, o := range all[:min(len(all), shared)] {
		names = append(names, o.Name)
	}
	return names
}

// read splits a state into chunks and adds them.
func (u *upload) read(r io.Reader) error {
	return chunks.Each(io.TeeReader(r, u.sum), u.add)
}

// add lists a chunk, and adds it to the pack unless a pack already has it.
func (u *upload) add(b []byte) error {
	id := u.key.nameOf(b)
	p, ok := u.index[id]
	if !ok {
		if len(u.pack)+len(b) > packBytes {
			if err := u.flush(); err != nil {
				return err
			}
		}
		p = place{Chunk: chunks.Chunk{ID: id, Bytes: len(b)}, pack: len(u.packs) - 1, offset: len(u.pack)}
		u.pack = append(u.pack, b...)
		u.index[id] = p
	}
	if len(u.places) == maxPlaces {
		return sandbox.Errorf(sandbox.TooLarge, "the saved state is too large to be copied: it has more than %d chunks", maxPlaces)
	}
	u.places = append(u.places, p)
	return u.ctx.Err()
}

// flush puts the current pack, after recording it.
func (u *upload) flush() error {
	raw := u.pack
	if len(raw) == 0 {
		return nil
	}
	name := u.key.packName(u.engine.id, raw)
	u.packs[len(u.packs)-1] = name
	u.packs = append(u.packs, "")
	u.pack = make([]byte, 0, packBytes)
	if err := u.engine.change(u.state, true, func() { u.state.Packs = union(u.state.Packs, []string{name}) }); err != nil {
		return err
	}
	compressed := u.engine.encode.EncodeAll(raw, nil)
	u.sizes[name] = int64(len(compressed)) + sealOverhead
	u.put.Go(func() error {
		sealed := seal(u.key.aead, name, compressed)
		if err := u.engine.cfg.Blobs.Put(u.ctx, name, sealed); err != nil {
			return err
		}
		u.engine.counts.putBytes.Add(int64(len(sealed)))
		return nil
	})
	return u.ctx.Err()
}

// finish puts the last pack, verifies that all packs exist, and returns the state's list.
func (u *upload) finish(ctx context.Context) (*list, error) {
	err := u.flush()
	if err := errors.Join(u.put.Wait(), err); err != nil {
		return nil, err
	}
	l := &list{Name: u.state.Name, Sum: u.sum.Sum(nil)}
	at := map[string]int{} // packs that it uses
	for _, p := range u.places {
		name := u.packs[p.pack]
		n, ok := at[name]
		if !ok {
			n = len(l.Packs)
			at[name], l.Packs = n, append(l.Packs, name)
		}
		p.pack = n
		l.places = append(l.places, p)
		l.Bytes += int64(p.Bytes)
	}
	return l, u.verify(ctx, l)
}

// verify checks that every pack exists, with the size that this copy put.
func (u *upload) verify(ctx context.Context, l *list) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(gets)
	for _, name := range l.Packs {
		g.Go(func() error {
			n, err := u.engine.cfg.Blobs.Size(ctx, name)
			want, ours := u.sizes[name]
			switch {
			case errors.Is(err, sandbox.NotFound):
				u.beAlone()
				return sandbox.Errorf(sandbox.Unavailable, "a blob that was put is gone").WithCause(err)
			case err == nil && ours && n != want:
				u.beAlone()
				return sandbox.Errorf(sandbox.Unavailable, "a blob of %d bytes was kept with %d", want, n)
			}
			return err
		})
	}
	return g.Wait()
}

// beAlone makes the next attempt share no packs of other states.
func (u *upload) beAlone() {
	u.engine.mu.Lock()
	defer u.engine.mu.Unlock()
	u.state.alone = true
}

// putList puts the list of a state, which completes the copy, and reads it back.
func (e *Engine) putList(ctx context.Context, key *groupKey, l *list) error {
	raw, err := l.encode()
	if err != nil {
		return err
	}
	name := listName(key.prefix, l.Name)
	if err := e.cfg.Blobs.Put(ctx, name, seal(key.aead, name, raw)); err != nil {
		return fmt.Errorf("put the list: %w", err)
	}
	e.counts.putBytes.Add(int64(len(raw) + sealOverhead))
	sealed, err := e.cfg.Blobs.Get(ctx, name)
	if err != nil {
		return fmt.Errorf("look at the list: %w", err)
	}
	if there, err := unseal(key.aead, name, sealed); err != nil || !bytes.Equal(there, raw) {
		return sandbox.Errorf(sandbox.Unavailable, "the stored blob differs from the uploaded one").WithCause(err)
	}
	return durable.WriteLoose(e.file(l.Name, listSuffix), raw, 0o600)
}

// remove deletes the copy of a state: the packs that no other state needs, its list, and
// then its record.
func (e *Engine) remove(ctx context.Context, s *state) error {
	unlock, err := e.lock(ctx, s)
	if err != nil {
		return err
	}
	defer unlock()
	names := append(e.unneeded(s), s.lists()...)
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(gets)
	for _, name := range names {
		g.Go(func() error { return e.cfg.Blobs.Delete(each, name) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := e.inner.DeleteSaved(ctx, s.Name); err != nil { // in case its deletion was interrupted
		return err
	}
	e.counts.deleted.Add(1)
	return e.forget(s)
}

// unneeded returns the packs of s that no other state uses. Packs of other hosts have other
// names. Only Run adds and removes packs, one state at a time.
func (e *Engine) unneeded(s *state) (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	needed := map[string]bool{}
	for _, o := range e.states {
		if o != s && o.Group == s.Group {
			for _, name := range o.Packs {
				needed[name] = true
			}
		}
	}
	for _, name := range s.Packs {
		if !needed[name] {
			names = append(names, name)
		}
	}
	return names
}
