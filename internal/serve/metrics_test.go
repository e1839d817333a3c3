package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

// shown returns the result of a scrape, one line per number; histograms by their count.
func shown(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			n := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			fmt.Fprintf(&all, "%s{%s} %g\n", f.GetName(), strings.Join(labels, ","), n)
		}
	}
	return all.String()
}

func TestLives(t *testing.T) {
	store := sqlitetest.Open(t)
	if _, err := store.InsertSandbox(t.Context(), sandbox.Sandbox{ID: sandbox.NewSandboxID(), Tenant: "t", State: sandbox.Starting, Boot: sandbox.Boot{ID: sandbox.NewBootID(), Number: 1, Node: "n"}}); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	leads := true
	l := newLives(reg, store, func() bool { return leads })
	l.created(true, nil, time.Second)
	l.created(false, nil, time.Second)
	l.created(false, fmt.Errorf("a step: %w", sandbox.Errorf(sandbox.Exhausted, "full")), time.Second)
	l.created(false, context.Canceled, time.Second)
	l.ended(sandbox.CauseOOM)
	got := shown(t, reg)
	for _, want := range []string{
		"cloud_sandbox_create_duration_seconds{code=ok,start=warm} 1\n",
		"cloud_sandbox_create_duration_seconds{code=ok,start=cold} 1\n",
		"cloud_sandbox_create_duration_seconds{code=exhausted,start=none} 1\n",
		"cloud_sandbox_create_duration_seconds{code=cancelled,start=none} 1\n",
		"cloud_sandbox_ended_total{cause=oom} 1\n",
		"cloud_sandbox_sandboxes{state=starting} 1\n",
		"cloud_sandbox_sandboxes{state=running} 0\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	leads = false
	if got := shown(t, reg); strings.Contains(got, "cloud_sandbox_sandboxes{") || !strings.Contains(got, "cloud_sandbox_ended_total{cause=oom} 1\n") {
		t.Errorf("a process that stands by shows\n%s", got)
	}
}

// The leader shows which version each node runs, and those of earlier programs as
// unknown. A node that has been away for long is not shown.
func TestVersionsOfNodes(t *testing.T) {
	store := sqlitetest.Open(t)
	for _, n := range []struct {
		name, version string
		left          time.Duration
	}{{"a", "v2", time.Minute}, {"b", "", time.Minute}, {"c", "v1", -time.Minute}, {"d", "v1", -time.Hour}} {
		if _, err := store.RenewLease(t.Context(), sandbox.NodeRecord{Name: n.name, Version: n.version}, n.left); err != nil {
			t.Fatal(err)
		}
	}
	reg := prometheus.NewRegistry()
	leads := true
	registerVersions(reg, store.Nodes, func() bool { return leads })
	const want = "cloud_sandbox_node_info{node=a,version=v2} 1\ncloud_sandbox_node_info{node=b,version=unknown} 1\ncloud_sandbox_node_info{node=c,version=v1} 1\n"
	if got := shown(t, reg); got != want {
		t.Errorf("the leader shows\n%s, want\n%s", got, want)
	}
	leads = false
	if got := shown(t, reg); got != "" {
		t.Errorf("a process that stands by shows\n%s", got)
	}
}

type baseImage struct{}

func (baseImage) Resolve(context.Context, sandbox.TenantID, string) (string, error) {
	return fake.Image, nil
}

func TestNodeMetrics(t *testing.T) {
	store := sqlitetest.Open(t)
	reg := prometheus.NewRegistry()
	engine := fake.New(fake.Image)
	t.Cleanup(engine.Close)
	volumes, err := disk.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(t.Context(), node.Config{
		Name: "n", Dir: t.TempDir(), Volumes: volumes, Engine: engine, Leases: store, Images: baseImage{},
		Guest: func(dial node.Dial) node.GuestControl { return fake.NewControl(dial) },
		Pools: []node.PoolConfig{{Template: "base", Min: 1, Max: 2}},
		Host: func() (sandbox.HostState, error) {
			return sandbox.HostState{DiskFree: 50, DiskTotal: 100, MemoryFree: 8 << 30, MemoryTotal: 16 << 30}, nil
		},
		Observe: newBoots(reg).step,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := n.Down(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	reg.MustRegister(&nodeCollector{n, "n"})
	shape := sandbox.DefaultShape()
	if _, err := n.Start(t.Context(), "n", sandbox.StartRequest{
		BootID: sandbox.NewBootID(), Image: fake.Image, Shape: shape,
		Binding: sandbox.Binding{SandboxID: sandbox.NewSandboxID(), BootNumber: 1, Tenant: "t", Network: sandbox.NetworkNone, Limits: shape.Limits()},
	}); err != nil {
		t.Fatal(err)
	}
	got := shown(t, reg)
	for _, want := range []string{
		"cloud_sandbox_boot_duration_seconds{code=ok,step=start} 1\n",
		"cloud_sandbox_boot_duration_seconds{code=ok,step=bind} 1\n",
		"cloud_sandbox_node_bound_boots{node=n} 1\n",
		"cloud_sandbox_node_ready{node=n} 0\n",
		"cloud_sandbox_node_waiting_starts{node=n} 0\n",
		"cloud_sandbox_node_memory_free_bytes{node=n} 8.589934592e+09\n",
		"cloud_sandbox_node_disk_free_bytes{node=n} 50\n",
		"cloud_sandbox_pool_idle{node=n,shape=1cpu-512m-4096m-512p,template=base} 0\n",
		"cloud_sandbox_pool_misses_total{node=n,shape=1cpu-512m-4096m-512p,template=base} 1\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

func TestOutcome(t *testing.T) {
	for want, err := range map[string]error{
		"ok": nil, "cancelled": fmt.Errorf("x: %w", context.Canceled), "timeout": context.DeadlineExceeded,
		"internal": errors.New("x"), "conflict": sandbox.Errorf(sandbox.Conflict, "x"),
	} {
		if got := outcome(err); got != want {
			t.Errorf("%v is %q", err, got)
		}
	}
}

func TestRegistryGathers(t *testing.T) {
	families, err := newRegistry("v1").Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "go_goroutines" {
			return
		}
	}
	t.Error("no go_goroutines")
}
