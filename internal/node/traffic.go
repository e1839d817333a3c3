package node

import (
	"context"
	"maps"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// departure is a bound Boot that ended.
type departure struct {
	ref sandbox.BootRef
	at  time.Time
}

// Traffic implements sandbox.Nodes.
func (n *Node) Traffic(ctx context.Context, node string) ([]sandbox.BootTraffic, error) {
	if err := n.check(node); err != nil {
		return nil, err
	}
	carried, err := n.engine.Traffic(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.left, func(_ string, d departure) bool { return now.Sub(d.at) > sandbox.TrafficMemory })
	var all []sandbox.BootTraffic
	add := func(ref sandbox.BootRef) {
		if c := carried[ref.BootID]; c != (sandbox.Traffic{}) {
			all = append(all, sandbox.BootTraffic{BootRef: ref, Traffic: c})
		}
	}
	for _, b := range n.owners {
		add(b.owner.ref)
	}
	for _, d := range n.left {
		add(d.ref)
	}
	return all, nil
}
