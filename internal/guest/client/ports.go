package client

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/netip"
	"slices"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

const (
	// maxListeners bounds a Guest's list.
	maxListeners = 1024
	// maxProcessName bounds the name of a listener's process, in bytes.
	maxProcessName = 64
)

// ListPorts returns the listening ports inside. See execution.Guest.
func (c *Client) ListPorts(ctx context.Context) ([]execution.Listener, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	r, err := c.control().ListPorts(ctx, connect.NewRequest(&guestv1.ListPortsRequest{}))
	err = fail(ctx, err)
	if errors.Is(err, sandbox.Unsupported) {
		// The Boot was saved by an earlier version, which its Guest still is.
		return nil, false, sandbox.Errorf(sandbox.Unsupported, "the agent in this sandbox is of an earlier version, which does not list ports: create a new sandbox")
	}
	if err != nil {
		return nil, false, err
	}
	all, err := listenersOf(r.Msg)
	return all, r.Msg.Truncated, err
}

// listenersOf checks a Guest's listeners; duplicates are removed.
func listenersOf(m *guestv1.ListPortsResponse) ([]execution.Listener, error) {
	if len(m.Ports) > maxListeners {
		return nil, errWrong()
	}
	all := make([]execution.Listener, 0, len(m.Ports))
	for _, p := range m.Ports {
		address, err := netip.ParseAddr(p.GetAddress())
		if err != nil || address.Zone() != "" || p.Port == 0 || p.Port > math.MaxUint16 || p.Pid < 0 {
			return nil, errWrong()
		}
		name := shown(p.Process)
		if len(p.Process) > maxProcessName {
			name = shown(p.Process[:maxProcessName])
		}
		all = append(all, execution.Listener{Port: uint16(p.Port), Address: address.Unmap(), PID: p.Pid, Process: name})
	}
	order := func(a, b execution.Listener) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), a.Address.Compare(b.Address))
	}
	slices.SortStableFunc(all, order)
	return slices.CompactFunc(all, func(a, b execution.Listener) bool { return order(a, b) == 0 }), nil
}
