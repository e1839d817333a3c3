package sessiontest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// NodeRecordsWorld is a Store with the records of two Nodes: "home", which keeps the
// Templates, and "other".
type NodeRecordsWorld struct {
	Store       sandbox.Store
	Home, Other sandbox.NodeRecords // as each Node has them
}

// NodeRecords runs the suite of sandbox.NodeRecords.
func NodeRecords(t *testing.T, open func(*testing.T) NodeRecordsWorld) {
	for name, run := range map[string]func(*testing.T, NodeRecordsWorld){
		"lease": nodeLease, "leader": nodeLeader, "owner": nodeOwner,
		"image": nodeImage, "builds": nodeBuilds, "templates": nodeTemplates,
		"keys of copies": nodeCopyKeys, "copies": nodeCopies, "volumes": nodeVolumes,
	} {
		t.Run(name, func(t *testing.T) { run(t, open(t)) })
	}
}

func nodeLease(t *testing.T, w NodeRecordsWorld) {
	n := sandbox.NodeRecord{Name: "other", Holder: "1", Engine: "fake", Address: "https://10.0.0.1:9092", Version: "v1", FenceAfter: 75 * time.Second}
	got, err := w.Other.RenewLease(t.Context(), n, time.Minute)
	want := n
	want.Epoch, want.LeaseLeft = 1, time.Minute
	if err != nil || got != want {
		t.Errorf("RenewLease = %+v, %v", got, err)
	}
	all, err := w.Store.Nodes(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "other" || all[0].Holder != "1" || all[0].Address != n.Address || all[0].Engine != "fake" || all[0].Version != "v1" || all[0].FenceAfter != n.FenceAfter || all[0].LeaseLeft > time.Minute {
		t.Errorf("the records are %+v, %v", all, err)
	}
	if _, err := w.Store.RenewLease(t.Context(), n, -time.Second); err != nil {
		t.Fatal(err)
	}
	if err := w.Store.SetLost(t.Context(), n.Name, 0, true); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Other.RenewLease(t.Context(), n, time.Minute); err != nil || got.Epoch != 2 || got.LostEpoch != 1 {
		t.Errorf("RenewLease of a lost node = %+v, %v", got, err)
	}
	n.Holder = "2"
	if _, err := w.Other.RenewLease(t.Context(), n, time.Minute); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("RenewLease of another holder: %v", err)
	}
}

func nodeLeader(t *testing.T, w NodeRecordsWorld) {
	const role = "session-manager"
	if _, err := w.Other.LeaderOf(t.Context(), role); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("LeaderOf before one has led: %v", err)
	}
	claim := sandbox.LeaderClaim{Role: role, Holder: "h", Address: "https://10.0.0.2:9091"}
	if _, err := w.Store.Lead(t.Context(), claim, time.Hour); err != nil {
		t.Fatal(err)
	}
	got, err := w.Other.LeaderOf(t.Context(), role)
	if err != nil || got.LeaderClaim != claim || got.Epoch != 1 || got.Left > time.Hour || got.Left < 50*time.Minute {
		t.Errorf("LeaderOf = %+v, %v", got, err)
	}
	if err := w.Store.Resign(t.Context(), role, "h"); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Other.LeaderOf(t.Context(), role); err != nil || got.Left > 0 {
		t.Errorf("after it resigned LeaderOf = %+v, %v", got, err)
	}
}

// put adds a Snapshot.
func (w NodeRecordsWorld) put(t *testing.T, s sandbox.Snapshot) sandbox.Snapshot {
	t.Helper()
	s.ID, s.Tenant, s.SandboxID, s.CreatedAt = sandbox.NewSnapshotID(), "t", "i1", time.UnixMicro(1_700_000_000_000_000).UTC()
	s.Shape = sandbox.Shape{CPUs: 1, MemoryBytes: 1 << 30, DiskBytes: 1 << 30, Pids: 100}
	got, err := w.Store.InsertSnapshot(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func nodeOwner(t *testing.T, w NodeRecordsWorld) {
	ready := w.put(t, sandbox.Snapshot{State: sandbox.SnapshotReady, Node: "other", Bytes: 12})
	saving := w.put(t, sandbox.Snapshot{State: sandbox.SnapshotSaving, Node: "other"})
	got, err := w.Other.OwnerOf(t.Context(), "other", ready.ID)
	if err != nil || got != (sandbox.SavedOwner{Tenant: "t", Bytes: 12, CreatedAt: ready.CreatedAt}) {
		t.Errorf("OwnerOf = %+v, %v", got, err)
	}
	for name, id := range map[string]string{"one that is saved": saving.ID, "an unknown one": sandbox.NewSnapshotID()} {
		if got, err := w.Other.OwnerOf(t.Context(), "other", id); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("OwnerOf %s = %+v, %v", name, got, err)
		}
	}
	if got, err := w.Home.OwnerOf(t.Context(), "home", ready.ID); !errors.Is(err, sandbox.NotFound) || got != (sandbox.SavedOwner{}) {
		t.Errorf("OwnerOf a state on another node = %+v, %v", got, err)
	}
}

func nodeImage(t *testing.T, w NodeRecordsWorld) {
	snap := w.put(t, sandbox.Snapshot{State: sandbox.SnapshotReady, Node: "other", Image: "saved", Bytes: 12})
	got, err := w.Home.NeedsImage(t.Context(), "home", "saved")
	if err != nil || got.ID != snap.ID || got.Tenant != "t" || got.SandboxID != "i1" || got.Bytes != 0 {
		t.Errorf("NeedsImage = %+v, %v", got, err)
	}
	sb, err := w.Store.InsertSandbox(t.Context(), sandbox.Sandbox{
		ID: sandbox.NewSandboxID(), Tenant: "u", State: sandbox.Starting, Image: "running", CreatedAt: snap.CreatedAt, Shape: snap.Shape, Boot: sandbox.Boot{Number: 1, Node: "other"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.Home.NeedsImage(t.Context(), "home", "running"); err != nil || got.ID != "" || got.Tenant != "u" || got.SandboxID != sb.ID {
		t.Errorf("NeedsImage of a sandbox = %+v, %v", got, err)
	}
	if got, err := w.Home.NeedsImage(t.Context(), "home", "neither"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("NeedsImage of an image that nothing needs = %+v, %v", got, err)
	}
	for _, image := range []string{"saved", "running"} {
		if got, err := w.Other.NeedsImage(t.Context(), "other", image); err != nil || got.ID != "" || got.Tenant != "" || got.SandboxID != "" {
			t.Errorf("NeedsImage of what is %s for a node without templates = %+v, %v", image, got, err)
		}
	}
	if got, err := w.Other.NeedsImage(t.Context(), "other", "neither"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("NeedsImage of an image that nothing needs, for a node without templates = %+v, %v", got, err)
	}
}

func nodeBuilds(t *testing.T, w NodeRecordsWorld) {
	w.put(t, sandbox.Snapshot{State: sandbox.SnapshotReady, Node: "home", Memory: true, Build: "b"})
	for build, want := range map[string]int{"b": 1, "c": 0} {
		if got, err := w.Other.SnapshotsOfBuild(t.Context(), build); err != nil || got != want {
			t.Errorf("SnapshotsOfBuild(%s) = %d, %v, want %d", build, got, err, want)
		}
	}
}

func nodeTemplates(t *testing.T, w NodeRecordsWorld) {
	if err := w.Store.SetQuota(t.Context(), "t", &sandbox.Quota{TemplateBytes: 7, Sandboxes: 3}); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[sandbox.TenantID]int64{"t": 7, "u": 0} {
		if got, err := w.Home.TemplateBytes(t.Context(), "home", tenant); err != nil || got != want {
			t.Errorf("TemplateBytes(%s) = %d, %v, want %d", tenant, got, err, want)
		}
	}
	if got, err := w.Other.TemplateBytes(t.Context(), "other", "t"); !errors.Is(err, sandbox.Denied) || got != 0 {
		t.Errorf("TemplateBytes for a node without templates = %d, %v", got, err)
	}
}

func nodeCopyKeys(t *testing.T, w NodeRecordsWorld) {
	prefix := strings.Repeat("0a", 16)
	for i, of := range []sandbox.NodeRecords{w.Other, w.Home, w.Other} {
		kept, err := of.KeepCopyKey(t.Context(), prefix, fmt.Appendf(nil, "key %d", i))
		if err != nil || string(kept) != "key 0" {
			t.Errorf("KeepCopyKey number %d = %q, %v", i, kept, err)
		}
	}
	if kept, err := w.Home.KeepCopyKey(t.Context(), strings.Repeat("0b", 16), []byte("another")); err != nil || string(kept) != "another" {
		t.Errorf("KeepCopyKey of another prefix = %q, %v", kept, err)
	}
	for name, of := range map[string]string{"no prefix": "", "a path": "../x", "a short one": "0a", "a large one": strings.Repeat("0A", 16)} {
		if _, err := w.Other.KeepCopyKey(t.Context(), of, []byte("key")); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("KeepCopyKey of %s: %v", name, err)
		}
	}
	for name, sealed := range map[string][]byte{"none": nil, "a large one": make([]byte, 2000)} {
		if _, err := w.Other.KeepCopyKey(t.Context(), prefix, sealed); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("KeepCopyKey of the key %s: %v", name, err)
		}
	}
}

// storetest tests the rules of the Store. This suite tests what a Node and the Store send each other.
func nodeCopies(t *testing.T, w NodeRecordsWorld) {
	scope, err := w.Other.PackScope(t.Context())
	if same, storeErr := w.Store.PackScope(t.Context()); err != nil || storeErr != nil || scope == "" || scope != same {
		t.Errorf("PackScope = %q, %v; the store has %q, %v", scope, err, same, storeErr)
	}
	ready := w.put(t, sandbox.Snapshot{State: sandbox.SnapshotReady, Node: "other"})
	ref := sandbox.CopyRef{Snapshot: ready.ID, Prefix: strings.Repeat("0a", 16)}
	packs := []string{sandbox.PackName(ref.Prefix, strings.Repeat("1", 64)), sandbox.PackName(ref.Prefix, strings.Repeat("2", 64))}
	if _, err := w.Home.BeginCopy(t.Context(), "home", ref); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("BeginCopy by another node: %v", err)
	}
	attempt, err := w.Other.BeginCopy(t.Context(), "other", ref)
	if err != nil || attempt != (sandbox.CopyAttempt{CopyRef: ref, Number: 1}) {
		t.Fatalf("BeginCopy = %+v, %v", attempt, err)
	}
	use := sandbox.PackUse{CopyAttempt: attempt, Packs: packs[:1], Life: time.Minute}
	if refused, err := w.Other.UsePacks(t.Context(), "other", use); err != nil || len(refused) > 0 {
		t.Errorf("UsePacks = %v, %v", refused, err)
	}
	use.Packs, use.Shared = packs, true
	if refused, err := w.Other.UsePacks(t.Context(), "other", use); err != nil || !slices.Equal(refused, packs[1:]) {
		t.Errorf("UsePacks of a shared one = %v, %v", refused, err)
	}
	use.Life = 2 * sandbox.MaxPutLife
	if _, err := w.Other.UsePacks(t.Context(), "other", use); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("UsePacks for too long: %v", err)
	}
	if err := w.Other.CompleteCopy(t.Context(), "other", attempt); err != nil {
		t.Errorf("CompleteCopy: %v", err)
	}
	if prefix, err := w.Home.FindCopy(t.Context(), "t", ready.ID); err != nil || prefix != ref.Prefix {
		t.Errorf("FindCopy = %q, %v", prefix, err)
	}
	if prefix, err := w.Home.FindCopy(t.Context(), "u", ready.ID); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("FindCopy for another tenant = %q, %v", prefix, err)
	}
	abandoned := sandbox.AbandonedCopy{CopyRef: ref, Packs: packs}
	if err := w.Other.AbandonCopy(t.Context(), "other", abandoned); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("AbandonCopy of one that is needed: %v", err)
	}
	if err := w.Store.RetireSnapshot(t.Context(), ready.ID, false); err != nil {
		t.Fatal(err)
	}
	if err := w.Other.AbandonCopy(t.Context(), "other", abandoned); err != nil {
		t.Errorf("AbandonCopy: %v", err)
	}
	if left, err := w.Store.PacksLeft(t.Context(), 10); err != nil || !slices.Equal(left, packs[1:]) {
		t.Errorf("left are %v, %v", left, err)
	}
	if left, err := w.Store.CopiesLeft(t.Context(), 10); err != nil || !slices.Equal(left, []sandbox.CopyRef{ref}) {
		t.Errorf("left are %v, %v", left, err)
	}
}

func nodeVolumes(t *testing.T, w NodeRecordsWorld) {
	ctx := t.Context()
	volume := func(node string, state sandbox.VolumeState) sandbox.VolumeHome {
		t.Helper()
		id := sandbox.NewVolumeID()
		v, err := w.Store.InsertVolume(ctx, sandbox.Volume{ID: id, Tenant: "t", Name: "of_" + id[1:], State: state, Node: node, MaxBytes: 1 << 20, CreatedAt: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		return sandbox.VolumeHome{VolumeSpec: sandbox.VolumeSpec{ID: v.ID, Tenant: v.Tenant, MaxBytes: v.MaxBytes}, Node: node}
	}
	atHome, there := volume("home", sandbox.VolumeReady), volume("other", sandbox.VolumeReady)
	if _, err := w.Other.RenewLease(ctx, sandbox.NodeRecord{Name: "other", Holder: "h", Engine: "e", Address: "https://192.0.2.1:8443"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	there.Address = "https://192.0.2.1:8443"
	sb, err := w.Store.InsertSandbox(ctx, sandbox.Sandbox{
		ID: sandbox.NewSandboxID(), Tenant: "t", State: sandbox.Starting, CreatedAt: time.Now(), Shape: sandbox.DefaultShape(), Boot: sandbox.Boot{Number: 3, Node: "home"},
		Volumes: []sandbox.VolumeMount{{Volume: atHome.ID, Name: "a", Path: "/a"}, {Volume: there.ID, Name: "b", Path: "/b"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	at := sandbox.BootPlace{SandboxID: sb.ID, Number: 3, Node: "home"}
	for _, tt := range []struct {
		name string
		by   sandbox.NodeRecords
		node string
		want []sandbox.VolumeHome
	}{
		{"its own node", w.Home, "home", []sandbox.VolumeHome{atHome, there}},
		{"a node that stores one", w.Other, "other", []sandbox.VolumeHome{there}},
	} {
		if got, err := tt.by.VolumeHomes(ctx, tt.node, at); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("VolumeHomes for %s = %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
	for name, of := range map[string]sandbox.BootPlace{
		"an earlier boot":           {SandboxID: sb.ID, Number: 2, Node: "home"},
		"a boot on another node":    {SandboxID: sb.ID, Number: 3, Node: "other"},
		"an unknown sandbox":        {SandboxID: sandbox.NewSandboxID(), Number: 3, Node: "home"},
		"what is no sandbox":        {SandboxID: "../x", Number: 3, Node: "home"},
		"a sandbox without volumes": {SandboxID: w.sandbox(t).ID, Number: 1, Node: "other"},
	} {
		if got, err := w.Home.VolumeHomes(ctx, "home", of); !errors.Is(err, sandbox.NotFound) || len(got) != 0 {
			t.Errorf("VolumeHomes of %s = %+v, %v", name, got, err)
		}
	}
	if err := sb.To(sandbox.Stopping); err != nil {
		t.Fatal(err)
	}
	if sb, err = w.Store.UpdateSandbox(ctx, sb); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Home.VolumeHomes(ctx, "home", at); err != nil {
		t.Errorf("VolumeHomes of a boot that is being stopped: %v", err)
	}
	sb.Ended = &sandbox.TerminationRecord{Cause: sandbox.CauseReleased, At: time.Now()}
	if err := sb.To(sandbox.Ended); err != nil {
		t.Fatal(err)
	}
	if _, err = w.Store.UpdateSandbox(ctx, sb); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Home.VolumeHomes(ctx, "home", at); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("VolumeHomes of an ended one = %+v, %v", got, err)
	}
}

// sandbox inserts a running Sandbox without Volumes, on the other Node.
func (w NodeRecordsWorld) sandbox(t *testing.T) sandbox.Sandbox {
	t.Helper()
	sb, err := w.Store.InsertSandbox(t.Context(), sandbox.Sandbox{
		ID: sandbox.NewSandboxID(), Tenant: "t", State: sandbox.Starting, CreatedAt: time.Now(), Shape: sandbox.DefaultShape(), Boot: sandbox.Boot{Number: 1, Node: "other"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}
