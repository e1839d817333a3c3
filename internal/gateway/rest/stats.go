package rest

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// NodeTime is the timeout of one Node's answer with its numbers.
const NodeTime = 2 * time.Second

// NodeState is a Node's own report, or the error instead of it.
type NodeState struct {
	sandbox.NodeStats
	Err error
}

// NodeStates asks every Node for its numbers, all at once: a silent Node leaves the answers
// of the others as they are.
func (a *API) NodeStates(ctx context.Context) ([]NodeState, error) {
	ctx, cancel := context.WithTimeout(ctx, NodeTime)
	defer cancel()
	names, err := a.NodeNames(ctx)
	if err != nil {
		return nil, err
	}
	states := make([]NodeState, len(names))
	var asked sync.WaitGroup
	for i, name := range names {
		asked.Go(func() {
			stats, err := a.Reports.Stats(ctx, name)
			states[i] = NodeState{NodeStats: stats, Err: err}
			states[i].Node = name
			if err != nil {
				states[i].Ready, states[i].NotReady = false, []string{"it does not answer"}
			}
		})
	}
	asked.Wait()
	return states, nil
}

// Stats answers GET /api/v1/sandbox/stats: the Tenant's own counts, and the
// Pools and readiness of the Nodes.
func (a *API) Stats(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	counts, err := a.Sandboxes.Counts(r.Context(), who.Tenant)
	if err != nil {
		return err
	}
	nodes, err := a.NodeStates(r.Context())
	if err != nil {
		return err
	}
	v := v1.Stats{Sandboxes: map[sandbox.State]int{}, Pools: []v1.Pool{}, Nodes: []v1.Node{}}
	for state, n := range counts {
		v.Sandboxes[state] = n
		v.Total += n
	}
	// Without an answer the rest is still sent: running Sandboxes are reachable while
	// the session manager is away.
	if idle, err := a.Sandboxes.Idle(r.Context(), who.Tenant); err == nil {
		idle = min(idle, counts[sandbox.Running])
		v.Depths = &v1.Depths{Active: counts[sandbox.Running] - idle, Idle: idle, Paused: counts[sandbox.Paused]}
	}
	for _, n := range nodes {
		addNode(&v, n)
	}
	return Reply(w, http.StatusOK, v)
}

func addNode(v *v1.Stats, n NodeState) {
	v.Nodes = append(v.Nodes, nodeViewOf(n))
	for _, p := range n.Pools {
		v.Pools = append(v.Pools, poolViewOf(n.Node, p))
	}
}

func nodeViewOf(n NodeState) v1.Node {
	return v1.Node{Name: n.Node, Engine: n.Engine.Name, Ready: n.Ready, Reasons: append([]string{}, n.NotReady...)}
}

func poolViewOf(node string, p sandbox.PoolStats) v1.Pool {
	return v1.Pool{
		Node: node, Template: p.Template, Shape: v1.ShapeOf(p.Shape),
		Idle: p.Idle, Starting: p.Starting, Wanted: p.Wanted, Min: p.Min, Max: p.Max, Hits: p.Hits, Misses: p.Misses,
	}
}
