// Package nodetest is the contract of sandbox.Nodes as a test suite, for a Node in this
// process or behind a connection.
package nodetest

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// World is one Node without Boots, whose Engine can pause.
type World struct {
	Name  string // of the Node
	Image string // that Boots can start from
	sandbox.NodeBoots
	sandbox.NodeSaves
	sandbox.NodeChanges
	sandbox.NodeVolumes
	// Dialer, Reports and Files are nil if Boots have no content, or Volumes no files.
	Dialer  sandbox.BootDialer
	Reports sandbox.NodeReports
	Files   sandbox.VolumeFiles
	// Echo starts an echo on port 8000 of a Boot; nil: each has one.
	Echo func(bootID string)
	// Replicate replicates all saved states; nil: that happens by itself, or, with
	// NoReplicas, never.
	Replicate  func()
	NoReplicas bool
	// Remember puts a value into the memory of a Boot, and Recall returns it.
	Remember func(bootID, value string)
	Recall   func(bootID string) string
	// Need makes a saved state need one more CPU feature.
	Need func(snapshot, feature string)
}

// world is a World with helpers.
type world struct {
	World
	t *testing.T
}

// elsewhere is the name of a Node that does not exist.
const elsewhere = "elsewhere"

// Run checks the contract. open is called once per case and registers its own cleanup.
func Run(t *testing.T, open func(t *testing.T) World) {
	for name, check := range map[string]func(*world){
		"start and stop":          startAndStop,
		"start at once":           startAtOnce,
		"fencing":                 fencing,
		"update":                  update,
		"pause and resume":        pauseAndResume,
		"save while it runs":      saveWhileItRuns,
		"save checks the owner":   saveChecksTheOwner,
		"save the files":          saveFiles,
		"export and import":       exportAndImport,
		"carry changes":           carryChanges,
		"fetch a replica":         fetchReplica,
		"lacking CPU":             lackingCPU,
		"volumes":                 volumes,
		"volumes of a binding":    boundVolumes,
		"another node is silent":  anotherNode,
		"dial":                    dial,
		"reports":                 reports,
		"files of volumes":        files,
		"files of volumes refuse": filesRefuse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(&world{open(t), t})
		})
	}
}

func (w *world) request(tenant sandbox.TenantID) sandbox.StartRequest {
	return sandbox.StartRequest{
		BootID: sandbox.NewBootID(), Image: w.Image, Shape: sandbox.DefaultShape(),
		Binding: sandbox.Binding{
			SandboxID: sandbox.NewSandboxID(), BootNumber: 1, Tenant: tenant, Template: "base", AccessToken: "secret",
			Network: sandbox.NetworkPublic, Env: map[string]string{"KEY": "secret"}, Limits: sandbox.DefaultShape().Limits(), Timeline: 1, Revision: 1,
		},
	}
}

// after is the next start of the Sandbox of req, from a Snapshot.
func after(req sandbox.StartRequest, from string) sandbox.StartRequest {
	req.BootID, req.From = sandbox.NewBootID(), from
	req.Binding.BootNumber++
	return req
}

func (w *world) start(req sandbox.StartRequest) sandbox.BootRef {
	w.t.Helper()
	started, err := w.Start(w.t.Context(), w.Name, req)
	codetest.OK(w.t, "Start", err)
	return sandbox.BootRef{BootID: started.BootID, SandboxID: req.Binding.SandboxID, Number: req.Binding.BootNumber, Tenant: req.Binding.Tenant}
}

func (w *world) boots() []sandbox.BoundBoot {
	w.t.Helper()
	all, err := w.Boots(w.t.Context(), w.Name)
	codetest.OK(w.t, "Boots", err)
	return all
}

// save saves a Boot with its memory and returns the Snapshot's ID.
func (w *world) save(ref sandbox.BootRef, freeze bool) string {
	w.t.Helper()
	id := sandbox.NewSnapshotID()
	_, err := w.Save(w.t.Context(), w.Name, sandbox.SaveRequest{Boot: ref, Snapshot: id, Memory: true, Freeze: freeze})
	codetest.OK(w.t, "Save", err)
	return id
}

func (w *world) saved() []string {
	w.t.Helper()
	all, err := w.ListSaved(w.t.Context(), w.Name)
	codetest.OK(w.t, "ListSaved", err)
	slices.Sort(all)
	return all
}

func startAndStop(w *world) {
	t, ctx, req := w.t, w.t.Context(), w.request("t")
	started, err := w.Start(ctx, w.Name, req)
	if err != nil || started.BootID != req.BootID || started.Pooled {
		t.Fatalf("Start = %+v, %v", started, err)
	}
	if again, err := w.Start(ctx, w.Name, req); err != nil || again != started {
		t.Errorf("Start again = %+v, %v", again, err)
	}
	ref := sandbox.BootRef{BootID: started.BootID, SandboxID: req.Binding.SandboxID, Number: 1, Tenant: "t"}
	if got := w.boots(); len(got) != 1 || got[0] != (sandbox.BoundBoot{BootRef: ref, Revision: 1}) {
		t.Errorf("Boots = %+v, want %+v", got, ref)
	}
	bad := w.request("t")
	bad.From = sandbox.NewSnapshotID()
	codetest.Want(w.t, "Start from a state that is not there", codetest.ErrOf(w.Start(ctx, w.Name, bad)), sandbox.NotFound)
	for range 2 {
		codetest.OK(w.t, "Stop", w.Stop(ctx, w.Name, ref.BootID, 0))
	}
	codetest.OK(w.t, "Stop of an unknown one", w.Stop(ctx, w.Name, sandbox.NewBootID(), 0))
	if got := w.boots(); len(got) != 0 {
		t.Errorf("after Stop: %+v", got)
	}
}

func startAtOnce(w *world) {
	req := w.request("t")
	got := make([]sandbox.BootRef, 5)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = w.start(req) })
	}
	wg.Wait()
	for _, g := range got {
		if g != got[0] {
			w.t.Errorf("one request got %+v and %+v", got[0], g)
		}
	}
	if n := len(w.boots()); n != 1 {
		w.t.Errorf("%d boots", n)
	}
}

// A newer Boot of a Sandbox replaces an older one, which never comes back.
func fencing(w *world) {
	ctx, first := w.t.Context(), w.request("t")
	w.start(first)
	next := after(first, "")
	ref := w.start(next)
	if got := w.boots(); len(got) != 1 || got[0].BootRef != ref {
		w.t.Errorf("Boots = %+v, want %+v", got, ref)
	}
	codetest.Want(w.t, "Start of the older number", codetest.ErrOf(w.Start(ctx, w.Name, first)), sandbox.Conflict)
	codetest.OK(w.t, "Stop", w.Stop(ctx, w.Name, ref.BootID, 0))
	codetest.Want(w.t, "Start of the older number after the end", codetest.ErrOf(w.Start(ctx, w.Name, first)), sandbox.Conflict)
}

func update(w *world) {
	ctx, req := w.t.Context(), w.request("t")
	ref := w.start(req)
	b := req.Binding
	b.Revision, b.Network, b.Env = 2, sandbox.NetworkNone, map[string]string{"B": "2"}
	for range 2 { // idempotent
		codetest.OK(w.t, "Update", w.Update(ctx, w.Name, ref.BootID, b))
	}
	if got := w.boots(); len(got) != 1 || got[0].Revision != 2 {
		w.t.Errorf("Boots = %+v", got)
	}
	other, number := b, b
	other.SandboxID, number.BootNumber = sandbox.NewSandboxID(), 7
	codetest.Want(w.t, "an older revision", w.Update(ctx, w.Name, ref.BootID, req.Binding), sandbox.Conflict)
	codetest.Want(w.t, "an unknown sandbox's", w.Update(ctx, w.Name, ref.BootID, other), sandbox.NotFound)
	codetest.Want(w.t, "another number's", w.Update(ctx, w.Name, ref.BootID, number), sandbox.Conflict)
	codetest.Want(w.t, "another boot's", w.Update(ctx, w.Name, sandbox.NewBootID(), b), sandbox.Conflict)
	if got := w.boots(); len(got) != 1 || got[0].Revision != 2 {
		w.t.Errorf("after what was refused: %+v", got)
	}
}

func pauseAndResume(w *world) {
	t, ctx, req := w.t, w.t.Context(), w.request("t")
	ref := w.start(req)
	w.Remember(ref.BootID, "x")
	r := sandbox.SaveRequest{Boot: ref, Snapshot: sandbox.NewSnapshotID(), Memory: true, Freeze: true}
	saved, err := w.Save(ctx, w.Name, r)
	if err != nil || !saved.Memory || saved.Image != req.Image || saved.Bytes == 0 {
		t.Fatalf("Save = %+v, %v", saved, err)
	}
	if again, err := w.Save(ctx, w.Name, r); err != nil || again != saved {
		t.Errorf("Save again = %+v, %v, want %+v", again, err, saved)
	}
	codetest.OK(w.t, "Stop", w.Stop(ctx, w.Name, ref.BootID, 0))
	if all := w.saved(); !slices.Equal(all, []string{r.Snapshot}) {
		t.Errorf("ListSaved = %v", all)
	}
	next := after(req, r.Snapshot)
	resumed := w.start(next)
	if got := w.Recall(resumed.BootID); got != "x" {
		t.Errorf("it recalls %q", got)
	}
	if again := w.start(next); again != resumed {
		t.Errorf("Start again = %+v, want %+v", again, resumed)
	}
	for range 2 {
		codetest.OK(w.t, "DeleteSaved", w.DeleteSaved(ctx, w.Name, r.Snapshot))
	}
	if all := w.saved(); len(all) != 0 {
		t.Errorf("after DeleteSaved: %v", all)
	}
}

// A saved Boot runs on, and another Sandbox starts from the state.
func saveWhileItRuns(w *world) {
	t, ctx := w.t, w.t.Context()
	ref := w.start(w.request("t"))
	w.Remember(ref.BootID, "one")
	snapshot := w.save(ref, false)
	w.Remember(ref.BootID, "two")
	fork := w.request("t")
	fork.From = snapshot
	forked := w.start(fork)
	if a, b := w.Recall(ref.BootID), w.Recall(forked.BootID); a != "two" || b != "one" {
		t.Errorf("the first recalls %q, the fork %q", a, b)
	}
	if n := len(w.boots()); n != 2 {
		t.Errorf("%d boots", n)
	}
	_, err := w.Save(ctx, w.Name, sandbox.SaveRequest{Boot: forked, Snapshot: snapshot, Memory: true})
	codetest.Want(w.t, "Save as another's name", err, sandbox.Conflict)
	w.save(ref, true)
	for range 2 {
		codetest.OK(w.t, "Thaw", w.Thaw(ctx, w.Name, ref))
	}
}

// others are refs that differ from ref, with the Code of a call about each.
func others(ref, foreign sandbox.BootRef) map[string]struct {
	ref  sandbox.BootRef
	want sandbox.Code
} {
	tenant, number, unknown, boot := ref, ref, ref, ref
	tenant.Tenant, number.Number, unknown.SandboxID, boot.BootID = "other", 7, sandbox.NewSandboxID(), foreign.BootID
	type row = struct {
		ref  sandbox.BootRef
		want sandbox.Code
	}
	return map[string]row{
		"another tenant":     {tenant, sandbox.NotFound},
		"another number":     {number, sandbox.Conflict},
		"an unknown sandbox": {unknown, sandbox.NotFound},
		"another's boot":     {boot, sandbox.Conflict},
	}
}

func saveChecksTheOwner(w *world) {
	ctx := w.t.Context()
	ref, foreign := w.start(w.request("t")), w.start(w.request("other"))
	for what, tt := range others(ref, foreign) {
		_, err := w.Save(ctx, w.Name, sandbox.SaveRequest{Boot: tt.ref, Snapshot: sandbox.NewSnapshotID(), Memory: true})
		codetest.Want(w.t, "Save of "+what, err, tt.want)
		codetest.Want(w.t, "Thaw of "+what, w.Thaw(ctx, w.Name, tt.ref), tt.want)
	}
	_, err := w.Save(ctx, w.Name, sandbox.SaveRequest{Boot: ref, Snapshot: "../../etc", Memory: true})
	codetest.Want(w.t, "Save as a bad name", err, sandbox.Invalid)
	if all := w.saved(); len(all) != 0 {
		w.t.Errorf("what was refused left %v", all)
	}
}

// A saved state's files become a Snapshot, and nothing remains of the Boot used for it.
func saveFiles(w *world) {
	t, ctx, req := w.t, w.t.Context(), w.request("t")
	ref := w.start(req)
	w.Remember(ref.BootID, "x")
	from := w.save(ref, false)
	r := sandbox.FilesRequest{Tenant: "t", From: from, Image: req.Image, Shape: req.Shape, Snapshot: sandbox.NewSnapshotID()}
	saved, err := w.SaveFiles(ctx, w.Name, r)
	if err != nil || saved.Memory || saved.Image != req.Image {
		t.Fatalf("SaveFiles = %+v, %v", saved, err)
	}
	if got := w.boots(); len(got) != 1 || got[0].BootRef != ref {
		t.Errorf("Boots = %+v", got)
	}
	if got := w.Recall(w.start(after(req, r.Snapshot)).BootID); got != "" {
		t.Errorf("it recalls %q", got)
	}
	for what, tt := range map[string]struct {
		change func(*sandbox.FilesRequest)
		code   sandbox.Code
	}{
		"a bad origin":      {func(r *sandbox.FilesRequest) { r.From = "x" }, sandbox.Invalid},
		"a bad name":        {func(r *sandbox.FilesRequest) { r.Snapshot = "../x" }, sandbox.Invalid},
		"a bad shape":       {func(r *sandbox.FilesRequest) { r.Shape.MemoryBytes = 0 }, sandbox.Invalid},
		"an unknown origin": {func(r *sandbox.FilesRequest) { r.From = sandbox.NewSnapshotID() }, sandbox.NotFound},
		"another image":     {func(r *sandbox.FilesRequest) { r.Image = "sha256:another" }, sandbox.Conflict},
	} {
		bad := r
		bad.Snapshot = sandbox.NewSnapshotID()
		tt.change(&bad)
		codetest.Want(w.t, "SaveFiles with "+what, codetest.ErrOf(w.SaveFiles(ctx, w.Name, bad)), tt.code)
	}
	want := []string{from, r.Snapshot}
	slices.Sort(want)
	if all := w.saved(); !slices.Equal(all, want) {
		t.Errorf("ListSaved = %v, want %v", all, want)
	}
}

// A state that needs CPU features which the Node lacks is refused, with their names.
func lackingCPU(w *world) {
	const feature = "imaginary"
	t, ctx, req := w.t, w.t.Context(), w.request("t")
	ref := w.start(req)
	snapshot := sandbox.NewSnapshotID()
	saved, err := w.Save(ctx, w.Name, sandbox.SaveRequest{Boot: ref, Snapshot: snapshot, Memory: true})
	if err != nil || saved.CPU == "" || saved.CPU.Check() != nil {
		t.Fatalf("Save = %+v, %v, want its CPU features", saved, err)
	}
	before := w.saved()
	w.Need(snapshot, feature)
	other := w.request("t")
	other.From = snapshot
	_, startErr := w.Start(ctx, w.Name, other)
	var file bytes.Buffer
	codetest.OK(t, "ExportSaved", w.ExportSaved(ctx, w.Name, snapshot, false, &file))
	errs := map[string]error{
		"Start":       startErr,
		"ImportSaved": codetest.ErrOf(w.ImportSaved(ctx, w.Name, "t", sandbox.NewSnapshotID(), "", &file)),
	}
	if !w.NoReplicas {
		if w.Replicate != nil {
			w.Replicate()
		}
		needs := sandbox.NewCPUFeatures(append(saved.CPU.Names(), feature)...)
		r := sandbox.FetchRequest{Tenant: "t", From: snapshot, Image: req.Image, Snapshot: sandbox.NewSnapshotID(), CPU: needs}
		errs["FetchSaved"] = codetest.ErrOf(w.FetchSaved(ctx, w.Name, r))
	}
	for call, err := range errs {
		codetest.Want(t, call, err, sandbox.Conflict)
		if !errors.Is(err, sandbox.ErrCPU) || !strings.Contains(err.Error(), feature) {
			t.Errorf("%s = %v, want one that names %s", call, err, feature)
		}
	}
	if all := w.saved(); !slices.Equal(all, before) {
		t.Errorf("ListSaved = %v, want %v", all, before)
	}
	if got := w.boots(); len(got) != 1 || got[0].BootRef != ref {
		t.Errorf("Boots = %+v", got)
	}
}

// A state is made from the replica of another one, which may be gone.
func fetchReplica(w *world) {
	t, ctx, req := w.t, w.t.Context(), w.request("t")
	ref := w.start(req)
	w.Remember(ref.BootID, "x")
	r := sandbox.FetchRequest{Tenant: "t", From: w.save(ref, false), Image: req.Image, Snapshot: sandbox.NewSnapshotID()}
	if w.NoReplicas {
		codetest.Want(t, "FetchSaved without replicas", codetest.ErrOf(w.FetchSaved(ctx, w.Name, r)), sandbox.Unsupported)
		return
	}
	if w.Replicate != nil {
		w.Replicate()
	}
	codetest.OK(t, "DeleteSaved", w.DeleteSaved(ctx, w.Name, r.From))
	saved, err := w.FetchSaved(ctx, w.Name, r)
	if err != nil || !saved.Memory || saved.Image != req.Image {
		t.Fatalf("FetchSaved = %+v, %v", saved, err)
	}
	if got := w.Recall(w.start(after(req, r.Snapshot)).BootID); got != "x" {
		t.Errorf("what starts from it recalls %q", got)
	}
	for name, tt := range map[string]struct {
		change func(*sandbox.FetchRequest)
		code   sandbox.Code
	}{
		"a bad origin":      {func(r *sandbox.FetchRequest) { r.From = "x" }, sandbox.Invalid},
		"a bad name":        {func(r *sandbox.FetchRequest) { r.Snapshot = "../x" }, sandbox.Invalid},
		"an unknown origin": {func(r *sandbox.FetchRequest) { r.From = sandbox.NewSnapshotID() }, sandbox.NotFound},
		"another tenant":    {func(r *sandbox.FetchRequest) { r.Tenant = "u" }, sandbox.NotFound},
		"a name in use":     {func(*sandbox.FetchRequest) {}, sandbox.Conflict},
	} {
		bad := r
		if name != "a name in use" {
			bad.Snapshot = sandbox.NewSnapshotID()
		}
		tt.change(&bad)
		codetest.Want(t, "FetchSaved with "+name, codetest.ErrOf(w.FetchSaved(ctx, w.Name, bad)), tt.code)
	}
	if all := w.saved(); !slices.Equal(all, []string{r.Snapshot}) {
		t.Errorf("ListSaved = %v, want %s", all, r.Snapshot)
	}
}

// A state is carried as its difference from an earlier one.
func carryChanges(w *world) {
	t, ctx, req := w.t, w.t.Context(), w.request("t")
	ref := w.start(req)
	w.Remember(ref.BootID, "x")
	var base, changes bytes.Buffer
	first := w.save(ref, false)
	codetest.OK(t, "ExportBase", w.ExportBase(ctx, w.Name, first, &base))
	codetest.OK(t, "KeepBase", w.KeepBase(ctx, w.Name, first, &base))
	w.Remember(ref.BootID, "y")
	second := w.save(ref, false)
	codetest.OK(t, "ExportChanges", w.ExportChanges(ctx, w.Name, second, first, &changes))
	to := sandbox.ChangesRequest{Snapshot: sandbox.NewSnapshotID(), Base: first}
	if saved, err := w.ImportChanges(ctx, w.Name, "other", to, &changes); err != nil || !saved.Memory || saved.Image != req.Image {
		t.Fatalf("ImportChanges = %+v, %v", saved, err)
	}
	other := w.request("other")
	other.From = to.Snapshot
	if got := w.Recall(w.start(other).BootID); got != "y" {
		t.Errorf("what starts from it recalls %q", got)
	}
	before := w.saved()
	to.Snapshot = sandbox.NewSnapshotID()
	codetest.Want(t, "ExportChanges from a base that was used", w.ExportChanges(ctx, w.Name, second, first, io.Discard), sandbox.NotFound)
	codetest.Want(t, "ImportChanges to a base that was used", codetest.ErrOf(w.ImportChanges(ctx, w.Name, "t", to, strings.NewReader("x"))), sandbox.NotFound)
	codetest.Want(t, "ExportBase of nothing", w.ExportBase(ctx, w.Name, sandbox.NewSnapshotID(), io.Discard), sandbox.NotFound)
	codetest.Want(t, "KeepBase as a bad name", w.KeepBase(ctx, w.Name, "../x", strings.NewReader("x")), sandbox.Invalid)
	codetest.OK(t, "KeepBase", w.KeepBase(ctx, w.Name, first, strings.NewReader("x")))
	codetest.Want(t, "ImportChanges of nonsense", codetest.ErrOf(w.ImportChanges(ctx, w.Name, "t", to, strings.NewReader("nonsense"))), sandbox.Invalid)
	if all := w.saved(); !slices.Equal(all, before) {
		t.Errorf("what was refused changed %v to %v", before, all)
	}
}

func exportAndImport(w *world) {
	t, ctx, req := w.t, w.t.Context(), w.request("t")
	ref := w.start(req)
	w.Remember(ref.BootID, "x")
	snapshot, to := w.save(ref, false), sandbox.NewSnapshotID()
	var file bytes.Buffer
	codetest.OK(w.t, "ExportSaved", w.ExportSaved(ctx, w.Name, snapshot, false, &file))
	if saved, err := w.ImportSaved(ctx, w.Name, "other", to, "", bytes.NewReader(file.Bytes())); err != nil || !saved.Memory || saved.Image != req.Image {
		t.Errorf("ImportSaved = %+v, %v", saved, err)
	}
	other := w.request("other")
	other.From = to
	if got := w.Recall(w.start(other).BootID); got != "x" {
		t.Errorf("what starts from it recalls %q", got)
	}
	before := w.saved()
	codetest.Want(w.t, "ExportSaved of nothing", w.ExportSaved(ctx, w.Name, sandbox.NewSnapshotID(), false, io.Discard), sandbox.NotFound)
	codetest.Want(w.t, "ImportSaved as a bad name", codetest.ErrOf(w.ImportSaved(ctx, w.Name, "t", "../x", "", bytes.NewReader(file.Bytes()))), sandbox.Invalid)
	codetest.Want(w.t, "ImportSaved as a name in use", codetest.ErrOf(w.ImportSaved(ctx, w.Name, "t", to, "", bytes.NewReader(file.Bytes()))), sandbox.Conflict)
	codetest.Want(w.t, "ImportSaved of nonsense", codetest.ErrOf(w.ImportSaved(ctx, w.Name, "t", sandbox.NewSnapshotID(), "", strings.NewReader("nonsense"))), sandbox.Invalid)
	if all := w.saved(); !slices.Equal(all, before) {
		t.Errorf("what was refused changed %v to %v", before, all)
	}
}

func (w *world) volume(tenant sandbox.TenantID) sandbox.VolumeSpec {
	w.t.Helper()
	v := sandbox.VolumeSpec{ID: sandbox.NewVolumeID(), Tenant: tenant, MaxBytes: 1 << 20}
	codetest.OK(w.t, "CreateVolume", w.CreateVolume(w.t.Context(), w.Name, v))
	return v
}

func volumes(w *world) {
	t, ctx := w.t, w.t.Context()
	v := w.volume("t")
	v.MaxBytes = 2 << 20
	codetest.OK(w.t, "CreateVolume again", w.CreateVolume(ctx, w.Name, v))
	uses, err := w.ListVolumes(ctx, w.Name)
	if err != nil || len(uses) != 1 || uses[0].ID != v.ID || uses[0].Files != 0 {
		t.Errorf("ListVolumes = %+v, %v", uses, err)
	}
	for range 2 {
		codetest.OK(w.t, "DeleteVolume", w.DeleteVolume(ctx, w.Name, v.ID))
	}
	if uses, err := w.ListVolumes(ctx, w.Name); err != nil || len(uses) != 0 {
		t.Errorf("after DeleteVolume: %+v, %v", uses, err)
	}
}

func boundVolumes(w *world) {
	own, foreign := w.volume("t"), w.volume("mallory")
	gone := own
	gone.ID = sandbox.NewVolumeID()
	at := func(v sandbox.VolumeSpec, path string) sandbox.VolumeBinding {
		return sandbox.VolumeBinding{VolumeSpec: v, Path: path}
	}
	elsewhere := at(own, "/data")
	elsewhere.Home = "away"
	for what, tt := range map[string]struct {
		volumes []sandbox.VolumeBinding
		code    sandbox.Code
	}{
		"another tenant's volume":    {[]sandbox.VolumeBinding{at(foreign, "/data")}, sandbox.NotFound},
		"one that is gone":           {[]sandbox.VolumeBinding{at(gone, "/data")}, sandbox.NotFound},
		"one of a node that is away": {[]sandbox.VolumeBinding{elsewhere}, sandbox.Unavailable},
		"one over the system":        {[]sandbox.VolumeBinding{at(own, "/usr/lib")}, sandbox.Invalid},
		"two at one path":            {[]sandbox.VolumeBinding{at(own, "/data"), at(own, "/data")}, sandbox.Invalid},
	} {
		req := w.request("t")
		req.Binding.Volumes = tt.volumes
		codetest.Want(w.t, "Start with "+what, codetest.ErrOf(w.Start(w.t.Context(), w.Name, req)), tt.code)
	}
	if n := len(w.boots()); n != 0 {
		w.t.Errorf("what was refused left %d boots", n)
	}
}

func anotherNode(w *world) {
	ctx, req := w.t.Context(), w.request("t")
	ref := w.start(req)
	v := w.volume("t")
	save := sandbox.SaveRequest{Boot: ref, Snapshot: sandbox.NewSnapshotID()}
	for what, err := range map[string]error{
		"Start":         codetest.ErrOf(w.Start(ctx, elsewhere, w.request("t"))),
		"Update":        w.Update(ctx, elsewhere, ref.BootID, req.Binding),
		"Stop":          w.Stop(ctx, elsewhere, ref.BootID, 0),
		"Boots":         codetest.ErrOf(w.Boots(ctx, elsewhere)),
		"Traffic":       codetest.ErrOf(w.Traffic(ctx, elsewhere)),
		"Usage":         codetest.ErrOf(w.Usage(ctx, elsewhere, ref)),
		"Save":          codetest.ErrOf(w.Save(ctx, elsewhere, save)),
		"SaveFiles":     codetest.ErrOf(w.SaveFiles(ctx, elsewhere, sandbox.FilesRequest{Tenant: "t"})),
		"FetchSaved":    codetest.ErrOf(w.FetchSaved(ctx, elsewhere, sandbox.FetchRequest{Tenant: "t"})),
		"Thaw":          w.Thaw(ctx, elsewhere, ref),
		"DeleteSaved":   w.DeleteSaved(ctx, elsewhere, save.Snapshot),
		"ListSaved":     codetest.ErrOf(w.ListSaved(ctx, elsewhere)),
		"ExportSaved":   w.ExportSaved(ctx, elsewhere, save.Snapshot, false, io.Discard),
		"ImportSaved":   codetest.ErrOf(w.ImportSaved(ctx, elsewhere, "t", save.Snapshot, "", strings.NewReader("x"))),
		"ExportBase":    w.ExportBase(ctx, elsewhere, save.Snapshot, io.Discard),
		"KeepBase":      w.KeepBase(ctx, elsewhere, save.Snapshot, strings.NewReader("x")),
		"ExportChanges": w.ExportChanges(ctx, elsewhere, save.Snapshot, save.Snapshot, io.Discard),
		"ImportChanges": codetest.ErrOf(w.ImportChanges(ctx, elsewhere, "t", sandbox.ChangesRequest{Snapshot: save.Snapshot, Base: save.Snapshot}, strings.NewReader("x"))),
		"CreateVolume":  w.CreateVolume(ctx, elsewhere, v),
		"DeleteVolume":  w.DeleteVolume(ctx, elsewhere, v.ID),
		"ListVolumes":   codetest.ErrOf(w.ListVolumes(ctx, elsewhere)),
	} {
		codetest.Want(w.t, what, err, sandbox.Unavailable)
	}
	if w.Dialer != nil {
		codetest.Want(w.t, "Dial", codetest.ErrOf(w.Dialer.Dial(ctx, elsewhere, ref, 8000)), sandbox.Unavailable)
		codetest.Want(w.t, "NetworkLog", codetest.ErrOf(w.Reports.NetworkLog(ctx, elsewhere, ref)), sandbox.Unavailable)
		codetest.Want(w.t, "Stats", codetest.ErrOf(w.Reports.Stats(ctx, elsewhere)), sandbox.Unavailable)
		of := sandbox.VolumeRef{ID: v.ID, Tenant: "t"}
		codetest.Want(w.t, "StatVolumeFile", codetest.ErrOf(w.Files.StatVolumeFile(ctx, elsewhere, of, "/")), sandbox.Unavailable)
	}
	if got := w.boots(); len(got) != 1 || got[0].BootRef != ref {
		w.t.Errorf("Boots = %+v", got)
	}
}

func dial(w *world) {
	if w.Dialer == nil {
		w.t.Skip("there is nothing inside of its boots")
	}
	t, ctx := w.t, w.t.Context()
	ref, foreign := w.start(w.request("t")), w.start(w.request("other"))
	if w.Echo != nil {
		w.Echo(ref.BootID)
	}
	conn, err := w.Dialer.Dial(ctx, w.Name, ref, 8000)
	codetest.OK(w.t, "Dial", err)
	defer conn.Close()
	buf := make([]byte, 5)
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Error(err)
	} else if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "hello" {
		t.Errorf("echo = %q, %v", buf, err)
	}
	for what, tt := range others(ref, foreign) {
		codetest.Want(w.t, "Dial of "+what, codetest.ErrOf(w.Dialer.Dial(ctx, w.Name, tt.ref, 8000)), tt.want)
	}
	codetest.OK(w.t, "Stop", w.Stop(ctx, w.Name, ref.BootID, 0))
	codetest.Want(w.t, "Dial of a stopped one", codetest.ErrOf(w.Dialer.Dial(ctx, w.Name, ref, 8000)), sandbox.NotFound)
}

func reports(w *world) {
	if w.Reports == nil {
		w.t.Skip("it has no reports")
	}
	t, ctx := w.t, w.t.Context()
	ref, foreign := w.start(w.request("t")), w.start(w.request("other"))
	if stats, err := w.Reports.Stats(ctx, w.Name); err != nil || stats.Node != w.Name || stats.Bound != 2 || stats.Engine.Name == "" {
		t.Errorf("Stats = %+v, %v", stats, err)
	}
	codetest.OK(w.t, "NetworkLog", codetest.ErrOf(w.Reports.NetworkLog(ctx, w.Name, ref)))
	codetest.OK(w.t, "Usage", codetest.ErrOf(w.Usage(ctx, w.Name, ref)))
	for what, tt := range others(ref, foreign) {
		codetest.Want(w.t, "NetworkLog of "+what, codetest.ErrOf(w.Reports.NetworkLog(ctx, w.Name, tt.ref)), tt.want)
		codetest.Want(w.t, "Usage of "+what, codetest.ErrOf(w.Usage(ctx, w.Name, tt.ref)), tt.want)
	}
}

func files(w *world) {
	if w.Files == nil {
		w.t.Skip("it has no files of volumes")
	}
	t, ctx, v := w.t, w.t.Context(), w.volume("t")
	of := sandbox.VolumeRef{ID: v.ID, Tenant: "t"}
	made, err := w.Files.WriteVolumeFile(ctx, w.Name, of, "/a/f", sandbox.VolumeFileChange{UID: new(uint32(1000)), Mode: new(uint32(0o640))}, true, strings.NewReader("text"))
	if err != nil || made.Path != "/a/f" || made.Type != sandbox.VolumeFileRegular || made.Bytes != 4 || made.UID != 1000 || made.Mode != 0o640 {
		t.Fatalf("WriteVolumeFile = %+v, %v", made, err)
	}
	if d, err := w.Files.MakeVolumeFolder(ctx, w.Name, of, "/d", sandbox.VolumeFileChange{}, false); err != nil || d.Type != sandbox.VolumeFileFolder || d.Mode != 0o755 {
		t.Errorf("MakeVolumeFolder = %+v, %v", d, err)
	}
	if f, err := w.Files.ChangeVolumeFile(ctx, w.Name, of, "/a/f", sandbox.VolumeFileChange{GID: new(uint32(7))}); err != nil || f.GID != 7 || f.UID != 1000 || f.Mode != 0o640 {
		t.Errorf("ChangeVolumeFile = %+v, %v", f, err)
	}
	if f, err := w.Files.StatVolumeFile(ctx, w.Name, of, "/a/f"); err != nil || f.GID != 7 || f.Bytes != 4 || !f.Modified.Equal(made.Modified) {
		t.Errorf("StatVolumeFile = %+v, %v", f, err)
	}
	var text bytes.Buffer
	if err := w.Files.ReadVolumeFile(ctx, w.Name, of, "/a/f", &text); err != nil || text.String() != "text" {
		t.Errorf("ReadVolumeFile = %q, %v", text.String(), err)
	}
	var paths []string
	all, err := w.Files.ListVolumeFolder(ctx, w.Name, of, "/", 2)
	for _, f := range all {
		paths = append(paths, f.Path)
	}
	if err != nil || !slices.Equal(paths, []string{"/a", "/a/f", "/d"}) {
		t.Errorf("ListVolumeFolder = %v, %v", paths, err)
	}
	if uses, err := w.ListVolumes(ctx, w.Name); err != nil || len(uses) != 1 || uses[0].Files != 3 || uses[0].Bytes < 4096 {
		t.Errorf("ListVolumes = %+v, %v", uses, err)
	}
	codetest.OK(w.t, "RemoveVolumeFile", w.Files.RemoveVolumeFile(ctx, w.Name, of, "/a"))
	codetest.Want(w.t, "StatVolumeFile of what is gone", codetest.ErrOf(w.Files.StatVolumeFile(ctx, w.Name, of, "/a/f")), sandbox.NotFound)
	codetest.OK(w.t, "DeleteVolume", w.DeleteVolume(ctx, w.Name, v.ID))
	codetest.Want(w.t, "StatVolumeFile in a deleted one", codetest.ErrOf(w.Files.StatVolumeFile(ctx, w.Name, of, "/d")), sandbox.NotFound)
}

func filesRefuse(w *world) {
	if w.Files == nil {
		w.t.Skip("it has no files of volumes")
	}
	ctx, v := w.t.Context(), w.volume("t")
	of, foreign := sandbox.VolumeRef{ID: v.ID, Tenant: "t"}, sandbox.VolumeRef{ID: v.ID, Tenant: "other"}
	none := sandbox.VolumeFileChange{}
	write := func(of sandbox.VolumeRef, path string, force bool, r io.Reader) error {
		return codetest.ErrOf(w.Files.WriteVolumeFile(ctx, w.Name, of, path, none, force, r))
	}
	codetest.OK(w.t, "WriteVolumeFile", write(of, "/f", false, strings.NewReader("text")))
	for _, tt := range []struct {
		what string
		err  error
		want sandbox.Code
	}{
		{"another tenant's read", w.Files.ReadVolumeFile(ctx, w.Name, foreign, "/f", io.Discard), sandbox.NotFound},
		{"another tenant's write", write(foreign, "/g", false, strings.NewReader("x")), sandbox.NotFound},
		{"another tenant's list", codetest.ErrOf(w.Files.ListVolumeFolder(ctx, w.Name, foreign, "/", 1)), sandbox.NotFound},
		{"a file that is not there", w.Files.ReadVolumeFile(ctx, w.Name, of, "/g", io.Discard), sandbox.NotFound},
		{"a folder as a file", w.Files.ReadVolumeFile(ctx, w.Name, of, "/", io.Discard), sandbox.Invalid},
		{"a file as a folder", codetest.ErrOf(w.Files.ListVolumeFolder(ctx, w.Name, of, "/f", 1)), sandbox.Invalid},
		{"a path that is not clean", write(of, "/a/../b", true, strings.NewReader("x")), sandbox.Invalid},
		{"a file that is there", write(of, "/f", false, strings.NewReader("x")), sandbox.Conflict},
		{"more than there is room for", write(of, "/g", false, strings.NewReader(strings.Repeat("x", 2<<20))), sandbox.TooLarge},
		{"a folder that is there", codetest.ErrOf(w.Files.MakeVolumeFolder(ctx, w.Name, of, "/f", none, false)), sandbox.Conflict},
		{"the root", w.Files.RemoveVolumeFile(ctx, w.Name, of, "/"), sandbox.Invalid},
	} {
		codetest.Want(w.t, tt.what, tt.err, tt.want)
	}
	var text bytes.Buffer
	if err := w.Files.ReadVolumeFile(ctx, w.Name, of, "/f", &text); err != nil || text.String() != "text" {
		w.t.Errorf("after what was refused the file has %q, %v", text.String(), err)
	}
}
