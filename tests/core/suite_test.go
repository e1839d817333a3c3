package core_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/session/sessiontest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

func TestSandboxes(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) sessiontest.World {
		c := core.New(t, core.Config{})
		return sessiontest.World{Sandboxes: c.Manager, Remember: c.Remember, Recall: c.Recall}
	})
}
