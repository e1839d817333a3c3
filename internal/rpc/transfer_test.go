package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// carrier implements only the exports and imports of Nodes and Sandboxes.
type carrier struct {
	sandbox.Nodes
	export func(w io.Writer) error
	take   func(r io.Reader) (sandbox.Saved, error)
	tenant sandbox.TenantID // of the last call
	asked  sandbox.ImportRequest
	image  bool // the last export included it
}

func (c *carrier) ExportSaved(_ context.Context, _, _ string, image bool, w io.Writer) error {
	c.image = image
	return c.export(w)
}

func (c *carrier) ImportSaved(_ context.Context, _ string, tenant sandbox.TenantID, _, _ string, r io.Reader) (sandbox.Saved, error) {
	c.tenant = tenant
	return c.take(r)
}

// carrierManager is a Manager over a carrier.
type carrierManager struct {
	Manager
	c *carrier
}

func (m carrierManager) ExportSnapshot(_ context.Context, tenant sandbox.TenantID, id string, image bool, w io.Writer) error {
	m.c.tenant, m.c.asked.ID, m.c.image = tenant, id, image
	return m.c.export(w)
}

func (m carrierManager) ImportSnapshot(_ context.Context, tenant sandbox.TenantID, req sandbox.ImportRequest, r io.Reader) (sandbox.Snapshot, error) {
	m.c.tenant, m.c.asked = tenant, req
	saved, err := m.c.take(r)
	return sandbox.Snapshot{ID: req.ID, Tenant: tenant, Bytes: saved.Bytes}, err
}

func (s *server) nodes(address string, role Role) *Nodes {
	return NewNodes(func(context.Context) ([]sandbox.NodeRecord, error) {
		return []sandbox.NodeRecord{{Name: "n", Address: address}}, nil
	}, s.self(role, ""))
}

// pattern is content larger than any buffer.
func pattern() []byte { return bytes.Repeat([]byte("a saved state, "), 1<<18) }

func TestExportsAndImportsOfNodes(t *testing.T) {
	c := &carrier{}
	s := serve(t, Node, NodeService(c, nil))
	for _, address := range []string{s.unix, s.tcp} {
		n := s.nodes(address, SessionManager)
		defer n.Close()
		c.export = func(w io.Writer) error {
			_, err := w.Write(pattern())
			return err
		}
		var out bytes.Buffer
		if err := n.ExportSaved(t.Context(), "n", "s", false, &out); err != nil || !bytes.Equal(out.Bytes(), pattern()) {
			t.Errorf("exported %d bytes, %v", out.Len(), err)
		}
		var got []byte
		c.take = func(r io.Reader) (saved sandbox.Saved, err error) {
			got, err = io.ReadAll(r)
			return sandbox.Saved{Bytes: int64(len(got)), Memory: true, Shape: sandbox.DefaultShape()}, err
		}
		saved, err := n.ImportSaved(t.Context(), "n", "t", "s", "", bytes.NewReader(pattern()))
		if err != nil || c.tenant != "t" || !bytes.Equal(got, pattern()) || saved.Bytes != int64(len(got)) || !saved.Memory || saved.Shape != sandbox.DefaultShape() {
			t.Errorf("imported %d bytes, %+v, %v", len(got), saved, err)
		}
	}
}

func TestExportsAndImportsOfSnapshots(t *testing.T) {
	c := &carrier{}
	s := serve(t, SessionManager, SessionService(carrierManager{c: c}))
	m := NewSandboxes(s.unix, s.self(Gateway, ""))
	defer m.Close()
	c.export = func(w io.Writer) error {
		_, err := io.WriteString(w, "file")
		return err
	}
	var out bytes.Buffer
	if err := m.ExportSnapshot(t.Context(), "t", "s1", true, &out); err != nil || !c.image || out.String() != "file" || c.tenant != "t" || c.asked.ID != "s1" {
		t.Errorf("exported %q of %q of %q, %v", out.String(), c.asked.ID, c.tenant, err)
	}
	c.take = func(r io.Reader) (sandbox.Saved, error) {
		raw, err := io.ReadAll(r)
		return sandbox.Saved{Bytes: int64(len(raw))}, err
	}
	got, err := m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{ID: "s2", Name: "a name&"}, strings.NewReader("file"))
	if err != nil || got.ID != "s2" || got.Bytes != 4 || c.tenant != "t" || c.asked.Name != "a name&" {
		t.Errorf("imported %+v for %q as %+v, %v", got, c.tenant, c.asked, err)
	}
	if err := m.ExportSnapshot(t.Context(), "", "s1", false, &out); sandbox.CodeOf(err) != sandbox.Denied {
		t.Errorf("an export for nobody: %v", err)
	}
}

// Errors keep their code and detail, from either side.
func TestFailuresOfTransfers(t *testing.T) {
	c := &carrier{}
	s := serve(t, Node, NodeService(c, nil))
	n := s.nodes(s.unix, SessionManager)
	defer n.Close()
	full := sandbox.Errorf(sandbox.Exhausted, "no room")
	c.export = func(io.Writer) error { return full }
	if err := n.ExportSaved(t.Context(), "n", "s", false, io.Discard); sandbox.CodeOf(err) != sandbox.Exhausted || !strings.Contains(err.Error(), "no room") {
		t.Errorf("an export that is refused: %v", err)
	}
	c.export = func(w io.Writer) error {
		_, _ = w.Write(pattern())
		return full
	}
	if err := n.ExportSaved(t.Context(), "n", "s", false, io.Discard); sandbox.CodeOf(err) != sandbox.Unavailable || adviceOf(err) != 0 {
		t.Errorf("an export that breaks: %v, again after %v", err, adviceOf(err))
	}
	ours := errors.New("the disk is full here")
	c.export = func(w io.Writer) error {
		for {
			if _, err := w.Write(pattern()); err != nil {
				return err
			}
		}
	}
	if err := n.ExportSaved(t.Context(), "n", "s", false, brokenWriter{ours}); !errors.Is(err, ours) {
		t.Errorf("an export that nobody takes: %v", err)
	}

	c.take = func(io.Reader) (sandbox.Saved, error) { return sandbox.Saved{}, full }
	if _, err := n.ImportSaved(t.Context(), "n", "t", "s", "", bytes.NewReader(pattern())); sandbox.CodeOf(err) != sandbox.Exhausted {
		t.Errorf("an import that is refused: %v", err)
	}
	var told error
	c.take = func(r io.Reader) (sandbox.Saved, error) {
		_, told = io.Copy(io.Discard, r)
		return sandbox.Saved{}, told
	}
	_, err := n.ImportSaved(t.Context(), "n", "t", "s", "", io.MultiReader(bytes.NewReader(pattern()), iotest.ErrReader(ours)))
	s.stop() // waits for the other end
	if !errors.Is(err, ours) || told == nil {
		t.Errorf("an import whose source fails: %v, and the other end saw %v", err, told)
	}
	if err := n.ExportSaved(t.Context(), "n", "s", false, io.Discard); sandbox.CodeOf(err) != sandbox.Unavailable || adviceOf(err) != awayAdvice {
		t.Errorf("an export of who is away: %v, again after %v", err, adviceOf(err))
	}
}

type brokenWriter struct{ err error }

func (b brokenWriter) Write([]byte) (int, error) { return 0, b.err }

// Only permitted roles get an answer.
func TestTransfersAreForTheirCallers(t *testing.T) {
	c := &carrier{export: func(io.Writer) error { return errors.New("asked") }, take: func(io.Reader) (sandbox.Saved, error) {
		return sandbox.Saved{}, errors.New("asked")
	}}
	s := serve(t, Node, NodeService(c, nil))
	n := s.nodes(s.tcp, Gateway)
	defer n.Close()
	if err := n.ExportSaved(t.Context(), "n", "s", false, io.Discard); sandbox.CodeOf(err) != sandbox.Denied {
		t.Errorf("an export by a gateway: %v", err)
	}
	if _, err := n.ImportSaved(t.Context(), "n", "t", "s", "", strings.NewReader("x")); sandbox.CodeOf(err) != sandbox.Denied {
		t.Errorf("an import by a gateway: %v", err)
	}
	for method, path := range map[string]string{http.MethodGet: exportSavedPath, http.MethodPost: importSavedPath} {
		req, err := http.NewRequestWithContext(t.Context(), method, s.tcp+path+"?node=n&snapshot=s", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var told *sandbox.Error
		if err := refusal(res); !errors.As(err, &told) || told.Code != sandbox.Anonymous {
			t.Errorf("%s without a token: %v", path, err)
		}
	}
}

// A few bytes of an answer that comes bit by bit are sent at once.
func TestPrompt(t *testing.T) {
	got := httptest.NewRecorder()
	if n, err := (prompt{&begun{Writer: got}}).Write([]byte("few")); n != 3 || err != nil || !got.Flushed {
		t.Errorf("Write = %d, %v; sent: %t", n, err, got.Flushed)
	}
}
