package rest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// NodeRecords are the records of the Nodes. sandbox.NodeStore has it.
type NodeRecords interface {
	Nodes(ctx context.Context) ([]sandbox.NodeRecord, error)
	SetDraining(ctx context.Context, name string, draining, volumes bool) error
	SetLost(ctx context.Context, name string, epoch int64, lost bool) error
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

// nodes returns all Nodes by name, as they report, and their records.
func (a *API) nodes(ctx context.Context) (all []NodeState, known map[string]sandbox.NodeRecord, err error) {
	if all, err = a.NodeStates(ctx); err != nil {
		return nil, nil, err
	}
	records, err := a.NodeRecords.Nodes(ctx)
	if err != nil {
		return nil, nil, err
	}
	known = map[string]sandbox.NodeRecord{}
	for _, r := range records {
		known[r.Name] = r
		if !slices.ContainsFunc(all, func(n NodeState) bool { return n.Node == r.Name }) { // it was not asked
			all = append(all, NodeState{NodeStats: sandbox.NodeStats{Node: r.Name, NotReady: []string{"it has been away for long"}}})
		}
	}
	slices.SortFunc(all, func(x, y NodeState) int { return strings.Compare(x.Node, y.Node) })
	return all, known, nil
}

// nodeView returns a Node with the numbers of its records.
func (a *API) nodeView(ctx context.Context, n NodeState, known sandbox.NodeRecord) (v1.NodeDetails, error) {
	v := nodeDetailsOf(n)
	use, err := a.NodeRecords.NodeUse(ctx, n.Node)
	v.Draining, v.MoveVolumes, v.Lost, v.FenceSeconds = known.Draining, known.MoveVolumes, known.Lost, known.FenceAfter.Seconds()
	v.Records = v1.NodeRecords{Running: use.Running, Paused: use.Paused, Snapshots: use.Snapshots, UncopiedSnapshots: use.Uncopied, Volumes: use.Volumes}
	return v, err
}

// ListNodes answers GET /api/v1/nodes.
func (a *API) ListNodes(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	all, known, err := a.nodes(r.Context())
	if err != nil {
		return err
	}
	views := make([]v1.NodeDetails, len(all))
	for i, n := range all {
		if views[i], err = a.nodeView(r.Context(), n, known[n.Node]); err != nil {
			return err
		}
	}
	return Reply(w, http.StatusOK, v1.Nodes{Nodes: views})
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
	// SetLost runs first: if it is refused, nothing is changed.
	if body.Lost != nil {
		if err := a.NodeRecords.SetLost(r.Context(), r.PathValue("name"), 0, *body.Lost); err != nil {
			return err
		}
		Changed(r.Context(), fmt.Sprint("lost=", *body.Lost))
	}
	if body.MoveVolumes && (body.Draining == nil || !*body.Draining) {
		return sandbox.Errorf(sandbox.Invalid, "move_volumes needs draining: true: volumes leave a node that drains")
	}
	if body.Draining != nil {
		if err := a.NodeRecords.SetDraining(r.Context(), r.PathValue("name"), *body.Draining, body.MoveVolumes); err != nil {
			return err
		}
		Changed(r.Context(), fmt.Sprint("draining=", *body.Draining))
		if body.MoveVolumes {
			Changed(r.Context(), "move_volumes=true")
		}
	}
	return a.replyNode(w, r)
}

// replyNode answers with the Node that the path names.
func (a *API) replyNode(w http.ResponseWriter, r *http.Request) error {
	all, known, err := a.nodes(r.Context())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(n NodeState) bool { return n.Node == r.PathValue("name") })
	if i < 0 {
		return sandbox.Errorf(sandbox.NotFound, "no such node")
	}
	v, err := a.nodeView(r.Context(), all[i], known[all[i].Node])
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v)
}
