package serve

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
)

// scrapeTime bounds the queries of one scrape.
const scrapeTime = 2 * time.Second

var secondsBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120}

// outcome is a result as a label: "ok", a Code, or "cancelled".
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return string(sandbox.Timeout)
	}
	return string(sandbox.CodeOf(err))
}

// lives are the metrics of a session manager.
type lives struct {
	creates *prometheus.HistogramVec
	moves   *prometheus.HistogramVec
	ends    *prometheus.CounterVec
	lost    *prometheus.CounterVec
	quota   prometheus.Counter
}

// newLives registers them, and a gauge of Sandboxes by State, read at each scrape while
// leads is true: each process of an installation would count the same records.
func newLives(reg prometheus.Registerer, store interface {
	sandbox.SandboxStore
	sandbox.UsageStore
}, leads func() bool,
) *lives {
	l := &lives{
		creates: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "cloud_sandbox_create_duration_seconds",
			Help:    "How long creates took until the sandbox ran, or was refused, by where its boot came from.",
			Buckets: secondsBuckets,
		}, []string{"start", "code"}),
		moves: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "cloud_sandbox_move_duration_seconds",
			Help:    "How long pauses, resumes, snapshots, the saving for forks and checkpoints took until the state was safe, or the sandbox ran, and the making of volumes.",
			Buckets: secondsBuckets,
		}, []string{"move", "code"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_sandbox_ended_total",
			Help: "Sandboxes that ended, by cause.",
		}, []string{"cause"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_sandbox_survived_total",
			Help: "Sandboxes that lost their boot and continue from a checkpoint, by cause.",
		}, []string{"cause"}),
	}
	l.quota = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "cloud_sandbox_quota_refusals_total",
		Help: "Creates, snapshots and volumes that a tenant's quota refused.",
	})
	reg.MustRegister(l.creates, l.moves, l.ends, l.lost, l.quota, &stateCollector{store, leads})
	registerUsage(reg, store.CountedUsage)
	return l
}

// registerUsage registers counters of usage.
func registerUsage(reg prometheus.Registerer, counted func() sandbox.UsageAmount) {
	for _, c := range []struct {
		name, help string
		value      func(sandbox.UsageAmount) float64
	}{
		{"seconds", "Seconds that sandboxes ran.", func(a sandbox.UsageAmount) float64 { return a.Seconds }},
		{"vcpu_seconds", "CPUs that sandboxes could use, times seconds.", func(a sandbox.UsageAmount) float64 { return a.CPUSeconds }},
		{"memory_gib_seconds", "GiB of memory that sandboxes could use, times seconds.", func(a sandbox.UsageAmount) float64 { return a.MemoryGiBSeconds }},
		{"egress_bytes", "Bytes that connections of sandboxes sent to the outside.", func(a sandbox.UsageAmount) float64 { return float64(a.Sent) }},
		{"ingress_bytes", "Bytes that connections of sandboxes received from the outside.", func(a sandbox.UsageAmount) float64 { return float64(a.Received) }},
		{"disk_gib_seconds", "GiB of disk that sandboxes could use, times seconds.", func(a sandbox.UsageAmount) float64 { return a.DiskGiBSeconds }},
	} {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "cloud_sandbox_usage_" + c.name + "_total",
			Help: c.help + " Counted when they pause or end, and every minute.",
		}, func() float64 { return c.value(counted()) }))
	}
}

// registerLeader registers a gauge that tells the leader of a role from the others.
func registerLeader(reg prometheus.Registerer, leads func() bool) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "cloud_sandbox_leads",
		Help: "Whether this process leads its role: 1 in one process of the installation.",
	}, func() float64 {
		if leads() {
			return 1
		}
		return 0
	}))
}

// registerVersions registers a gauge that tells the version of each Node, read at each
// scrape while leads is true.
func registerVersions(reg prometheus.Registerer, nodes func(context.Context) ([]sandbox.NodeRecord, error), leads func() bool) {
	reg.MustRegister(&versionCollector{nodes, leads})
}

// versionCollector reads the versions of Nodes from their records. If the Store does not
// answer, and in a process that does not lead, it reports no value.
type versionCollector struct {
	nodes func(context.Context) ([]sandbox.NodeRecord, error)
	leads func() bool
}

func (c *versionCollector) Describe(ch chan<- *prometheus.Desc) { ch <- nodeInfoDesc }

func (c *versionCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.leads() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	all, err := c.nodes(ctx)
	if err != nil {
		return
	}
	for _, n := range all {
		if n.LeaseLeft > -silentNode {
			ch <- gauge(nodeInfoDesc, 1, n.Name, cmp.Or(n.Version, "unknown"))
		}
	}
}

func (l *lives) created(pooled bool, err error, took time.Duration) {
	start := "cold"
	switch {
	case err != nil:
		start = "none"
	case pooled:
		start = "warm"
	}
	if errors.Is(err, sandbox.ErrOverQuota) {
		l.quota.Inc()
	}
	l.creates.WithLabelValues(start, outcome(err)).Observe(took.Seconds())
}

func (l *lives) transition(what string, err error, took time.Duration) {
	if errors.Is(err, sandbox.ErrOverQuota) {
		l.quota.Inc()
	}
	l.moves.WithLabelValues(what, outcome(err)).Observe(took.Seconds())
}

func (l *lives) ended(cause sandbox.Cause) { l.ends.WithLabelValues(string(cause)).Inc() }

func (l *lives) survived(cause sandbox.Cause) { l.lost.WithLabelValues(string(cause)).Inc() }

// boots are the metrics of a Node.
type boots struct {
	steps *prometheus.HistogramVec
}

func newBoots(reg prometheus.Registerer) *boots {
	b := &boots{steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "cloud_sandbox_boot_duration_seconds",
		Help:    "How long steps in the life of boots took: the saved state on the host, the wait for a turn to start, start or restore until the guest answers, bind to a sandbox, save, stop.",
		Buckets: secondsBuckets,
	}, []string{"step", "code"})}
	reg.MustRegister(b.steps)
	return b
}

func (b *boots) step(s node.Step, err error, took time.Duration) {
	b.steps.WithLabelValues(string(s), outcome(err)).Observe(took.Seconds())
}

var (
	sandboxesDesc  = prometheus.NewDesc("cloud_sandbox_sandboxes", "Sandboxes by state, without ended ones.", []string{"state"}, nil)
	poolLabels     = []string{"node", "template", "shape"}
	nodeLabels     = []string{"node"}
	nodeInfoDesc   = prometheus.NewDesc("cloud_sandbox_node_info", "1 for each node, with the version of the program that it runs. Unknown: an earlier one.", []string{"node", "version"}, nil)
	nodeReadyDesc  = prometheus.NewDesc("cloud_sandbox_node_ready", "Whether a node is ready.", nodeLabels, nil)
	nodeBoundDesc  = prometheus.NewDesc("cloud_sandbox_node_bound_boots", "Boots of a node that belong to sandboxes.", nodeLabels, nil)
	nodeWaitDesc   = prometheus.NewDesc("cloud_sandbox_node_waiting_starts", "Requests that wait for a start or a restore.", nodeLabels, nil)
	nodeMemoryDesc = prometheus.NewDesc("cloud_sandbox_node_memory_free_bytes", "Memory of the host that new sandboxes could have.", nodeLabels, nil)
	nodeDiskDesc   = prometheus.NewDesc("cloud_sandbox_node_disk_free_bytes", "Space that is free on the disk that sandboxes write to.", nodeLabels, nil)
	networkDesc    = prometheus.NewDesc("cloud_sandbox_network_decisions_total", "Connections and names that network policies decided on, since the link shards began.", []string{"node", "verdict"}, nil)
	namesDesc      = prometheus.NewDesc("cloud_sandbox_network_names_limited_total", "DNS queries and answers that exceeded a limit, since the link shards began: a DNS tunnel, or a flood.", nodeLabels, nil)
	poolIdleDesc   = prometheus.NewDesc("cloud_sandbox_pool_idle", "Boots that wait for an owner.", poolLabels, nil)
	poolWantDesc   = prometheus.NewDesc("cloud_sandbox_pool_wanted", "Target number of boots that wait for an owner, by demand and memory.", poolLabels, nil)
	poolBootDesc   = prometheus.NewDesc("cloud_sandbox_pool_starting", "Boots on their way into the pool.", poolLabels, nil)
	poolHitsDesc   = prometheus.NewDesc("cloud_sandbox_pool_hits_total", "Claims that the pool served.", poolLabels, nil)
	poolMissesDesc = prometheus.NewDesc("cloud_sandbox_pool_misses_total", "Claims that started cold.", poolLabels, nil)
)

// networkCollector reads the decision counts of a Node's network policies.
type networkCollector struct {
	counts func(context.Context) (allowed, refused, limited int64)
	name   string
}

func (c *networkCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- networkDesc
	ch <- namesDesc
}

func (c *networkCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	allowed, refused, limited := c.counts(ctx)
	ch <- prometheus.MustNewConstMetric(networkDesc, prometheus.CounterValue, float64(allowed), c.name, "allowed")
	ch <- prometheus.MustNewConstMetric(networkDesc, prometheus.CounterValue, float64(refused), c.name, "refused")
	ch <- prometheus.MustNewConstMetric(namesDesc, prometheus.CounterValue, float64(limited), c.name)
}

// stateCollector counts all Sandboxes at each scrape. If the Store does not answer, and
// in a process that does not lead, it reports no value.
type stateCollector struct {
	store sandbox.SandboxStore
	leads func() bool
}

func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- sandboxesDesc }

func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.leads() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	all, err := c.store.SandboxesNotEnded(ctx)
	if err != nil {
		return
	}
	counts := map[sandbox.State]int{
		sandbox.Starting: 0, sandbox.Running: 0, sandbox.Pausing: 0, sandbox.Paused: 0, sandbox.Resuming: 0, sandbox.Stopping: 0,
	}
	for _, s := range all {
		counts[s.State]++
	}
	for state, n := range counts {
		ch <- gauge(sandboxesDesc, float64(n), string(state))
	}
}

// nodeCollector reads the present numbers of the Node of this process.
type nodeCollector struct {
	node *node.Node
	name string
}

func (c *nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		nodeReadyDesc, nodeBoundDesc, nodeWaitDesc, nodeMemoryDesc, nodeDiskDesc, poolIdleDesc, poolWantDesc, poolBootDesc, poolHitsDesc, poolMissesDesc,
	} {
		ch <- d
	}
}

func (c *nodeCollector) Collect(ch chan<- prometheus.Metric) {
	stats, err := c.node.Stats(context.Background(), c.name) // never blocks
	if err != nil {
		return
	}
	ready := 0.0
	if stats.Ready {
		ready = 1
	}
	load, err := c.node.Load()
	ch <- gauge(nodeReadyDesc, ready, c.name)
	ch <- gauge(nodeBoundDesc, float64(stats.Bound), c.name)
	ch <- gauge(nodeWaitDesc, float64(load.Waiting), c.name)
	if err == nil {
		ch <- gauge(nodeMemoryDesc, float64(load.MemoryFree), c.name)
		ch <- gauge(nodeDiskDesc, float64(load.DiskFree), c.name)
	}
	for _, p := range stats.Pools {
		labels := []string{c.name, p.Template, p.Shape.String()}
		ch <- gauge(poolIdleDesc, float64(p.Idle), labels...)
		ch <- gauge(poolWantDesc, float64(p.Wanted), labels...)
		ch <- gauge(poolBootDesc, float64(p.Starting), labels...)
		ch <- prometheus.MustNewConstMetric(poolHitsDesc, prometheus.CounterValue, float64(p.Hits), labels...)
		ch <- prometheus.MustNewConstMetric(poolMissesDesc, prometheus.CounterValue, float64(p.Misses), labels...)
	}
}

func gauge(desc *prometheus.Desc, n float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, n, labels...)
}
