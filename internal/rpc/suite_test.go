package rpc

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/builder/v1/builderv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node/nodetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session/sessiontest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/builder/buildertest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/templatetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploads"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploads/uploadstest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

// The client of a session manager passes the suite of its port, over a real one.
func TestSandboxes(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) sessiontest.World {
		c := core.New(t, core.Config{})
		s := serve(t, SessionManager, SessionService(c.Manager))
		m := NewSandboxes(s.unix, s.self(Gateway, ""))
		t.Cleanup(m.Close)
		return sessiontest.World{Sandboxes: m, Remember: c.Remember, Recall: c.Recall}
	})
}

// The client of the Templates that a Node keeps passes the suite of their ports.
func TestTemplates(t *testing.T) {
	templatetest.Run(t, func(t *testing.T) templatetest.World {
		w := buildertest.New(t)
		s := serve(t, Node, TemplateService(w.Client, nil))
		door, node := NewTemplates("", s.tcp, s.self(Gateway, "")), NewTemplates("", s.tcp, s.self(Node, "n"))
		t.Cleanup(door.Close)
		t.Cleanup(node.Close)
		return w.Suite(t, struct {
			sandbox.Templates
			sandbox.TemplateImages
		}{door, node})
	})
}

// The client of the uploads that a Node keeps passes the suite of their port, on each
// transport.
func TestTemplateUploads(t *testing.T) {
	p := newPKI(t)
	self, gateway := p.identity(t, Node, "n"), p.identity(t, Gateway, "g")
	for _, transport := range []string{"unix", "tcp", "tls"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			uploadstest.Run(t, func(t *testing.T, store *uploads.Store) sandbox.TemplateUploads {
				s := prepare(t, Node, TemplateService(nil, store))
				by := s.self(Gateway, "")
				if transport == "tls" {
					s.identity, by.Identity = self, gateway
				}
				s.start(t)
				address := s.tcp
				if transport == "unix" {
					address = s.unix
				}
				c := NewTemplates("n", address, by)
				t.Cleanup(c.Close)
				return c
			})
		})
	}
}

// A Node of the version before, which has no calls for uploads, is told by Unsupported.
func TestTemplateUploadsOfTheVersionBefore(t *testing.T) {
	before := TemplateService(nil, nil)
	with := before.handler
	before.handler = func(o ...connect.HandlerOption) (string, http.Handler) {
		path, h := with(o...)
		return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == builderv1connect.BuilderServiceHasUploadProcedure {
				http.NotFound(w, r) // as a handler does for a procedure that it does not know
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	delete(before.carried, "GET "+openUploadPath)
	delete(before.carried, "POST "+storeUploadPath)
	s := serve(t, Node, before)
	c := NewTemplates("", s.tcp, s.self(Gateway, ""))
	t.Cleanup(c.Close)
	hash := strings.Repeat("a", 64)
	codetest.Want(t, "HasUpload", codetest.ErrOf(c.HasUpload(t.Context(), "t", hash)), sandbox.Unsupported)
	_, _, err := c.OpenUpload(t.Context(), "t", hash)
	codetest.Want(t, "OpenUpload", err, sandbox.Unsupported)
	codetest.Want(t, "StoreUpload", c.StoreUpload(t.Context(), "t", hash, strings.NewReader("files")), sandbox.Unsupported)

	own := uploads.AtHome(c, uploads.New(uploads.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Leave: 1}))
	codetest.OK(t, "StoreUpload", own.StoreUpload(t.Context(), "t", hash, strings.NewReader("files")))
	if present, err := own.HasUpload(t.Context(), "t", hash); !present || err != nil {
		t.Errorf("a gateway beside it has no upload: %v, %v", present, err)
	}
	s.stop()
	codetest.Want(t, "HasUpload of a Node that is away", codetest.ErrOf(c.HasUpload(t.Context(), "t", hash)), sandbox.Unavailable)
}

// The client of a Node passes the suite of its ports on each transport. Dials and files
// differ between transports.
func TestNodes(t *testing.T) {
	p := newPKI(t)
	self := p.identity(t, Node, core.NodeName)
	callers := map[Role]*cluster.Identity{Gateway: p.identity(t, Gateway, "g"), SessionManager: p.identity(t, SessionManager, "m")}
	for name, address := range map[string]func(*server) string{
		"unix": func(s *server) string { return s.unix },
		"tcp":  func(s *server) string { return s.tcp },
		"tls":  func(s *server) string { return s.tcp },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodetest.Run(t, func(t *testing.T) nodetest.World {
				c := core.NewNode(t, core.Config{})
				s := prepare(t, Node, NodeService(c.Node, nil))
				if name == "tls" {
					s.identity = self
				}
				s.start(t)
				client := func(role Role) *Nodes {
					records := func(context.Context) ([]sandbox.NodeRecord, error) {
						return []sandbox.NodeRecord{{Name: core.NodeName, Address: address(s)}}, nil
					}
					by := s.self(role, "")
					if name == "tls" {
						by.Identity = callers[role]
					}
					n := NewNodes(records, by)
					t.Cleanup(n.Close)
					return n
				}
				manager, door := client(SessionManager), client(Gateway)
				return nodetest.World{
					Name: core.NodeName, Image: fake.Image, NodeBoots: manager, NodeSaves: manager, NodeChanges: manager, NodeVolumes: manager, Dialer: door, Reports: door, Files: door,
					Remember: func(bootID, value string) { c.Engine.Guest(bootID).Remember("value", value) },
					Recall:   func(bootID string) string { return c.Engine.Guest(bootID).Recall("value") },
					Need:     c.Engine.Need,
				}
			})
		})
	}
}
