package server

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

// The sentry host with real sentries. Building the test's binaries takes most
// of the time, so the cases share one rig.
func TestHost(t *testing.T) {
	r := newRig(t)
	for name, check := range map[string]func(*testing.T, *rig){
		"a boot answers and leaves nothing":     bootAndStop,
		"the sentry is nobody":                  sentryIsNobody,
		"limits are seen inside the cgroup":     limitsHold,
		"memory runs out for a process":         memoryRunsOut,
		"nobody makes room":                     nobodyMakesRoom,
		"a killed sentry is told and freed":     killedSentry,
		"a new host takes boots up":             newHostTakesUp,
		"bad requests leave nothing":            badRequests,
		"files do not count as memory":          filesAreNotMemory,
		"the disk quota holds and can be freed": diskQuota,
	} {
		t.Run(name, func(t *testing.T) {
			r := r.in(t)
			check(t, r)
			r.nothingLeft()
		})
	}
}

// in is the same rig for a subtest.
func (r *rig) in(t *testing.T) *rig {
	c := *r
	c.t = t
	return &c
}

// nothingLeft checks that no Boot, group, folder or socket is there.
func (r *rig) nothingLeft() {
	r.t.Helper()
	for _, b := range r.host.list() {
		must(r.t, r.host.stop(r.t.Context(), b.ID))
	}
	names, err := r.host.groups.Names()
	must(r.t, err)
	for _, dir := range []string{"boots", "sentries"} {
		entries, err := os.ReadDir(filepath.Join(r.cfg.Dir, dir))
		must(r.t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	uppers, err := os.ReadDir(r.cfg.UpperDir)
	must(r.t, err)
	if len(names) > 0 || len(uppers) > 0 || len(r.host.boots) > 0 {
		r.t.Errorf("left behind: %v, %v, %d boots", names, uppers, len(r.host.boots))
	}
}

func small() sandbox.Shape {
	s := sandbox.DefaultShape()
	s.MemoryBytes = 256 << 20
	return s
}

func bootAndStop(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, small())
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}
	must(t, r.host.stop(t.Context(), id))
	must(t, r.host.stop(t.Context(), id)) // unknown now: a success
}

func sentryIsNobody(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, small())
	for _, pid := range withDescendants(r.host.boots[id].record.Pid) {
		status := readStatus(t, pid)
		if status["Uid"] != "65534\t65534\t65534\t65534" || status["CapEff"] != "0000000000000000" || status["NoNewPrivs"] != "1" || status["Seccomp"] == "0" {
			t.Errorf("process %d has uid %q, capabilities %s, no-new-privs %s, seccomp %s", pid, status["Uid"], status["CapEff"], status["NoNewPrivs"], status["Seccomp"])
		}
	}
}

func limitsHold(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, small())
	b := r.host.boots[id]
	inside, err := b.group.Procs()
	must(t, err)
	in := map[int]bool{}
	for _, pid := range inside {
		in[pid] = true
	}
	for _, pid := range withDescendants(b.record.Pid) {
		if !in[pid] {
			t.Errorf("process %d of the sentry is outside its group", pid)
		}
	}
	u, err := r.host.usage(id)
	must(t, err)
	if u.MemoryBytes <= 0 || u.MemoryBytes > 64<<20 || u.CPU <= 0 || u.Pids < int64(len(inside)) {
		t.Errorf("usage of an idle boot = %+v", u)
	}
}

// makeRoomFor plays the node: it kills what the guest started whenever memory
// is full, until the returned function is called.
func makeRoomFor(t *testing.T, r *rig, id string, c *http.Client) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			if b := r.host.boots[id]; b.group.Limit() > b.memoryLimit() {
				get(t, c, "/kill")
			}
		}
	}()
	return func() { close(done); <-ended }
}

func memoryRunsOut(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, small())
	stop := makeRoomFor(t, r, id, c)
	defer stop()
	for range 3 {
		if got := get(t, c, "/bomb?mb=1000&wait=1"); got != "signal: killed" {
			t.Fatalf("the bomb ended with %q", got)
		}
		if got := get(t, c, "/ping"); got != "pong" {
			t.Fatalf("after the bomb the guest answers %q", got)
		}
	}
}

func nobodyMakesRoom(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, small())
	b := r.host.boots[id]
	get(t, c, "/bomb?mb=2000")
	select {
	case <-b.gone:
	case <-time.After(20 * time.Second):
		t.Fatal("a boot without room lives on")
	}
	r.waitGone(id)
	if !b.oom {
		t.Error("the cause is not oom")
	}
}

// waitGone waits until the host has freed a Boot that ended by itself.
func (r *rig) waitGone(id string) {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		r.host.mu.Lock()
		b := r.host.boots[id]
		r.host.mu.Unlock()
		if b == nil {
			return
		}
		if time.Now().After(end) {
			r.t.Fatal("a boot that ended by itself was not freed")
		}
	}
}

func killedSentry(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, small())
	must(t, unix.Kill(r.host.boots[id].record.Pid, unix.SIGKILL))
	r.waitGone(id)
}

func newHostTakesUp(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, small())
	r.open() // the old one is still there, as a zombie would be; it is not used again
	if got := r.host.list(); len(got) != 1 || got[0].ID != id || got[0].Shape != small() {
		t.Fatalf("the new host lists %+v", got)
	}
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}
	if _, err := r.host.usage(id); err != nil {
		t.Error(err)
	}
	must(t, r.host.stop(t.Context(), id))
}

func badRequests(t *testing.T, r *rig) {
	bad := small()
	bad.MemoryBytes = 1
	for _, tt := range []struct {
		name string
		req  sentryhost.StartRequest
		want error
	}{
		{"id", sentryhost.StartRequest{ID: "../../etc", Image: "test", Shape: small()}, sandbox.Invalid},
		{"image", sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "none", Shape: small()}, sandbox.NotFound},
		{"image path", sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "../test", Shape: small()}, sandbox.NotFound},
		{"shape", sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "test", Shape: bad}, sandbox.Invalid},
	} {
		a, b := pair(t)
		err := r.host.start(t.Context(), tt.req, &fdrpc.Request{Files: []*os.File{a, b}})
		if code := sandbox.CodeOf(err); error(code) != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	err := r.host.start(t.Context(), sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "test", Shape: small()}, &fdrpc.Request{})
	if sandbox.CodeOf(err) != sandbox.Invalid {
		t.Errorf("without a link: %v", err)
	}
}

func filesAreNotMemory(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, small())
	if got := get(t, c, "/write?mb=600"); got != "<nil>" {
		t.Fatalf("writing 600 MB in a 256 MB sandbox: %s", got)
	}
	u, err := r.host.usage(id)
	must(t, err)
	if u.DiskBytes < 600<<20 || u.MemoryBytes > 128<<20 {
		t.Errorf("after writing 600 MB: %+v", u)
	}
}

func diskQuota(t *testing.T, r *rig) {
	shape := small()
	shape.DiskBytes = 100 << 20
	id := sandbox.NewBootID()
	c := r.start(id, shape)
	if got := get(t, c, "/write?mb=150"); got != "write /big: no space left on device" {
		t.Errorf("writing 150 MB into 100 MB: %s", got)
	}
	if got := get(t, c, "/write?mb=50"); got != "<nil>" {
		t.Errorf("writing 50 MB after the file was cut: %s", got)
	}
}
