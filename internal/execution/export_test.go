package execution

import (
	"context"
	"log/slog"
	"net"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// NewServiceForTest returns a Service with one running Sandbox, whose Guest is
// g.
func NewServiceForTest(g Guest) *Service { return newService(newOne(), g) }

// NewPausedServiceForTest returns a Service with one Sandbox, which a pause stops just
// before its Guest is reached.
func NewPausedServiceForTest(newGuest NewGuest) *Service {
	one := newOne()
	return New(Config{Sandboxes: one, Guests: NewGuests(one, pausingNodes{one: one}, newGuest), Log: slog.New(slog.DiscardHandler)})
}

type pausingNodes struct{ one *oneSandbox }

func (p pausingNodes) Dial(context.Context, string, sandbox.BootRef, uint16) (net.Conn, error) {
	p.one.change(pauseIt)
	return nil, sandbox.Errorf(sandbox.NotFound, "no such boot")
}
