package gatewaytest

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/template/templatetest"
)

// The Templates in memory pass the suite of sandbox.Templates.
func TestTemplates(t *testing.T) {
	templatetest.Run(t, func(*testing.T) templatetest.World {
		f := &templates{}
		return templatetest.World{Templates: f, Own: f.Put, Limit: func(bytes int64) { f.Quota.TemplateBytes = bytes }}
	})
}
