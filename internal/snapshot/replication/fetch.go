package replication

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/seal"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// back brings the whole of a state back to the host, once for all concurrent callers.
func (e *Engine) back(ctx context.Context, s *state) error {
	e.mu.Lock()
	here := !s.Away && !s.spoiled && s.busy == nil
	e.mu.Unlock()
	if here {
		return nil
	}
	unlock, err := e.lockArrived(ctx, s, e.awaitWhole)
	if err != nil {
		return err
	}
	defer unlock()
	e.mu.Lock()
	spoiled := s.spoiled && !s.Away
	here = !s.Away && !spoiled || s.Deleting
	e.mu.Unlock()
	if here {
		return nil
	}
	began := time.Now()
	done, err := e.fetchTurn(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := e.fetch(ctx, s, spoiled); err != nil {
		e.mu.Lock()
		s.spoiled = false // the next caller checks again
		e.mu.Unlock()
		here := absent
		if spoiled {
			here = "damaged on this host"
		}
		return e.notFetched(ctx, s, here, err)
	}
	e.fetched(ctx, s, spoiled, time.Since(began))
	return nil
}

// absent says for tellFetch that a state is not on the host.
const absent = "not on this host"

// notFetched counts and logs a failed fetch, and returns the user's error, as tellFetch.
func (e *Engine) notFetched(ctx context.Context, s *state, here string, err error) error {
	e.counts.fetchFailed.Add(1)
	err = tellFetch(s.Name, here, err)
	e.cfg.Log.WarnContext(ctx, "fetching a saved state from its copy failed", telemetry.KeySnapshot, s.Name, telemetry.KeyError, err)
	return err
}

// shareFetched packs a state that was fetched. It may have been deleted meanwhile.
func (e *Engine) shareFetched(ctx context.Context, name, group string) {
	if err := e.inner.ShareSaved(ctx, name, group); err != nil && !errors.Is(err, sandbox.Unsupported) && !errors.Is(err, sandbox.NotFound) {
		e.cfg.Log.WarnContext(ctx, "packing a fetched saved state failed", telemetry.KeySnapshot, name, telemetry.KeyError, err)
	}
}

// fetchTurn waits until one more fetch may run; done ends it.
func (e *Engine) fetchTurn(ctx context.Context) (done func(), err error) {
	select {
	case e.fetching <- struct{}{}:
		return func() { <-e.fetching }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fetched records that a state was brought back.
func (e *Engine) fetched(ctx context.Context, s *state, spoiled bool, took time.Duration) {
	e.mu.Lock()
	s.spoiled, s.whole = false, false
	s.times++
	e.mu.Unlock()
	e.counts.fetched.Add(1)
	if spoiled {
		e.counts.healed.Add(1)
		e.cfg.Log.WarnContext(ctx, "replaced a damaged or missing saved state by its copy", telemetry.KeySnapshot, s.Name)
	}
	e.cfg.Log.InfoContext(ctx, "fetched a saved state from its copy", telemetry.KeySnapshot, s.Name, "bytes", s.Bytes,
		telemetry.KeyDuration, float64(took.Microseconds())/1000)
}

// tellFetch converts a fetch error for the user and names the state; here says how the
// state is on the host.
func tellFetch(name, here string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, sandbox.Exhausted), errors.Is(err, sandbox.Conflict):
		return err
	case errors.Is(err, sandbox.ErrDamaged), errors.Is(err, sandbox.Invalid):
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s is %s, and its copy is damaged: it cannot be started from", name, here).WithCause(err)
	}
	e := sandbox.Errorf(sandbox.Unavailable, "the saved state %s is %s, and its copy cannot be reached: try again", name, here).WithCause(err)
	e.RetryAfter = fetchAgain
	return e
}

// fetchAgain is the RetryAfter when Blobs cannot be reached.
const fetchAgain = 5 * time.Second

// fetch brings a state back and replaces a spoiled one. The whole copy is downloaded and
// verified before the Engine sees any of it. The caller holds the lock.
func (e *Engine) fetch(ctx context.Context, s *state, spoiled bool) error {
	names, err := e.inner.ListSaved(ctx)
	if err != nil {
		return err
	}
	if there := slices.Contains(names, s.Name); !there || spoiled { // it may exist after an interrupted eviction
		if err := e.fetchFiles(ctx, s, there); err != nil {
			return err
		}
		e.shareFetched(ctx, s.Name, s.Group)
	}
	return e.change(s, false, func() { s.setAway(false) })
}

// fetchFiles imports the copy in Blobs into the Engine, replacing existing files.
func (e *Engine) fetchFiles(ctx context.Context, s *state, there bool) error {
	e.mu.Lock()
	prefix := s.prefix()
	e.mu.Unlock()
	key, err := e.keys.at(ctx, prefix)
	if err != nil {
		return err
	}
	l, err := e.listOf(ctx, key, s.Name)
	if err != nil {
		return err
	}
	f, err := e.download(ctx, key, l)
	if err != nil {
		return err
	}
	defer f.Close()
	if there { // verify the copy before deleting the damaged state
		if _, err := io.Copy(io.Discard, l.content(f)); err != nil {
			return err
		}
		if err := e.change(s, false, func() { s.setAway(true) }); err != nil {
			return err
		}
		if err := e.inner.DeleteSaved(ctx, s.Name); err != nil {
			return err
		}
	}
	_, err = e.take(ctx, s.Name, s.Name, l.content(f))
	return err
}

// take imports the content of the copy of from into the Engine as the state name.
func (e *Engine) take(ctx context.Context, name, from string, content io.Reader) (sandbox.Saved, error) {
	saved, err := e.inner.ImportSaved(ctx, name, content)
	return saved, trusted(from, err)
}

// trusted converts the error of bringing a copy into the Engine.
func trusted(from string, err error) error {
	if errors.Is(err, sandbox.Denied) {
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s was copied by an installation that this one does not trust", from).WithCause(err)
	}
	return err
}

// FetchSaved implements sandbox.Replicator. The new state gets a copy of its own, which
// shares packs with the other one.
func (e *Engine) FetchSaved(ctx context.Context, name, from, group string) (sandbox.Saved, error) {
	for _, id := range []string{name, from} {
		if !sandbox.ValidSnapshotID(id) {
			return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", id)
		}
	}
	if e.find(name) != nil || e.isDeleting(name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", name)
	}
	done, err := e.fetchTurn(ctx)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer done()
	began := time.Now()
	saved, err := e.fetchOther(ctx, name, from, group)
	if err == nil && e.find(name) != nil { // it still arrives
		return saved, nil
	}
	switch {
	case errors.Is(err, sandbox.NotFound):
		return sandbox.Saved{}, err
	case err != nil:
		e.counts.fetchFailed.Add(1)
		err = tellFetch(from, absent, err)
		e.cfg.Log.WarnContext(ctx, "fetching a saved state of another host from its copy failed", telemetry.KeySnapshot, from, telemetry.KeyError, err)
		return sandbox.Saved{}, err
	}
	e.counts.fetched.Add(1)
	e.cfg.Log.InfoContext(ctx, "fetched a saved state of another host from its copy", telemetry.KeySnapshot, name, "copy_of", from, "bytes", saved.Bytes,
		telemetry.KeyDuration, float64(time.Since(began).Microseconds())/1000)
	return e.noteSize(name, saved, nil)
}

// fetchOther imports the copy of the state from as the state name; NotFound if no copy
// exists. Without an answer of the records it looks where a copy usually is: the host that
// made it may be of an earlier version, or all session managers.
func (e *Engine) fetchOther(ctx context.Context, name, from, group string) (sandbox.Saved, error) {
	prefixes := e.keys.prefixesOf(group)
	recorded, unknown := e.cfg.Records.FindCopy(ctx, sandbox.TenantID(group), from)
	if unknown == nil { // it may have been made with a key that the operator has removed since
		prefixes = append([]string{recorded}, prefixes...)
	}
	for _, prefix := range prefixes {
		_, err := e.cfg.Blobs.Size(ctx, listName(prefix, from))
		if errors.Is(err, sandbox.NotFound) {
			continue
		}
		if err != nil {
			return sandbox.Saved{}, err
		}
		return e.fetchBelow(ctx, prefix, name, from, group)
	}
	if unknown != nil && !errors.Is(unknown, sandbox.NotFound) { // it may be elsewhere
		return sandbox.Saved{}, fmt.Errorf("%w: find the copy: %w", errRecords, unknown)
	}
	return sandbox.Saved{}, sandbox.Errorf(sandbox.NotFound, "the saved state %s has no copy", from)
}

// fetchBelow is fetchOther for the copy with a prefix. The state still arrives when it
// returns, where the Engine can start from it then. Otherwise it keeps the list, so that the
// copy of the new state shares the packs.
func (e *Engine) fetchBelow(ctx context.Context, prefix, name, from, group string) (sandbox.Saved, error) {
	key, err := e.keys.at(ctx, prefix)
	if err != nil {
		return sandbox.Saved{}, err
	}
	l, err := e.listOf(ctx, key, from)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if saved, err := e.share(ctx, key, l, name, group); !errors.Is(err, sandbox.Unsupported) {
		return saved, err
	}
	f, err := e.download(ctx, key, l)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer f.Close()
	saved, err := e.take(ctx, name, from, l.content(f))
	if err != nil {
		return saved, err
	}
	l.Name = name
	raw, err := l.encode()
	if err == nil {
		err = durable.WriteLoose(e.file(name, listSuffix), raw, 0o600)
	}
	if err != nil {
		e.cfg.Log.WarnContext(ctx, "keeping the list of a fetched saved state failed; its copy will share nothing with the one it came from", telemetry.KeySnapshot, name, telemetry.KeyError, err)
	}
	return saved, nil
}

// listOf returns the list of the copy of a state.
func (e *Engine) listOf(ctx context.Context, key *groupKey, name string) (*list, error) {
	raw, err := e.get(ctx, key, listName(key.prefix, name))
	if err != nil {
		return nil, err
	}
	l, err := decodeList(raw, name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrDamaged, err)
	}
	return l, nil
}

// download returns a file without a name that has the content of a list.
func (e *Engine) download(ctx context.Context, key *groupKey, l *list) (*os.File, error) {
	f, err := durable.Unnamed(e.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("make a file: %w", err)
	}
	if err := e.gather(ctx, key, l, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// content returns the content of a list, which f has; it ends with an error if it does not
// match the checksum.
func (l *list) content(f *os.File) io.Reader {
	return &summed{from: io.NewSectionReader(f, 0, l.Bytes), sum: sha256.New(), want: l.Sum}
}

// get returns the unsealed content of a blob.
func (e *Engine) get(ctx context.Context, key *groupKey, name string) ([]byte, error) {
	sealed, err := e.cfg.Blobs.Get(ctx, name)
	if errors.Is(err, sandbox.NotFound) {
		return nil, fmt.Errorf("%w: no blob %s", sandbox.ErrDamaged, name)
	}
	if err != nil {
		return nil, err
	}
	e.counts.gotBytes.Add(int64(len(sealed)))
	content, err := seal.Open(key.aead, name, sealed)
	if err != nil {
		return nil, fmt.Errorf("%w: the blob %s: %w", sandbox.ErrDamaged, name, err)
	}
	return content, nil
}

// target is a chunk of a pack, and where it is in the content of a list.
type target struct {
	place
	at int64
}

// targets returns the targets of each pack of a list.
func (l *list) targets() [][]target {
	targets := make([][]target, len(l.Packs))
	at := int64(0)
	for _, p := range l.places {
		targets[p.pack] = append(targets[p.pack], target{p, at})
		at += int64(p.Bytes)
	}
	return targets
}

// gather writes the chunks of a list into a file; each pack is fetched once.
func (e *Engine) gather(ctx context.Context, key *groupKey, l *list, to io.WriterAt) error {
	targets := l.targets()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(gets)
	for i, name := range l.Packs {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return e.getPack(ctx, key, name, targets[i], to)
		})
	}
	return g.Wait()
}

// getPack writes the chunks of a pack to their places.
func (e *Engine) getPack(ctx context.Context, key *groupKey, name string, targets []target, to io.WriterAt) error {
	compressed, err := e.get(ctx, key, name)
	if err != nil {
		return err
	}
	pack, err := e.decode.DecodeAll(compressed, nil)
	if err != nil {
		return fmt.Errorf("%w: the blob %s: %w", sandbox.ErrDamaged, name, err)
	}
	for _, t := range targets {
		if t.offset+t.Bytes > len(pack) {
			return fmt.Errorf("%w: the blob %s is too short", sandbox.ErrDamaged, name)
		}
		if _, err := to.WriteAt(pack[t.offset:t.offset+t.Bytes], t.at); err != nil {
			return noRoom(err)
		}
	}
	return nil
}

func noRoom(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return sandbox.Errorf(sandbox.Exhausted, "the disk has no room for the saved state").WithCause(err)
	}
	return err
}

// summed verifies the checksum of from: on a mismatch it ends with an error instead of
// io.EOF.
type summed struct {
	from io.Reader
	sum  hash.Hash
	want []byte
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	s.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && !bytes.Equal(s.sum.Sum(nil), s.want) {
		return n, fmt.Errorf("%w: its chunks do not match its hash", sandbox.ErrDamaged)
	}
	return n, err
}
