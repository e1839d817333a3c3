// Command cluster compares a cluster with the server that has all roles. The cluster has
// two machines of each role, in network namespaces with certificates, over PostgreSQL with
// fsync on. The report is written to a folder.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/redistest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

// Names of the installations to measure, in the order of each round.
const (
	oneProcess = "all roles in one process, SQLite"
	aCluster   = "a cluster, PostgreSQL with fsync"
)

// Goals for a cluster, beside the server with all roles in the same run.
const (
	moreExecute    = "<= 2"   // ms at the median
	moreAcquire    = "<= 3"   // ms at the median
	moreAcquireP99 = "<= 15"  // ms
	lessCreates    = ">= 0.5" // ratio of creates per second
)

func main() {
	out := flag.String("out", "bin/bench-cluster", "folder of the report")
	n := flag.Int("n", 200, "rounds of each call")
	creates := flag.Int("creates", 60, "sandboxes of the row of creates, in each round of three")
	moved := flag.Int("moved", 50, "sandboxes of the row of drains")
	states := flag.Int("states", 10, "sandboxes of the row of resumes")
	flag.Parse()
	err := rig.Outside(func(t testing.TB) { measure(t, *out, *n, *creates, *moved, *states) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-cluster:", err)
		os.Exit(1)
	}
}

// side is one installation.
type side struct {
	who    string
	client *client.Client
	nodes  []*rig.Server // with the pools
	pool   int           // of all nodes together
	// Of the cluster alone:
	fleet   *rig.Fleet
	gateway *rig.Server
	// database is the address of another database of the same PostgreSQL.
	database string
}

func measure(t testing.TB, out string, n, creates, moved, states int) {
	report := bench.NewReport(os.Stdout)
	watch, err := bench.NewWatch("cloud-sandbox-rig-", "postgres", "redis-server")
	if err != nil {
		t.Fatal(err)
	}
	report.Watch(watch)
	network := rig.NewNetwork(t)
	s3 := s3rig.StartOn(t, network.Host.String())
	sides := []side{single(t, s3), cluster(t, network, s3)}
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	report.Begin()
	check(calls(ctx, report, sides, n))
	report.Begin()
	check(acquires(ctx, report, sides, n))
	check(floor(ctx, report, sides[1], n))
	report.Begin()
	check(rates(ctx, report, sides, creates))
	report.Begin()
	check(volumes(ctx, t, report, sides[1]))
	report.Begin()
	check(drains(ctx, t, report, sides[1], moved))
	report.Begin()
	check(resumes(ctx, t, report, sides, states)) // last: it loses a machine
	check(os.MkdirAll(out, 0o755))
	check(report.Write(out))
	fmt.Println("the report is in", out)
}

func pools(size int) []string {
	return []string{fmt.Sprintf("POOL_MIN_SIZE=%d", size), fmt.Sprintf("POOL_MAX_SIZE=%d", size)}
}

func single(t testing.TB, s3 *s3rig.Server) side {
	s := rig.Own(t, rig.Options{Pool: 4, Env: append(copies(t, s3), "SNAPSHOT_DISK_MB=1")})
	return side{who: oneProcess, client: client.New(config.Client{URL: s.URL, UserID: "bench", Key: s.Client(t, "bench").Token}), nodes: []*rig.Server{s}, pool: 4}
}

func cluster(t testing.TB, network *rig.Network, s3 *s3rig.Server) side {
	host := network.Host.String()
	db := postgrestest.StartWith(t, postgrestest.Options{Host: host, Durable: true})
	f := rig.NewCluster(t, network, append(append(pools(2), copies(t, s3)...), "CLOUD_SANDBOX_DATABASE="+db.Address(t), "RATE_LIMITS="+redistest.StartOn(t, host).URL())...)
	f.StartAll(t)
	s := f.Gateways()
	return side{
		who: aCluster, client: client.New(config.Client{URL: s.URL, UserID: "bench", Key: s.Key(t, "bench")}),
		nodes: []*rig.Server{f.Machine(rig.FleetHome).Server, f.Machine(rig.FleetNode).Server},
		pool:  4, fleet: f, gateway: s, database: db.Address(t),
	}
}

// settle waits until the pools are full.
func (s side) settle() error {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		idle, starting := 0.0, 0.0
		for _, n := range s.nodes {
			idle += n.Metric("cloud_sandbox_pool_idle")
			starting += n.Metric("cloud_sandbox_pool_starting")
		}
		if idle >= float64(s.pool) && starting == 0 {
			return nil
		}
	}
	return fmt.Errorf("the pools of %s do not fill", s.who)
}

// both returns the Series of the cluster, with the Series of the server with all roles as its rival.
func both(operation string) (one, two *bench.Series) {
	one = &bench.Series{Operation: oneProcess, Who: oneProcess}
	return one, &bench.Series{Operation: operation, Who: aCluster, Rival: one}
}

// calls measures the latency of executions in a running Sandbox.
func calls(ctx context.Context, report *bench.Report, sides []side, n int) error {
	one, two := both("run `1+1` in a warm Python interpreter")
	var call [2]func() error
	for i, s := range sides {
		sb, err := s.client.Create(ctx, v1.CreateRequest{})
		if err != nil {
			return err
		}
		defer func() { _, _ = s.client.End(ctx, sb.ID) }() // otherwise it ends with its server
		r := client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: "python", Code: "1+1"}}
		r.SandboxID = sb.ID
		call[i] = func() error {
			_, err := s.client.Execute(ctx, r)
			return err
		}
	}
	err := bench.RepeatBoth(ctx, one, two, n, func(context.Context, int) (func() error, func() error) { return call[0], call[1] })
	if err != nil {
		return err
	}
	report.Add(two)
	report.AddFact(bench.Fact{What: "an execution takes more at the median", Who: aCluster, Value: two.Median - one.Median, Unit: "ms", Goal: moreExecute})
	return nil
}

// acquires measures the latency of a create that is served from a warm pool.
func acquires(ctx context.Context, report *bench.Report, sides []side, n int) error {
	one, two := both("acquire from a warm pool")
	var ids [2]string
	call := func(i int) func() error {
		return func() error {
			sb, err := sides[i].client.Acquire(ctx)
			ids[i] = sb.ID
			return err
		}
	}
	err := bench.RepeatBoth(ctx, one, two, n, func(context.Context, int) (func() error, func() error) {
		for i, s := range sides {
			if ids[i] != "" {
				_, _ = s.client.End(ctx, ids[i]) // a failure shows in the next acquire
			}
		}
		for _, s := range sides {
			_ = s.settle() // otherwise the next acquire would start cold
		}
		return call(0), call(1)
	})
	if err != nil {
		return err
	}
	report.Add(two)
	report.AddFact(
		bench.Fact{What: "an acquire takes more at the median", Who: aCluster, Value: two.Median - one.Median, Unit: "ms", Goal: moreAcquire},
		bench.Fact{What: "an acquire takes more at the 99th percentile", Who: aCluster, Value: two.P99 - one.P99, Unit: "ms", Goal: moreAcquireP99},
	)
	return nil
}

// rates measures creates per second with four concurrent callers, in three rounds of
// each side.
func rates(ctx context.Context, report *bench.Report, sides []side, creates int) error {
	var seconds [2]float64
	const rounds = 3
	for range rounds {
		for i, s := range sides {
			if err := s.settle(); err != nil {
				return err
			}
			took, err := burst(ctx, s.client, creates)
			if err != nil {
				return err
			}
			seconds[i] += took.Seconds()
		}
	}
	rate := func(i int) float64 { return float64(rounds*creates) / seconds[i] }
	what := fmt.Sprintf("creates by four callers, %d sandboxes", creates)
	report.AddFact(
		bench.Fact{What: what, Who: aCluster, Value: rate(1), Unit: "a second", Rival: &bench.Fact{What: oneProcess, Who: oneProcess, Value: rate(0), Unit: "a second"}},
		bench.Fact{What: "creates a second, divided by the rival", Who: aCluster, Value: rate(1) / rate(0), Unit: "", Goal: lessCreates},
	)
	return nil
}

// burst creates n Sandboxes with four concurrent callers, and ends them afterwards.
func burst(ctx context.Context, c *client.Client, n int) (time.Duration, error) {
	c.Patience = time.Minute
	var mu sync.Mutex
	var ids []string
	var failed error
	next := make(chan struct{}, n)
	for range n {
		next <- struct{}{}
	}
	close(next)
	var all sync.WaitGroup
	began := time.Now()
	for range 4 {
		all.Go(func() {
			for range next {
				sb, err := c.Create(ctx, v1.CreateRequest{})
				mu.Lock()
				ids = append(ids, sb.ID)
				if err != nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	for _, id := range ids {
		if _, err := c.End(ctx, id); err != nil && !strings.Contains(err.Error(), "not found") {
			return took, err
		}
	}
	return took, failed
}
