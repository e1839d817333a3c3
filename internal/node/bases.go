package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/changes"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/relay"
)

const (
	// maxBases bounds the bases that wait for their use, on each end. They belong to moves,
	// of which a session-manager makes few at a time.
	maxBases = 8
	// baseLife is how long a base waits for its use.
	baseLife = 10 * time.Minute
	// baseStep is how many bytes of a base are written between two looks at the disk.
	baseStep = 64 << 20
)

// base is a state that another one is carried as its difference from.
type base struct {
	// On the Node that the state comes from.
	index *changes.Index
	// On the Node that the state goes to. The file has no name, so that nothing is left of
	// it when the process ends.
	file  *os.File
	bytes int64

	since  time.Time
	forget *time.Timer
}

func (b *base) close() {
	b.forget.Stop()
	if b.file != nil {
		b.file.Close()
	}
}

// bases are the bases on one end that wait for their use, by Snapshot.
type bases struct {
	mu  sync.Mutex
	all map[string]*base
}

func newBases() *bases { return &bases{all: map[string]*base{}} }

// put adds a base for baseLife. It replaces one of the same name, or the oldest one if there
// are too many: that belongs to a move that failed.
func (s *bases) put(snapshot string, b *base) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.since = time.Now()
	b.forget = time.AfterFunc(baseLife, func() { s.drop(snapshot, b) })
	replaced := snapshot
	if s.all[snapshot] == nil && len(s.all) >= maxBases {
		for name, other := range s.all {
			if replaced == snapshot || other.since.Before(s.all[replaced].since) {
				replaced = name
			}
		}
	}
	if old := s.all[replaced]; old != nil {
		old.close()
		delete(s.all, replaced)
	}
	s.all[snapshot] = b
}

// drop forgets a base that was not taken.
func (s *bases) drop(snapshot string, b *base) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[snapshot] == b {
		delete(s.all, snapshot)
		b.close()
	}
}

// take removes and returns a base, which the caller closes.
func (s *bases) take(snapshot string) (*base, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.all[snapshot]
	if b == nil {
		return nil, sandbox.Errorf(sandbox.NotFound, "the base %.80q is not here any more", snapshot)
	}
	delete(s.all, snapshot)
	return b, nil
}

// ExportBase implements sandbox.Nodes.
func (n *Node) ExportBase(ctx context.Context, node, snapshot string, w io.Writer) error {
	engine, done, err := n.porter(node)
	if err != nil {
		return err
	}
	defer done()
	var index *changes.Index
	err = relay.Run(
		func(in io.Writer) error { return engine.ExportSaved(ctx, snapshot, false, in) },
		func(out io.Reader) (err error) {
			index, err = changes.NewIndex(w, out)
			return err
		})
	if err != nil {
		return err
	}
	n.sent.put(snapshot, &base{index: index})
	return nil
}

// ExportChanges implements sandbox.Nodes.
func (n *Node) ExportChanges(ctx context.Context, node, snapshot, from string, w io.Writer) error {
	engine, done, err := n.porter(node)
	if err != nil {
		return err
	}
	defer done()
	b, err := n.sent.take(from)
	if err != nil {
		return err
	}
	defer b.close()
	return relay.Run(
		func(in io.Writer) error { return engine.ExportSaved(ctx, snapshot, false, in) },
		func(out io.Reader) error { return changes.Write(w, out, b.index) })
}

// KeepBase implements sandbox.Nodes.
func (n *Node) KeepBase(ctx context.Context, node, snapshot string, r io.Reader) error {
	_, done, err := n.porter(node)
	if err != nil {
		return err
	}
	defer done()
	if !sandbox.ValidSnapshotID(snapshot) {
		return sandbox.Errorf(sandbox.Invalid, "the snapshot ID is invalid")
	}
	dir := filepath.Join(n.cfg.Dir, "bases")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := durable.Unnamed(dir)
	if err != nil {
		return fmt.Errorf("make the file of a base: %w", err)
	}
	size, err := n.fillBase(ctx, file, r)
	if err != nil {
		file.Close()
		return err
	}
	n.kept.put(snapshot, &base{file: file, bytes: size})
	return nil
}

// fillBase writes r to a file, as long as the disk has the room that Sandboxes which resume
// need.
func (n *Node) fillBase(ctx context.Context, f *os.File, r io.Reader) (size int64, _ error) {
	for {
		if err := n.host.admit(true); err != nil {
			return size, err
		}
		copied, err := io.CopyN(f, r, baseStep)
		size += copied
		switch {
		case err == io.EOF:
			return size, ctx.Err()
		case errors.Is(err, unix.ENOSPC):
			return size, exhausted("the host's disk is full")
		case err != nil:
			return size, err
		}
	}
}

// ImportChanges implements sandbox.Nodes.
func (n *Node) ImportChanges(ctx context.Context, node string, tenant sandbox.TenantID, r sandbox.ChangesRequest, from io.Reader) (sandbox.Saved, error) {
	if err := n.check(node); err != nil {
		return sandbox.Saved{}, err
	}
	b, err := n.kept.take(r.Base)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer b.close()
	saved, err := n.ImportSaved(ctx, node, tenant, r.Snapshot, r.Image, changes.NewReader(from, b.file, b.bytes))
	if errors.Is(err, changes.ErrMalformed) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = sandbox.Errorf(sandbox.Invalid, "the changes do not fit the base").WithCause(err)
	}
	return saved, err
}
