package builder_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/template/builder/buildertest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/templatetest"
)

// The client passes the suite of its ports over a builder at a socket.
func TestSuite(t *testing.T) {
	templatetest.Run(t, func(t *testing.T) templatetest.World {
		w := buildertest.New(t)
		return w.Suite(t, w.Client)
	})
}
