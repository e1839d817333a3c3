package execution

import (
	"context"
	"net/netip"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Listener is a TCP socket that listens inside, as the Guest tells of it.
type Listener struct {
	Port    uint16
	Address netip.Addr // on which; an unspecified one is all
	PID     int64      // of a process that holds it; zero: not known
	Process string     // the name of that process, shortened
}

// ListPorts returns the Sandbox and what listens in it, by port and address;
// truncated says that there is more. It wakes one that is paused.
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
