package rest_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// fixture is a gateway over the core, with what these tests do with it.
type fixture struct{ *gatewaytest.Fixture }

func newFixture(t testing.TB, change ...func(*gateway.Config)) *fixture {
	return &fixture{gatewaytest.New(t, change...)}
}
