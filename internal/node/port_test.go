package node_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
)

// What a Node saves and takes shares room within its Tenant.
func TestExportImportAndShare(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		w.engine.Guest(ref.BootID).Remember("x", "42")
		snapshot := w.save(ref, false)
		if got := w.engine.GroupOf(snapshot); got != "t" {
			t.Errorf("what was saved shares with %q", got)
		}
		var out bytes.Buffer
		if err := w.node.ExportSaved(t.Context(), name, snapshot, false, &out); err != nil {
			t.Fatal(err)
		}
		to := sandbox.NewSnapshotID()
		if saved, err := w.node.ImportSaved(t.Context(), name, "other", to, "", bytes.NewReader(out.Bytes())); err != nil || !saved.Memory {
			t.Errorf("imported %+v, %v", saved, err)
		}
		if got := w.engine.GroupOf(to); got != "other" {
			t.Errorf("what was imported shares with %q", got)
		}
		if err := w.node.ExportSaved(t.Context(), "elsewhere", snapshot, false, io.Discard); sandbox.CodeOf(err) != sandbox.Unavailable {
			t.Errorf("an export of another node: %v", err)
		}
		if _, err := w.node.ImportSaved(t.Context(), name, "t", "../x", "", &out); sandbox.CodeOf(err) != sandbox.Invalid {
			t.Errorf("import as nonsense: %v", err)
		}
	})
}

// Only a few at a time: the others are told to come again.
func TestExportsAreBounded(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		snapshot := w.save(refOf(req, w.start(req)), false)
		held, release := make(chan struct{}), make(chan struct{})
		ended := make(chan error)
		const most = 4
		for range most {
			go func() { ended <- w.node.ExportSaved(t.Context(), name, snapshot, false, holding{held, release}) }()
		}
		for range most {
			<-held
		}
		var told *sandbox.Error
		err := w.node.ExportSaved(t.Context(), name, snapshot, false, io.Discard)
		if !errors.As(err, &told) || told.Code != sandbox.Exhausted || told.RetryAfter <= 0 {
			t.Errorf("one more: %v", err)
		}
		close(release)
		for range most {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if err := w.node.ExportSaved(t.Context(), name, snapshot, false, io.Discard); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// holding says that it is written to, and waits.
type holding struct{ held, release chan struct{} }

func (h holding) Write(p []byte) (int, error) {
	h.held <- struct{}{}
	<-h.release
	return len(p), nil
}

// carrier is a node.Carrier that notes its calls and fails as it is told.
type carrier struct {
	mu             sync.Mutex
	present, offer error
	calls          []string
}

func (c *carrier) note(call string, err *error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
	return *err
}

func (c *carrier) Present(_ context.Context, image string) error {
	return c.note("present "+image, &c.present)
}

func (c *carrier) Offer(_ context.Context, image string) error {
	return c.note("offer "+image, &c.offer)
}

func (c *carrier) set(present, offer error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.present, c.offer, c.calls = present, offer, nil
}

func (c *carrier) called(call string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.calls, call)
}

// What a Boot starts from is brought to the host first. An image that cannot be brought
// fails the start, and nothing else.
func TestImagesAreCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &carrier{}
		w := newWorld(t, node.PoolConfig{Min: 1, Max: 1})
		w.cfg.Carrier = c
		defer w.close()
		w.run()
		synctest.Wait()
		if !c.called("present " + fake.Image) {
			t.Error("the pool was filled without asking for its image")
		}
		c.set(sandbox.Errorf(sandbox.Unavailable, "away"), nil)
		req := request("t")
		if _, err := w.node.Start(t.Context(), name, req); sandbox.CodeOf(err) != sandbox.Unavailable {
			t.Errorf("a start without its image: %v", err)
		}
		c.set(nil, nil)
		ref := refOf(req, w.start(req)) // the same again
		if !c.called("present " + fake.Image) {
			t.Error("a boot started without asking for its image")
		}
		snapshot := w.save(ref, false)
		var out bytes.Buffer
		if err := w.node.ExportSaved(t.Context(), name, snapshot, false, &out); err != nil {
			t.Fatal(err)
		}
		take := func(image string) (string, error) {
			to := sandbox.NewSnapshotID()
			_, err := w.node.ImportSaved(t.Context(), name, "t", to, image, bytes.NewReader(out.Bytes()))
			return to, err
		}
		c.set(sandbox.Errorf(sandbox.NotFound, "nowhere"), nil)
		if _, err := take(fake.Image); err != nil || !c.called("present "+fake.Image) || !c.called("offer "+fake.Image) {
			t.Errorf("an import: %v", err)
		}
		c.set(sandbox.Errorf(sandbox.Unavailable, "away"), nil)
		if _, err := take(fake.Image); sandbox.CodeOf(err) != sandbox.Unavailable {
			t.Errorf("an import without its image: %v", err)
		}
		c.set(nil, sandbox.Errorf(sandbox.Exhausted, "full"))
		to, err := take("")
		if sandbox.CodeOf(err) != sandbox.Exhausted {
			t.Errorf("an import whose image was not taken: %v", err)
		}
		if kept, err := w.node.ListSaved(t.Context(), name); err != nil || strings.Contains(strings.Join(kept, " "), to) {
			t.Errorf("the node keeps %q, %v", kept, err)
		}
	})
}
