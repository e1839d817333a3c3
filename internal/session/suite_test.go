package session_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session/sessiontest"
)

// The Manager passes the suite of its port over the Nodes that its other tests use.
// tests/core runs it over a Node.
func TestSuite(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) sessiontest.World {
		w := newWorld(t)
		t.Cleanup(w.close)
		return sessiontest.World{
			Sandboxes: w.m,
			Remember:  func(sb sandbox.Sandbox, value string) { w.nodes.remember(sb, value) },
			Recall:    func(sb sandbox.Sandbox) string { return w.nodes.recall(sb) },
		}
	})
}
