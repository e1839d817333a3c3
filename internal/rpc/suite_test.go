package rpc

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/session/sessiontest"
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
