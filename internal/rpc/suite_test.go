package rpc

import (
	"context"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node/nodetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session/sessiontest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/builder/buildertest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/templatetest"
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
		s := serve(t, Node, TemplateService(w.Client))
		door, node := NewTemplates("", s.tcp, s.self(Gateway, "")), NewTemplates("", s.tcp, s.self(Node, "n"))
		t.Cleanup(door.Close)
		t.Cleanup(node.Close)
		return w.Suite(t, struct {
			sandbox.Templates
			sandbox.TemplateImages
		}{door, node})
	})
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
				s := prepare(t, Node, NodeService(c.Node))
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
					Name: core.NodeName, Image: fake.Image, NodeBoots: manager, NodeSaves: manager, NodeVolumes: manager, Dialer: door, Reports: door, Files: door,
					Remember: func(bootID, value string) { c.Engine.Guest(bootID).Remember("value", value) },
					Recall:   func(bootID string) string { return c.Engine.Guest(bootID).Recall("value") },
				}
			})
		})
	}
}
