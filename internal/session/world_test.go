package session_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

func TestMain(m *testing.M) {
	// rapid's default of 100 checks takes longer than all other tests. Failures are in the
	// log.
	for name, value := range map[string]string{"rapid.checks": "15", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// layerRoom is Config.LayerBytes of worlds.
const layerRoom = 1 << 30

// ports are the Node ports that a Manager needs.
type ports interface {
	sandbox.NodeBoots
	sandbox.NodeSaves
	sandbox.NodeChanges
	sandbox.NodeVolumes
	Stats(ctx context.Context, node string) (sandbox.NodeStats, error)
}

// nodes are a Manager's Nodes in memory: their Boots, and faults of their calls.
type nodes struct {
	mu    sync.Mutex
	boots map[string]map[string]sandbox.BoundBoot // by node, by Boot ID
	seen  map[string]map[string]int64             // the highest Boot number, by node and Sandbox
	away  map[string]bool                         // nodes that do not answer
	told  map[string]sandbox.Binding              // by Boot ID
	pool  bool                                    // Boots come from a Pool, with names of their own
	// saved is by node and Snapshot; memory and frozen are by Boot ID.
	saved map[string]map[string]savedBoot
	// replicas are states in Blobs, by Snapshot.
	replicas map[string]savedBoot
	memory   map[string]string
	frozen   map[string]bool
	traffic  []sandbox.BootTraffic
	volumes  map[string]map[string]sandbox.VolumeSpec // by node and ID
	leaving  map[string]string                        // the node that exported a Volume, by ID, until it is made usable again
	files    map[string]string                        // content of each Volume, by ID
	// reportsFull are the nodes that report no room; by themselves they refuse nothing.
	reportsFull          map[string]bool
	cpu                  map[string]sandbox.CPUFeatures // by node
	bootCPU              map[string]sandbox.CPUFeatures // that a Boot sees
	carried              map[string]int                 // exports that were begun, by node
	large                bool                           // Boots use much memory
	sentBases, keptBases map[string]map[string]bool     // bases, by node and Snapshot
	changed              int                            // states that were made from changes
	faults               faults
}

// savedBoot is saved state.
type savedBoot struct {
	boot, memory string
	tenant       sandbox.TenantID
	cpu          sandbox.CPUFeatures
}

// savedImage is the image of every Boot.
const savedImage = "sha256:base"

// faults make calls fail. A Manager that runs calls Nodes from its own goroutines, so a
// test changes faults by fail.
type faults struct {
	// onStart and onStop run first; their error fails the call. onBound runs after a Boot
	// is bound; its error loses the answer.
	onStart func(ctx context.Context, node string, req sandbox.StartRequest) error
	onBound func(req sandbox.StartRequest) error
	onStop  func(ctx context.Context, bootID string) error
	// onUpdate runs before a Boot takes a change; its error fails the call.
	onUpdate func(ctx context.Context, b sandbox.Binding) error
	// onSave, onThaw and onDelete run first; their error fails the call. onSaved runs
	// after a Boot is saved; its error loses the answer.
	onSave   func(ctx context.Context, r sandbox.SaveRequest) error
	onSaved  func(r sandbox.SaveRequest) error
	onThaw   func(ctx context.Context, boot sandbox.BootRef) error
	onDelete func(ctx context.Context, snapshot string) error
	// onImport runs once everything is read; its error fails the call.
	onImport func(snapshot string) error
	// onUsage, onKeepBase and onImportChanges run first; their error fails the call.
	onUsage         func() error
	onKeepBase      func(snapshot string) error
	onImportChanges func() error
	// onVolume runs after a Volume is made; its error loses the answer. onNoVolume
	// runs before one is deleted; its error fails the call.
	onVolume   func(v sandbox.VolumeSpec) error
	onNoVolume func(id string) error
	// onImportVolume runs once all of an import has arrived; its error fails it.
	onImportVolume func(ctx context.Context, v sandbox.VolumeSpec) error
	// onList runs before a Node lists its Boots or traffic; its error fails the call.
	onList func(ctx context.Context, node string) error
}

func newNodes(names ...string) *nodes {
	n := &nodes{
		boots: map[string]map[string]sandbox.BoundBoot{}, seen: map[string]map[string]int64{}, away: map[string]bool{}, told: map[string]sandbox.Binding{},
		saved: map[string]map[string]savedBoot{}, replicas: map[string]savedBoot{}, memory: map[string]string{}, frozen: map[string]bool{}, volumes: map[string]map[string]sandbox.VolumeSpec{}, leaving: map[string]string{},
		files: map[string]string{}, reportsFull: map[string]bool{},
		cpu: map[string]sandbox.CPUFeatures{}, bootCPU: map[string]sandbox.CPUFeatures{}, carried: map[string]int{},
		sentBases: map[string]map[string]bool{}, keptBases: map[string]map[string]bool{},
	}
	for _, name := range names {
		n.boots[name] = map[string]sandbox.BoundBoot{}
		n.seen[name] = map[string]int64{}
		n.saved[name] = map[string]savedBoot{}
		n.volumes[name] = map[string]sandbox.VolumeSpec{}
		n.sentBases[name], n.keptBases[name] = map[string]bool{}, map[string]bool{}
	}
	return n
}

func (n *nodes) reach(node string) error {
	if n.boots[node] == nil || n.away[node] {
		return sandbox.Errorf(sandbox.Unavailable, "node %s is silent", node)
	}
	return nil
}

func (n *nodes) setAway(node string, away bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away[node] = away
}

// present returns the current faults.
func (n *nodes) present() faults {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults
}

// carry sets the traffic that the Nodes report from now on.
func (n *nodes) carry(traffic ...sandbox.BootTraffic) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.traffic = traffic
}

// fail changes how calls fail from now on.
func (n *nodes) fail(change func(*faults)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.faults)
}

// mend lets every call succeed from now on.
func (n *nodes) mend() { n.fail(func(f *faults) { *f = faults{} }) }

func (n *nodes) Start(ctx context.Context, node string, req sandbox.StartRequest) (sandbox.Started, error) {
	if onStart := n.present().onStart; onStart != nil {
		if err := onStart(ctx, node, req); err != nil {
			return sandbox.Started{}, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return sandbox.Started{}, err
	}
	if err := n.checkVolumes(node, req.Binding); err != nil {
		return sandbox.Started{}, err
	}
	started := sandbox.Started{BootID: req.BootID, Pooled: n.pool && req.From == ""}
	if started.Pooled {
		started.BootID = sandbox.NewBootID()
	}
	there, bound := n.ownedBy(node, req.Binding.SandboxID)
	switch number := req.Binding.BootNumber; {
	case number < n.seen[node][req.Binding.SandboxID]:
		return sandbox.Started{}, sandbox.Errorf(sandbox.Conflict, "the sandbox has had a newer boot")
	case bound && there.Number == number:
		return sandbox.Started{BootID: there.BootID, Pooled: there.BootID != req.BootID}, nil
	}
	from, ok := n.saved[node][req.From]
	if req.From != "" && !ok {
		return sandbox.Started{}, sandbox.Errorf(sandbox.NotFound, "no saved state %s", req.From)
	}
	if err := n.cpu[node].Admit(from.cpu, node); err != nil {
		return sandbox.Started{}, err
	}
	n.bootCPU[started.BootID] = cmp.Or(from.cpu, n.cpu[node])
	delete(n.boots[node], there.BootID) // an older Boot of the Sandbox
	n.memory[started.BootID] = from.memory
	n.boots[node][started.BootID] = boundBy(started.BootID, req.Binding)
	n.seen[node][req.Binding.SandboxID] = req.Binding.BootNumber
	n.told[started.BootID] = req.Binding
	if n.faults.onBound != nil {
		if err := n.faults.onBound(req); err != nil {
			return sandbox.Started{}, err
		}
	}
	return started, ctx.Err()
}

// ownedBy returns the Boot of a Sandbox.
func (n *nodes) ownedBy(node, sandboxID string) (sandbox.BoundBoot, bool) {
	for _, b := range n.boots[node] {
		if b.SandboxID == sandboxID {
			return b, true
		}
	}
	return sandbox.BoundBoot{}, false
}

// check returns an error unless a Boot is the current one of its Sandbox.
func (n *nodes) check(node string, boot sandbox.BootRef) error {
	switch b, ok := n.ownedBy(node, boot.SandboxID); {
	case !ok || b.Tenant != boot.Tenant:
		return sandbox.Errorf(sandbox.NotFound, "the sandbox does not run here")
	case b.BootRef != boot:
		return sandbox.Errorf(sandbox.Conflict, "the sandbox runs as another boot")
	}
	return nil
}

// checkSaved returns Invalid unless all names are Snapshot IDs.
func checkSaved(names ...string) error {
	for _, name := range names {
		if !sandbox.ValidSnapshotID(name) {
			return sandbox.Errorf(sandbox.Invalid, "%s is no snapshot ID", name)
		}
	}
	return nil
}

func boundBy(bootID string, b sandbox.Binding) sandbox.BoundBoot {
	return sandbox.BoundBoot{
		BootRef:  sandbox.BootRef{BootID: bootID, SandboxID: b.SandboxID, Number: b.BootNumber, Tenant: b.Tenant},
		Revision: b.Revision,
	}
}

func (n *nodes) Update(ctx context.Context, node, bootID string, b sandbox.Binding) error {
	if onUpdate := n.present().onUpdate; onUpdate != nil {
		if err := onUpdate(ctx, b); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return err
	}
	next := boundBy(bootID, b)
	if err := n.check(node, next.BootRef); err != nil {
		return err
	}
	if n.boots[node][bootID].Revision > next.Revision {
		return sandbox.Errorf(sandbox.Conflict, "the boot knows better")
	}
	n.boots[node][bootID], n.told[bootID] = next, b
	return ctx.Err()
}

func (n *nodes) Stop(ctx context.Context, node, bootID string, _ time.Duration) error {
	if onStop := n.present().onStop; onStop != nil {
		if err := onStop(ctx, bootID); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return err
	}
	delete(n.boots[node], bootID)
	return ctx.Err()
}

func (n *nodes) Save(ctx context.Context, node string, r sandbox.SaveRequest) (sandbox.Saved, error) {
	if onSave := n.present().onSave; onSave != nil {
		if err := onSave(ctx, r); err != nil {
			return sandbox.Saved{}, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return sandbox.Saved{}, err
	}
	if err := cmp.Or(n.check(node, r.Boot), checkSaved(r.Snapshot)); err != nil {
		return sandbox.Saved{}, err
	}
	n.frozen[r.Boot.BootID] = r.Freeze
	there, ok := n.saved[node][r.Snapshot]
	if ok && there.boot != r.Boot.BootID {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "another boot was saved as %s", r.Snapshot)
	}
	if !ok {
		s := savedBoot{boot: r.Boot.BootID, memory: n.memory[r.Boot.BootID], tenant: r.Boot.Tenant}
		if r.Memory {
			s.cpu = n.bootCPU[r.Boot.BootID]
		}
		n.saved[node][r.Snapshot] = s
	}
	if n.faults.onSaved != nil {
		if err := n.faults.onSaved(r); err != nil {
			return sandbox.Saved{}, err
		}
	}
	saved := sandbox.Saved{Bytes: 1000, Memory: r.Memory, Build: "1", Image: savedImage, Shape: sandbox.DefaultShape(), Digest: "d", CPU: n.saved[node][r.Snapshot].cpu}
	return saved, ctx.Err()
}

func (n *nodes) SaveFiles(ctx context.Context, node string, r sandbox.FilesRequest) (sandbox.Saved, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return sandbox.Saved{}, err
	}
	if err := cmp.Or(checkSaved(r.From, r.Snapshot), r.Shape.Check()); err != nil {
		return sandbox.Saved{}, err
	}
	if _, ok := n.saved[node][r.From]; !ok {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.NotFound, "nothing is saved as %s", r.From)
	}
	if r.Image != savedImage {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "the state is of another image")
	}
	n.saved[node][r.Snapshot] = savedBoot{}
	return sandbox.Saved{Bytes: 10, Build: "1", Image: r.Image, Shape: r.Shape, Digest: "d"}, ctx.Err()
}

// FetchSaved takes a replica from what was on any node when copyOut ran.
func (n *nodes) FetchSaved(ctx context.Context, node string, r sandbox.FetchRequest) (sandbox.Saved, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return sandbox.Saved{}, err
	}
	if err := checkSaved(r.From, r.Snapshot); err != nil {
		return sandbox.Saved{}, err
	}
	state, ok := n.replicas[r.From]
	if !ok || state.tenant != r.Tenant {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.NotFound, "the saved state %s has no copy", r.From)
	}
	if err := n.cpu[node].Admit(r.CPU, node); err != nil {
		return sandbox.Saved{}, err
	}
	if _, taken := n.saved[node][r.Snapshot]; taken {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", r.Snapshot)
	}
	n.saved[node][r.Snapshot] = state
	return sandbox.Saved{Bytes: 1000, Memory: true, Build: "1", Image: r.Image, Shape: sandbox.DefaultShape(), Digest: "d", CPU: state.cpu}, ctx.Err()
}

// copyOut replicates all states of the nodes.
func (n *nodes) copyOut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, states := range n.saved {
		maps.Copy(n.replicas, states)
	}
}

func (n *nodes) Thaw(ctx context.Context, node string, boot sandbox.BootRef) error {
	if onThaw := n.present().onThaw; onThaw != nil {
		if err := onThaw(ctx, boot); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return err
	}
	if err := n.check(node, boot); err != nil {
		return err
	}
	n.frozen[boot.BootID] = false
	return ctx.Err()
}

func (n *nodes) DeleteSaved(ctx context.Context, node, snapshot string) error {
	if onDelete := n.present().onDelete; onDelete != nil {
		if err := onDelete(ctx, snapshot); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return err
	}
	delete(n.saved[node], snapshot)
	return ctx.Err()
}

func (n *nodes) ListSaved(_ context.Context, node string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return nil, err
	}
	return slices.Collect(maps.Keys(n.saved[node])), nil
}

func (n *nodes) ExportSaved(_ context.Context, node, snapshot string, image bool, w io.Writer) error {
	text, err := n.exported(node, snapshot)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text) // without n.mu: the reader may need it first
	return err
}

// exported returns the content of a saved state, and counts an export.
func (n *nodes) exported(node, snapshot string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return "", err
	}
	s, ok := n.saved[node][snapshot]
	if !ok {
		return "", sandbox.Errorf(sandbox.NotFound, "no saved state %s", snapshot)
	}
	n.carried[node]++
	text := exportedMemory + s.memory
	if s.cpu != "" {
		text = exportedCPU + string(s.cpu) + "\n" + text
	}
	return text, nil
}

// exportedMemory precedes the memory in an exported file, and exportedCPU the features on a
// line before, if there are any.
const exportedMemory, exportedCPU = "memory: ", "cpu: "

func (n *nodes) ImportSaved(ctx context.Context, node string, of sandbox.TenantID, snapshot, _ string, r io.Reader) (sandbox.Saved, error) {
	raw, err := io.ReadAll(r)
	if onImport := n.present().onImport; onImport != nil && err == nil {
		err = onImport(snapshot)
	}
	if err != nil {
		return sandbox.Saved{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return sandbox.Saved{}, err
	}
	if err := checkSaved(snapshot); err != nil {
		return sandbox.Saved{}, err
	}
	if _, there := n.saved[node][snapshot]; there {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "there is a saved state %s", snapshot)
	}
	text, cpu := string(raw), ""
	if rest, has := strings.CutPrefix(text, exportedCPU); has {
		cpu, text, _ = strings.Cut(rest, "\n")
	}
	features := sandbox.CPUFeatures(cpu)
	if err := n.cpu[node].Admit(features, node); err != nil {
		return sandbox.Saved{}, err
	}
	memory, ok := strings.CutPrefix(text, exportedMemory)
	if !ok {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "the content differs from the exported snapshot")
	}
	n.saved[node][snapshot] = savedBoot{memory: memory, tenant: of, cpu: features}
	return sandbox.Saved{Bytes: 1000, Memory: true, Build: "1", Image: savedImage, Shape: sandbox.DefaultShape(), Digest: "d", CPU: features}, ctx.Err()
}

func (n *nodes) Usage(_ context.Context, node string, of sandbox.BootRef) (sandbox.Usage, error) {
	if onUsage := n.present().onUsage; onUsage != nil {
		if err := onUsage(); err != nil {
			return sandbox.Usage{}, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.large {
		return sandbox.Usage{MemoryBytes: 1 << 30}, n.reach(node)
	}
	return sandbox.Usage{MemoryBytes: 20 << 20}, n.reach(node)
}

func (n *nodes) ExportBase(ctx context.Context, node, snapshot string, w io.Writer) error {
	err := n.ExportSaved(ctx, node, snapshot, false, w)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.sentBases[node][snapshot] = true
	}
	return err
}

func (n *nodes) KeepBase(_ context.Context, node, snapshot string, r io.Reader) error {
	_, err := io.ReadAll(r)
	if err == nil {
		err = checkSaved(snapshot)
	}
	if onKeepBase := n.present().onKeepBase; onKeepBase != nil && err == nil {
		err = onKeepBase(snapshot)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		err = n.reach(node)
	}
	if err == nil {
		n.keptBases[node][snapshot] = true
	}
	return err
}

func (n *nodes) ExportChanges(ctx context.Context, node, snapshot, base string, w io.Writer) error {
	if err := n.reachable(node); err != nil {
		return err
	}
	if !n.hasBase(n.sentBases, node, base) {
		return sandbox.Errorf(sandbox.NotFound, "no base %s", base)
	}
	return n.ExportSaved(ctx, node, snapshot, false, w)
}

func (n *nodes) ImportChanges(ctx context.Context, node string, of sandbox.TenantID, r sandbox.ChangesRequest, from io.Reader) (sandbox.Saved, error) {
	if onImportChanges := n.present().onImportChanges; onImportChanges != nil {
		if err := onImportChanges(); err != nil {
			return sandbox.Saved{}, err
		}
	}
	if err := n.reachable(node); err != nil {
		return sandbox.Saved{}, err
	}
	if !n.hasBase(n.keptBases, node, r.Base) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.NotFound, "no base %s", r.Base)
	}
	saved, err := n.ImportSaved(ctx, node, of, r.Snapshot, r.Image, from)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.changed++
	}
	return saved, err
}

// reachable is reach for a caller that does not hold n.mu.
func (n *nodes) reachable(node string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reach(node)
}

// hasBase takes a base from all.
func (n *nodes) hasBase(all map[string]map[string]bool, node, base string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer delete(all[node], base)
	return all[node][base]
}

// moved returns how many exports of a Node began, and how many states were made from changes.
func (n *nodes) moved(node string) (carried, changed int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.carried[node], n.changed
}

// remember puts a value into a Boot's memory; recall returns it.
func (n *nodes) remember(sb sandbox.Sandbox, value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.memory[sb.Boot.ID] = value
}

func (n *nodes) recall(sb sandbox.Sandbox) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.memory[sb.Boot.ID]
}

// kept returns the IDs of all saved states.
func (n *nodes) kept() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]bool{}
	for _, saved := range n.saved {
		for id := range saved {
			all[id] = true
		}
	}
	return all
}

// still reports whether a Boot is frozen.
func (n *nodes) still(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen[id]
}

func (n *nodes) Boots(ctx context.Context, node string) ([]sandbox.BoundBoot, error) {
	if onList := n.present().onList; onList != nil {
		if err := onList(ctx, node); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return nil, err
	}
	var all []sandbox.BoundBoot
	for _, b := range n.boots[node] {
		all = append(all, b)
	}
	return all, nil
}

// Traffic returns the traffic that carry has set.
func (n *nodes) Traffic(ctx context.Context, node string) ([]sandbox.BootTraffic, error) {
	if onList := n.present().onList; onList != nil {
		if err := onList(ctx, node); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.traffic), n.reach(node)
}

// all returns every Boot that runs.
func (n *nodes) all() []sandbox.BoundBoot {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []sandbox.BoundBoot
	for _, boots := range n.boots {
		for _, b := range boots {
			all = append(all, b)
		}
	}
	return all
}

// lose removes a Boot that died and returns the report of it.
func (n *nodes) lose(node, bootID string, cause sandbox.Cause) sandbox.BootEnd {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.boots[node][bootID]
	delete(n.boots[node], bootID)
	return sandbox.BootEnd{BootRef: b.BootRef, Node: node, Cause: cause, At: time.Now()}
}

func (n *nodes) put(node string, b sandbox.BoundBoot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.boots[node][b.BootID] = b
}

// Stats reports the CPU features of a Node.
func (n *nodes) Stats(_ context.Context, node string) (sandbox.NodeStats, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return sandbox.NodeStats{Node: node, Engine: sandbox.Features{CPU: n.cpu[node], GuestCPU: n.cpu[node]}}, n.reach(node)
}

// setCPU sets the CPU features of a Node, as if it were started again on another machine.
func (n *nodes) setCPU(node string, features sandbox.CPUFeatures) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cpu[node] = features
}

// need makes a saved state need one more CPU feature.
func (n *nodes) need(node, snapshot, feature string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.saved[node][snapshot]
	s.cpu = sandbox.NewCPUFeatures(append(s.cpu.Names(), feature)...)
	n.saved[node][snapshot] = s
}

// exportsOf returns the number of exports that a Node has begun.
func (n *nodes) exportsOf(node string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.carried[node]
}

// placed is a Placement with a fixed answer, without the Nodes that lack CPU features. For a
// Boot elsewhere it knows which Nodes are away or full.
type placed struct {
	names []string
	nodes *nodes
}

func (p placed) Place(_ context.Context, needs sandbox.BootNeeds) (names []string, _ error) {
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	err := sandbox.Errorf(sandbox.Exhausted, "no node is available")
	for _, name := range p.names {
		if len(p.nodes.cpu[name].Lacks(needs.CPU)) > 0 {
			err = noCPU()
			continue
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, err
	}
	return names, nil
}

func noCPU() *sandbox.Error {
	return sandbox.Errorf(sandbox.Conflict, "no node has the CPU features that this state needs").WithCause(sandbox.ErrCPU)
}

// PlaceElsewhere implements sandbox.Placement.
func (p placed) PlaceElsewhere(_ context.Context, needs sandbox.BootNeeds, node string) (string, error) {
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	err := sandbox.Errorf(sandbox.Exhausted, "no other node has room")
	for _, name := range p.names {
		switch {
		case name == node || p.nodes.away[name] || p.nodes.reportsFull[name]:
		case len(p.nodes.cpu[name].Lacks(needs.CPU)) > 0:
			err = noCPU()
		default:
			return name, nil
		}
	}
	return "", err
}

type images struct{}

func (images) Resolve(_ context.Context, _ sandbox.TenantID, template string) (string, error) {
	if template != "base" {
		return "", sandbox.Errorf(sandbox.NotFound, "there is no such template")
	}
	return savedImage, nil
}

// checkedStore fails the test on a forbidden state transition, and counts writes.
type checkedStore struct {
	sandbox.Store
	t      *testing.T
	writes atomic.Int64
	states sync.Map // the States of each Sandbox, by ID: a string of them
	// renewed has the time of each Node's last renewal, by name.
	renewed sync.Map
	// inserts counts the Snapshots that were recorded.
	inserts atomic.Int64
	// reads counts the reads of single Sandboxes.
	reads atomic.Int64
	// blind has the records of Nodes fail.
	blind atomic.Bool
	// forgets has the next update find no record, as after a crash of the database.
	forgets atomic.Bool
	// uncertain has updates that have a Sandbox run take effect and fail, as if the database were
	// lost while it commits. It runs in between.
	uncertain atomic.Pointer[func()]
	// lasts is how many more reads and updates of Sandboxes succeed before the database is
	// away; nil: all of them.
	lasts atomic.Pointer[atomic.Int64]
	// onVolumesLeft runs once the Volumes that are left were read, onRehome before one moves;
	// its error fails the call.
	onVolumesLeft atomic.Pointer[func()]
	onStatesLeft  atomic.Pointer[func()] // runs once the states that are left were read
	onRehome      atomic.Pointer[func(id string, from, to sandbox.VolumePlace) error]
}

func (s *checkedStore) VolumesLeft(ctx context.Context) ([]sandbox.Volume, error) {
	left, err := s.Store.VolumesLeft(ctx)
	if on := s.onVolumesLeft.Load(); on != nil {
		(*on)()
	}
	return left, err
}

func (s *checkedStore) StatesLeft(ctx context.Context, limit int) ([]sandbox.LeftState, error) {
	left, err := s.Store.StatesLeft(ctx, limit)
	if on := s.onStatesLeft.Load(); on != nil {
		(*on)()
	}
	return left, err
}

func (s *checkedStore) RehomeVolume(ctx context.Context, id string, from, to sandbox.VolumePlace) error {
	if on := s.onRehome.Load(); on != nil {
		if err := (*on)(id, from, to); err != nil {
			return err
		}
	}
	return s.Store.RehomeVolume(ctx, id, from, to)
}

func (s *checkedStore) Nodes(ctx context.Context) ([]sandbox.NodeRecord, error) {
	if s.blind.Load() {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the database is away")
	}
	nodes, err := s.Store.Nodes(ctx)
	for i, n := range nodes { // the database's clock is not that of the bubble
		if at, ok := s.renewed.Load(n.Name); ok {
			nodes[i].LeaseAge = time.Since(at.(time.Time))
		}
	}
	return nodes, err
}

func (s *checkedStore) RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error) {
	s.renewed.Store(n.Name, time.Now())
	return s.Store.RenewLease(ctx, n, life)
}

func (s *checkedStore) SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error) {
	s.reads.Add(1)
	if err := s.away(); err != nil {
		return sandbox.Sandbox{}, err
	}
	return s.Store.SandboxByID(ctx, id)
}

// away returns Unavailable once lasts is over.
func (s *checkedStore) away() error {
	if left := s.lasts.Load(); left != nil && left.Add(-1) < 0 {
		return sandbox.Errorf(sandbox.Unavailable, "the database is away")
	}
	return nil
}

func (s *checkedStore) InsertSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	s.inserts.Add(1)
	return s.Store.InsertSnapshot(ctx, snap)
}

func (s *checkedStore) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	s.writes.Add(1)
	if sb.State != sandbox.Starting || sb.Boot.Number != 1 || sb.Boot.ID == "" || sb.Boot.Node == "" {
		s.t.Errorf("inserted without the intent: %+v", sb)
	}
	return s.Store.InsertSandbox(ctx, sb)
}

func (s *checkedStore) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	s.writes.Add(1)
	if s.forgets.Swap(false) {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.NotFound, "no such sandbox")
	}
	if err := s.away(); err != nil {
		return sandbox.Sandbox{}, err
	}
	before, err := s.Store.SandboxByID(ctx, sb.ID)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	after, err := s.Store.UpdateSandbox(ctx, sb)
	if err != nil {
		return after, err
	}
	were, _ := s.states.Load(sb.ID)
	s.states.Store(sb.ID, fmt.Sprint(were, " ", sb.State))
	if err := before.To(sb.State); err != nil && before.State != sb.State {
		s.t.Errorf("a forbidden move: %v", err)
	}
	if sb.Boot.Number < before.Boot.Number {
		s.t.Errorf("the boot number fell from %d to %d", before.Boot.Number, sb.Boot.Number)
	}
	if before.State == sandbox.Paused && sb.State == sandbox.Resuming && sb.Boot.Number != before.Boot.Number+1 {
		s.t.Errorf("resuming as boot number %d after %d", sb.Boot.Number, before.Boot.Number)
	}
	if sb.State == sandbox.Paused && (sb.Boot.ID != "" || sb.Snapshot == "") {
		s.t.Errorf("paused as %+v", sb)
	}
	if (sb.Ended != nil) == sb.Live() {
		s.t.Errorf("a %s record with the termination record %v", sb.State, sb.Ended)
	}
	if lost := s.uncertain.Load(); lost != nil && sb.State == sandbox.Running {
		(*lost)()
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Unavailable, "the database was lost while it committed").WithCause(sandbox.ErrUncertain)
	}
	return after, nil
}

// world is a Manager with its Store and its Nodes.
type world struct {
	t     *testing.T
	store *checkedStore
	nodes *nodes
	m     *session.Manager
	stop  func()
	grace time.Duration // Config.NodeGrace of Managers

	secrets  sync.Map // open ones by tenant and name
	imported imported
	events   []sandbox.Event
}

// imported records the images that come with Snapshots, or fails if a test sets an error.
type imported struct {
	kept, dropped   []string // TENANT TEMPLATE VERSION, and VERSION
	onAdmit, onKeep error
}

func (i *imported) Admit(context.Context, sandbox.TenantID, string) error { return i.onAdmit }

func (i *imported) Keep(_ context.Context, tenant sandbox.TenantID, template, version string) error {
	if i.onKeep == nil {
		i.kept = append(i.kept, string(tenant)+" "+template+" "+version)
	}
	return i.onKeep
}

func (i *imported) Drop(_ context.Context, version string) error {
	i.dropped = append(i.dropped, version)
	return nil
}

const local = "local"

// newWorld makes a Manager over an empty Store and the named Nodes; without names over one
// called local.
func newWorld(t *testing.T, names ...string) *world {
	if len(names) == 0 {
		names = []string{local}
	}
	w := &world{t: t, store: &checkedStore{Store: sqlitetest.Open(t), t: t}, nodes: newNodes(names...), stop: func() {}}
	for _, name := range names {
		w.lease(name, 24*time.Hour*365)
	}
	w.m = w.manager(w.store, w.nodes)
	return w
}

func (w *world) lease(node string, d time.Duration) {
	if _, err := w.store.RenewLease(w.t.Context(), sandbox.NodeRecord{Name: node, Engine: "fake"}, d); err != nil {
		w.t.Fatal(err)
	}
}

// suspensionsEvery and nodesEvery are longer than the default: days pass in some tests.
const suspensionsEvery, nodesEvery = time.Minute, time.Minute

func (w *world) manager(store sandbox.Store, n ports) *session.Manager {
	var names []string
	for name := range w.nodes.boots {
		names = append(names, name)
	}
	slices.Sort(names)
	return session.New(store, n, placed{names, w.nodes}, images{}, session.Config{
		Engine: "fake", SuspensionsEvery: suspensionsEvery, NodesEvery: nodesEvery, NodeGrace: w.grace, LayerBytes: layerRoom,
		Imported:    &w.imported,
		Event:       func(e sandbox.Event) { w.events = append(w.events, e) },
		AccessToken: func(id string) string { return "token of " + id },
		OpenSecret: func(_ context.Context, tenant sandbox.TenantID, name string) (sandbox.OpenSecret, error) {
			v, ok := w.secrets.Load(string(tenant) + " " + name)
			if !ok {
				return sandbox.OpenSecret{}, sandbox.Errorf(sandbox.NotFound, "no such secret")
			}
			return v.(sandbox.OpenSecret), nil
		},
		Authority: func(id string) (string, string, error) { return "authority of " + id, "key of " + id, nil },
	})
}

// run runs the Manager until stop.
func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.m.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run = %v", err)
		}
	})
}

func (w *world) close() {
	w.stop()
	if err := w.store.Close(); err != nil {
		w.t.Errorf("Close: %v", err)
	}
}

// in runs a test in a synctest bubble, with a clock of its own.
func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		test(t, w)
		synctest.Wait()
		w.consistent()
	})
}

func (w *world) create(tenant sandbox.TenantID, req sandbox.CreateRequest) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.m.Create(w.t.Context(), tenant, req)
	if err != nil {
		w.t.Fatalf("Create: %v", err)
	}
	return sb
}

// pass advances the clock, and then waits for the work that has become due. Without the
// wait a test could see that work half done.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) record(id string) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.store.SandboxByID(context.WithoutCancel(w.t.Context()), id)
	if err != nil {
		w.t.Fatalf("record %s: %v", id, err)
	}
	return sb
}

// consistent fails the test unless Boots and running records match one to one, and each
// saved state is a Snapshot that is kept or in use.
func (w *world) consistent() {
	w.t.Helper()
	records, err := w.store.SandboxesNotEnded(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	running := map[sandbox.BootRef]bool{}
	needed := map[string]bool{} // true: by a paused Sandbox
	for _, sb := range records {
		needed[sb.Snapshot] = needed[sb.Snapshot] || sb.State == sandbox.Paused
		if sb.State == sandbox.Paused {
			continue
		}
		if sb.State != sandbox.Running {
			w.t.Errorf("%s is still %s", sb.ID, sb.State)
		}
		if w.nodes.still(sb.Boot.ID) {
			w.t.Errorf("the boot of %s stands still", sb.ID)
		}
		running[sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}] = true
	}
	for _, b := range w.nodes.all() {
		if !running[b.BootRef] {
			w.t.Errorf("the boot %+v belongs to no record", b.BootRef)
		}
		delete(running, b.BootRef)
	}
	for ref := range running {
		w.t.Errorf("the record of %+v has no boot", ref)
	}
	w.consistentSaved(needed)
	w.consistentVolumes()
}

// consistentSaved compares Snapshots with the saved states. needed are the Snapshots that
// Sandboxes refer to.
func (w *world) consistentSaved(needed map[string]bool) {
	w.t.Helper()
	if left, err := w.store.SnapshotsLeft(w.t.Context()); err != nil || len(left) != 0 {
		w.t.Errorf("snapshots are left: %+v, %v", left, err)
	}
	kept := w.nodes.kept()
	var counted sandbox.QuotaUse
	for query := (sandbox.SnapshotQuery{}); ; {
		page, err := w.store.ListSnapshots(w.t.Context(), "t", query)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, snap := range page.Snapshots {
			if !kept[snap.ID] {
				w.t.Errorf("the snapshot %s has no bytes", snap.ID)
			}
			if _, ok := needed[snap.ID]; !ok && !snap.Kept {
				w.t.Errorf("nobody needs the snapshot %s", snap.ID)
			}
			switch { // layers do not count
			case snap.Layer != "":
			case snap.Kept:
				counted.Snapshots++
				fallthrough
			default:
				counted.SnapshotBytes += snap.Bytes
			}
			delete(kept, snap.ID)
			delete(needed, snap.ID)
		}
		if query.Cursor = page.Next; page.Next == "" {
			if query.Layers {
				break
			}
			query.Layers = true
		}
	}
	_, _, used, err := w.store.QuotaOf(w.t.Context(), "t")
	if err != nil || used.Snapshots != counted.Snapshots || used.SnapshotBytes != counted.SnapshotBytes {
		w.t.Errorf("the quota counts %d snapshots that are kept, %d bytes of all; there are %d, %d, %v",
			used.Snapshots, used.SnapshotBytes, counted.Snapshots, counted.SnapshotBytes, err)
	}
	for id := range kept {
		w.t.Errorf("%s is saved and no snapshot", id)
	}
	for id, paused := range needed {
		if paused {
			w.t.Errorf("a sandbox is paused in the snapshot %s, which is not there", id)
		}
	}
}

// slowStarts delays each start from now on, and counts them.
func (w *world) slowStarts(takes time.Duration) *atomic.Int64 {
	starts := new(atomic.Int64)
	w.nodes.fail(func(f *faults) {
		f.onStart = func(ctx context.Context, _ string, _ sandbox.StartRequest) error {
			starts.Add(1)
			select {
			case <-time.After(takes):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
	})
	return starts
}
