package execution

import (
	"context"
	"net/netip"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Listener is a listening TCP socket inside, as the Guest claims.
type Listener struct {
	Port    uint16
	Address netip.Addr // unspecified: all addresses
	PID     int64      // of a process that holds it; zero: unknown
	Process string     // the name of that process, shortened
}

// ListPorts returns the Sandbox and its listening sockets, by port and address. truncated
// reports that there are more. It wakes a paused Sandbox.
func (s *Service) ListPorts(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sb sandbox.Sandbox, all []Listener, truncated bool, err error) {
	sb, guest, err := s.Guests.Open(ctx, tenant, idOrName)
	if err != nil {
		return sb, nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	all, truncated, err = guest.ListPorts(ctx)
	if err != nil {
		return sb, nil, false, s.broken(ctx, sb, err)
	}
	return sb, all, truncated, nil
}
