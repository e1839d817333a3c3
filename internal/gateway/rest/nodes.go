package rest

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

func nodeDetailsOf(n NodeState) v1.NodeDetails {
	v := v1.NodeDetails{
		Node: nodeViewOf(n), Version: n.Engine.Version, Build: n.Engine.Build, Pause: n.Engine.Pause, Sandboxes: n.Bound, Pools: []v1.Pool{},
		Full: n.Full, WaitSeconds: n.Wait.Seconds(),
	}
	if h := n.NodeStats.Host; h.MemoryTotal > 0 {
		v.Host = &v1.Host{MemoryMB: h.MemoryTotal >> 20, MemoryFreeMB: h.MemoryFree >> 20, DiskMB: h.DiskTotal >> 20, DiskFreeMB: h.DiskFree >> 20}
	}
	for _, p := range n.Pools {
		v.Pools = append(v.Pools, poolViewOf(n.Node, p))
	}
	return v
}

// ListNodes answers GET /api/v1/nodes.
func (a *API) ListNodes(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	states, err := a.NodeStates(r.Context())
	if err != nil {
		return err
	}
	views := make([]v1.NodeDetails, len(states))
	for i, n := range states {
		views[i] = nodeDetailsOf(n)
	}
	return Reply(w, http.StatusOK, v1.Nodes{Nodes: views})
}

// GetNode answers GET /api/v1/nodes/{name}.
func (a *API) GetNode(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	states, err := a.NodeStates(r.Context())
	if err != nil {
		return err
	}
	for _, n := range states {
		if n.Node == r.PathValue("name") {
			return Reply(w, http.StatusOK, nodeDetailsOf(n))
		}
	}
	return sandbox.Errorf(sandbox.NotFound, "no such node")
}
