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
	"time"

	"golang.org/x/sync/errgroup"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/seal"
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
	if e.scope == "" {
		scope, err := e.cfg.Records.PackScope(ctx)
		if err != nil {
			return err
		}
		e.scope = scope
	}
	key, err := e.keys.of(ctx, s.Group)
	if err != nil {
		return err
	}
	attempt, err := e.cfg.Records.BeginCopy(ctx, e.cfg.Node, sandbox.CopyRef{Snapshot: s.Name, Prefix: key.prefix})
	if err != nil {
		return fmt.Errorf("%w: begin the copy: %w", errRecords, err)
	}
	u := newUpload(ctx, e, s, key, attempt)
	err = e.exported(ctx, s.Name, u.read)
	if err != nil {
		waited := u.put.Wait() // the packs may be abandoned only after the puts end
		if errors.Is(err, sandbox.NotFound) && !errors.Is(err, errRecords) {
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
	if err := u.putList(ctx, l); err != nil {
		return err
	}
	if err := e.cfg.Records.CompleteCopy(ctx, e.cfg.Node, u.attempt); err != nil {
		return fmt.Errorf("%w: complete the copy: %w", errRecords, err)
	}
	e.mu.Lock()
	s.begun, s.put = false, nil
	e.mu.Unlock()
	if err := e.change(s, true, func() {
		s.Copied, s.Prefix = true, key.prefix
		if s.Bytes == 0 {
			s.Bytes = l.Bytes
		}
	}); err != nil {
		return err
	}
	e.counts.copied.Add(1)
	return nil
}

// errRecords is in the error of a call to the records.
var errRecords = errors.New("the records of copies")

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

// upload copies one state.
type upload struct {
	engine  *Engine
	ctx     context.Context // of put
	state   *state
	key     *groupKey
	put     *errgroup.Group
	attempt sandbox.CopyAttempt
	until   time.Time // until when blobs may be put

	sum    hash.Hash
	places []place
	packs  []string            // names; empty for the pack in progress
	index  map[chunks.ID]place // locations of chunks, by index in packs
	usable map[string]bool     // whether a pack of another state, which was asked for, may be used
	sizes  map[string]int64    // of packs that this copy puts
	pack   []byte              // in progress, the last of packs
}

func newUpload(ctx context.Context, e *Engine, s *state, key *groupKey, attempt sandbox.CopyAttempt) *upload {
	u := &upload{
		engine: e, state: s, key: key, attempt: attempt, sum: sha256.New(),
		index: map[chunks.ID]place{}, usable: map[string]bool{}, sizes: map[string]int64{},
	}
	e.mu.Lock()
	s.begun, s.put = true, nil
	e.mu.Unlock()
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

// others yields the lists of copies below a prefix that s may share chunks with. A missing
// list is skipped.
func (e *Engine) others(s *state, prefix string) iter.Seq[*list] {
	return func(yield func(*list) bool) {
		for _, name := range e.siblings(s, prefix) {
			raw, err := os.ReadFile(e.file(name, listSuffix))
			if err != nil {
				continue
			}
			l, err := decodeList(raw, name)
			if err != nil || len(l.Packs) > 0 && prefixOf(l.Packs[0]) != prefix {
				continue
			}
			if !yield(l) {
				return
			}
		}
	}
}

// siblings returns s and the most recently used states copied below a prefix. The list of s
// describes the copy that s was fetched from, or an earlier copy of s.
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
	names = []string{s.Name}
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
	if ok {
		var err error
		if ok, err = u.mayUse(u.packs[p.pack]); err != nil {
			return err
		}
	}
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

// mayUse reports whether this copy may use a pack, which it registers if another copy has
// put it.
func (u *upload) mayUse(pack string) (bool, error) {
	if _, ours := u.sizes[pack]; ours || pack == "" {
		return true, nil
	}
	may, asked := u.usable[pack]
	if asked {
		return may, nil
	}
	refused, err := u.register(u.ctx, []string{pack}, true)
	if err != nil {
		return false, err
	}
	u.usable[pack] = len(refused) == 0
	return u.usable[pack], nil
}

// register records that this attempt uses packs, and returns the packs that it must not use.
// From then on it may put blobs until u.until.
func (u *upload) register(ctx context.Context, packs []string, shared bool) (refused []string, err error) {
	life := u.engine.cfg.PutLife
	began := time.Now() // the records count from later
	refused, err = u.engine.cfg.Records.UsePacks(ctx, u.engine.cfg.Node, sandbox.PackUse{
		CopyAttempt: u.attempt, Packs: packs, Shared: shared, Life: life,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: register packs: %w", errRecords, err)
	}
	u.until = began.Add(life)
	return refused, nil
}

// flush puts the current pack, after registering it.
func (u *upload) flush() error {
	raw := u.pack
	if len(raw) == 0 {
		return nil
	}
	name, err := u.name(raw)
	if err != nil {
		return err
	}
	u.packs[len(u.packs)-1] = name
	u.packs = append(u.packs, "")
	u.pack = make([]byte, 0, packBytes)
	compressed := u.engine.encode.EncodeAll(raw, nil)
	u.sizes[name] = int64(len(compressed)) + seal.Overhead
	until := u.until
	u.put.Go(func() error {
		return u.engine.putBlob(u.ctx, until, name, seal.Seal(u.key.aead, name, compressed))
	})
	return u.ctx.Err()
}

// name registers a pack and returns its name. While the former pack with this content is being
// deleted, it has a name that is this copy's alone.
func (u *upload) name(raw []byte) (string, error) {
	for _, salt := range []string{"", u.state.Name} {
		name := u.key.packName(u.engine.scope, salt, raw)
		u.engine.mu.Lock()
		u.state.put = append(u.state.put, name)
		u.engine.mu.Unlock()
		if refused, err := u.register(u.ctx, []string{name}, false); err != nil || len(refused) == 0 {
			return name, err
		}
	}
	return "", sandbox.Errorf(sandbox.Unavailable, "a blob with the same content is being deleted")
}

// putBlob puts a blob, until a time after which its record may be gone.
func (e *Engine) putBlob(ctx context.Context, until time.Time, name string, sealed []byte) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if err := e.cfg.Blobs.Put(ctx, name, sealed); err != nil {
		return err
	}
	e.counts.putBytes.Add(int64(len(sealed)))
	return nil
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

// putList puts the list of the state, which completes the copy, and reads it back.
func (u *upload) putList(ctx context.Context, l *list) error {
	raw, err := l.encode()
	if err != nil {
		return err
	}
	if _, err := u.register(ctx, nil, false); err != nil { // for the time until it is put
		return err
	}
	name := u.attempt.List()
	if err := u.engine.putBlob(ctx, u.until, name, seal.Seal(u.key.aead, name, raw)); err != nil {
		return fmt.Errorf("put the list: %w", err)
	}
	sealed, err := u.engine.cfg.Blobs.Get(ctx, name)
	if err != nil {
		return fmt.Errorf("look at the list: %w", err)
	}
	if there, err := seal.Open(u.key.aead, name, sealed); err != nil || !bytes.Equal(there, raw) {
		return sandbox.Errorf(sandbox.Unavailable, "the stored blob differs from the uploaded one").WithCause(err)
	}
	return durable.WriteLoose(u.engine.file(l.Name, listSuffix), raw, 0o600)
}

// remove deletes the remaining files of a state, and then its record. Puts of its copy by this
// process have ended: only Run copies, one state at a time.
func (e *Engine) remove(ctx context.Context, s *state) error {
	unlock, err := e.lock(ctx, s)
	if err != nil {
		return err
	}
	defer unlock()
	e.mu.Lock()
	begun, earlier, put := s.begun, s.Packs, s.put
	e.mu.Unlock()
	if begun || len(earlier) > 0 {
		err := e.abandon(ctx, s.Name, slices.Concat(earlier, put))
		// With a Conflict it was deleted on this host only, and the records name all packs.
		if err != nil && (len(earlier) > 0 || !errors.Is(err, sandbox.Conflict)) {
			return err
		}
	}
	if err := e.inner.DeleteSaved(ctx, s.Name); err != nil { // in case its deletion was interrupted
		return err
	}
	e.counts.deleted.Add(1)
	return e.forget(s)
}
