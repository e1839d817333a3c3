package node_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
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
		if saved, err := w.node.ImportSaved(t.Context(), name, "other", to, bytes.NewReader(out.Bytes())); err != nil || !saved.Memory {
			t.Errorf("imported %+v, %v", saved, err)
		}
		if got := w.engine.GroupOf(to); got != "other" {
			t.Errorf("what was imported shares with %q", got)
		}
		if err := w.node.ExportSaved(t.Context(), "elsewhere", snapshot, false, io.Discard); sandbox.CodeOf(err) != sandbox.Unavailable {
			t.Errorf("an export of another node: %v", err)
		}
		if _, err := w.node.ImportSaved(t.Context(), name, "t", "../x", &out); sandbox.CodeOf(err) != sandbox.Invalid {
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
