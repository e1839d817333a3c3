package rest

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// NodeRecords are the records of the Nodes. sandbox.NodeStore has it.
type NodeRecords interface {
	Nodes(ctx context.Context) ([]sandbox.NodeRecord, error)
	SetDraining(ctx context.Context, name string, draining bool) error
	NodeUse(ctx context.Context, name string) (sandbox.NodeUse, error)
}

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

// nodes returns all Nodes by name, as they and their records report.
func (a *API) nodes(ctx context.Context) ([]v1.NodeDetails, error) {
	states, err := a.NodeStates(ctx)
	if err != nil {
		return nil, err
	}
	records, err := a.NodeRecords.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range records { // those that have been away for long are not asked
		if !slices.ContainsFunc(states, func(n NodeState) bool { return n.Node == r.Name }) {
			away := NodeState{NodeStats: sandbox.NodeStats{Node: r.Name, NotReady: []string{"it has been away for long"}}}
			states = append(states, away)
		}
	}
	slices.SortFunc(states, func(x, y NodeState) int { return strings.Compare(x.Node, y.Node) })
	views := make([]v1.NodeDetails, len(states))
	for i, n := range states {
		v := nodeDetailsOf(n)
		v.Draining = slices.ContainsFunc(records, func(r sandbox.NodeRecord) bool { return r.Name == n.Node && r.Draining })
		use, err := a.NodeRecords.NodeUse(ctx, n.Node)
		if err != nil {
			return nil, err
		}
		v.Records = v1.NodeRecords{Running: use.Running, Paused: use.Paused, Snapshots: use.Snapshots, Volumes: use.Volumes}
		views[i] = v
	}
	return views, nil
}

// ListNodes answers GET /api/v1/nodes.
func (a *API) ListNodes(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	all, err := a.nodes(r.Context())
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.Nodes{Nodes: all})
}

// GetNode answers GET /api/v1/nodes/{name}.
func (a *API) GetNode(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	return a.replyNode(w, r)
}

// ChangeNode answers PATCH /api/v1/nodes/{name}.
func (a *API) ChangeNode(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	var body v1.NodeChange
	if err := Decode(r, &body); err != nil {
		return err
	}
	if body.Draining != nil {
		if err := a.NodeRecords.SetDraining(r.Context(), r.PathValue("name"), *body.Draining); err != nil {
			return err
		}
	}
	return a.replyNode(w, r)
}

// replyNode answers with the Node that the path names.
func (a *API) replyNode(w http.ResponseWriter, r *http.Request) error {
	all, err := a.nodes(r.Context())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(n v1.NodeDetails) bool { return n.Name == r.PathValue("name") })
	if i < 0 {
		return sandbox.Errorf(sandbox.NotFound, "no such node")
	}
	return Reply(w, http.StatusOK, all[i])
}
