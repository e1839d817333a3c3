package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// nodeOfNextGVisor returns the program cloud-sandbox after an upgrade of gVisor, with the
// program node beside it.
func nodeOfNextGVisor(t *testing.T) string {
	t.Helper()
	_, after := acrossGVisors(t)
	cmd := rig.Command("go", "build", "-o", filepath.Join(filepath.Dir(after), "node"), "../../cmd/node")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false") // as the Makefile does
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return after
}

// A node starts no build that the cluster's key has not signed. A node of a newer version
// fetches the signed build of an earlier one from S3 to continue what that has saved, and
// refuses a copy that was altered there.
func TestClusterSignedBuilds(t *testing.T) {
	rig.LacksEarlier(t, "its cluster signs no builds")
	f := aCluster(t)
	gateways := f.Gateways()
	c, ops := gateways.Client(t, "signed"), gateways.Operator(t)
	home, machine := f.Machine(rig.FleetHome), f.Machine(rig.FleetNode)
	drain := drainer(t, ops)
	// A sandbox that finds no other node is tried again only half a minute later.
	moveFrom := func(from, to string) {
		t.Helper()
		drain(to, false)
		takes(t, f, c, to)
		drain(from, true)
	}
	runsOn := func(m *rig.Machine, id string) {
		t.Helper()
		rig.Within(t, 3*rig.Patience, m.Name+" runs "+id, func() bool { _, here := m.Runs(id); return here })
	}
	next := nodeOfNextGVisor(t)
	present := machine.Bin
	t.Cleanup(func() {
		f.Halt(t, machine.Name)
		machine.Bin = present
		f.Start(t, machine.Name)
		f.Serves(t, machine.Name)
		drain(rig.FleetHome, false)
		drain(rig.FleetNode, false)
	})

	drain(rig.FleetNode, true)
	var ids []string
	for i := range 2 {
		ids = append(ids, placedOn(t, f, c, rig.FleetHome, rig.Body{"timeout_seconds": 900}))
		c.Run(t, ids[i], "python", fmt.Sprintf("x = %d", i), nil)
	}
	earlier := buildOf(t, home.Server, ids[0])
	lib := filepath.Join(machine.Data, "lib")

	f.Halt(t, machine.Name)
	if err := machine.Down(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(lib, earlier)); err != nil {
		t.Fatal(err)
	}
	machine.Bin = next
	f.Start(t, machine.Name)
	rig.Within(t, rig.Patience, "the node refuses its unsigned build", func() bool {
		return strings.Contains(machine.Log(), "is not trusted: it is not signed") && strings.Contains(machine.Log(), "was not signed here")
	})
	if left := machine.Processes(rig.SentryHost); len(left) > 0 {
		t.Errorf("a sentry host of an unsigned build runs: %v", left)
	}
	f.Forget(machine.Name)
	f.SignBuild(t, "--programs", filepath.Dir(next))
	f.Start(t, machine.Name)
	f.Serves(t, machine.Name)
	if _, err := os.Stat(filepath.Join(lib, earlier)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the earlier build is here already: %v", err)
	}

	moveFrom(rig.FleetHome, rig.FleetNode)
	for i, id := range ids {
		runsOn(machine, id)
		if got := c.Run(t, id, "python", "print(x)", nil); got.Stdout != fmt.Sprintln(i) {
			t.Errorf("on the node of the next version: %s", got)
		}
		if got := buildOf(t, machine.Server, id); got != earlier {
			t.Errorf("%s goes on in build %s, want %s", id, got, earlier)
		}
	}
	fresh := placedOn(t, f, c, machine.Name, rig.Body{"timeout_seconds": 900})
	if got := buildOf(t, machine.Server, fresh); got == earlier {
		t.Error("a new sandbox runs in the earlier build")
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+fresh, nil, nil)

	// Both move back. Then their build is lost on this node, and its copy altered.
	moveFrom(rig.FleetNode, rig.FleetHome)
	for _, id := range ids {
		runsOn(home, id)
	}
	rig.Within(t, rig.Patience, "the sentry host of the earlier build ends", func() bool { return len(machine.Processes(rig.SentryHost)) == 1 })
	if err := os.RemoveAll(filepath.Join(lib, earlier)); err != nil {
		t.Fatal(err)
	}
	for _, path := range objects(t, theCluster.s3.Dir) {
		if !strings.Contains(path, "/builds/programs/") {
			continue
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			raw[len(raw)/2] ^= 1
			err = os.WriteFile(path, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	moveFrom(rig.FleetHome, rig.FleetNode)
	rig.Within(t, 2*rig.Patience, "the altered copy is refused", func() bool {
		leader, _ := f.Lead(t)
		return strings.Contains(leader.Log(), "in the blob store is damaged or was changed")
	})
	for i, id := range ids {
		if got := c.Run(t, id, "python", "print(x)", nil); got.Stdout != fmt.Sprintln(i) {
			t.Errorf("after an altered build was refused: %s", got)
		}
		runsOn(home, id)
	}
	entries, err := os.ReadDir(lib)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == earlier || strings.HasPrefix(e.Name(), ".fetch-") {
			t.Errorf("of the altered copy %s is left", e.Name())
		}
	}
	f.SignBuild(t) // uploads it again
	drain(rig.FleetHome, false)
	takes(t, f, c, rig.FleetHome) // and the leader forgets when it wanted to try again
	drain(rig.FleetHome, true)
	for _, id := range ids {
		runsOn(machine, id)
		c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
	}

	// Running nodes learn of another key. The next start of a node needs its signatures.
	key := f.ReplaceBuildKey(t)
	for _, m := range []*rig.Machine{home, machine} {
		rig.Within(t, 2*rig.Patience, m.Name+" knows the new key", func() bool {
			raw, err := os.ReadFile(filepath.Join(m.Data, "saved", "build-key.json"))
			return err == nil && strings.Contains(string(raw), key)
		})
	}
	f.Halt(t, machine.Name)
	if err := machine.Down(); err != nil {
		t.Fatal(err)
	}
	f.Start(t, machine.Name)
	f.Serves(t, machine.Name)
	own, err := os.ReadFile(filepath.Join(lib, buildUnpacked(t, next), "build.json"))
	if err != nil || !strings.Contains(string(own), key) {
		t.Errorf("the node has started with the signature %s, %v", own, err)
	}
}

// buildUnpacked returns the name of the build that a program unpacks.
func buildUnpacked(t *testing.T, bin string) string {
	t.Helper()
	out, err := rig.Command(bin, "unpack-programs", t.TempDir()).Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(strings.TrimSpace(string(out)))
}
