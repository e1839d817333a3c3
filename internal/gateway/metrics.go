package gateway

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// metrics counts what passes the gateway, and asks for the state of the rest
// when somebody looks.
type metrics struct {
	requests   *prometheus.HistogramVec
	executions *prometheus.HistogramVec
	inFlight   prometheus.Gauge
}

// newMetrics registers everything with reg.
func newMetrics(reg prometheus.Registerer, nodes nodeStates, states stateCounts) *metrics {
	m := &metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "cloud_sandbox_http_request_duration_seconds",
			Help:    "How long requests took, to the last byte of the answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}, []string{"method", "route", "status"}),
		executions: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "cloud_sandbox_execution_duration_seconds",
			Help:    "How long executions ran.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600},
		}, []string{"language", "status"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cloud_sandbox_http_requests_in_flight",
			Help: "Requests under way.",
		}),
	}
	reg.MustRegister(m.requests, m.executions, m.inFlight, &stateCollector{nodes: nodes, states: states})
	return m
}

func (m *metrics) request(rt route, status int, took time.Duration) {
	method := rt.method
	if method == "" {
		method = "other" // what a client makes up must not become a label
	}
	m.requests.WithLabelValues(method, rt.path, strconv.Itoa(status)).Observe(took.Seconds())
}

func (m *metrics) execution(language string, status execution.Status, took time.Duration) {
	m.executions.WithLabelValues(language, string(status)).Observe(took.Seconds())
}

type (
	nodeStates  = func(context.Context) ([]rest.NodeState, error)
	stateCounts = func(context.Context) (map[sandbox.State]int, error)
)

// stateCollector reads the present numbers of Nodes and Sandboxes at each
// scrape. A part that does not answer is left out; ready says so.
type stateCollector struct {
	nodes  nodeStates
	states stateCounts // may be nil
}

var poolLabels = []string{"node", "template", "shape"}

var (
	sandboxesDesc  = prometheus.NewDesc("cloud_sandbox_sandboxes", "Sandboxes by state, those left out that ended.", []string{"state"}, nil)
	nodeReadyDesc  = prometheus.NewDesc("cloud_sandbox_node_ready", "Whether a node is ready.", []string{"node"}, nil)
	nodeBoundDesc  = prometheus.NewDesc("cloud_sandbox_node_bound_boots", "Boots of a node that belong to sandboxes.", []string{"node"}, nil)
	poolIdleDesc   = prometheus.NewDesc("cloud_sandbox_pool_idle", "Boots that wait for an owner.", poolLabels, nil)
	poolBootDesc   = prometheus.NewDesc("cloud_sandbox_pool_starting", "Boots on their way into the pool.", poolLabels, nil)
	poolHitsDesc   = prometheus.NewDesc("cloud_sandbox_pool_hits_total", "Claims that the pool served.", poolLabels, nil)
	poolMissesDesc = prometheus.NewDesc("cloud_sandbox_pool_misses_total", "Claims that started cold.", poolLabels, nil)
)

func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sandboxesDesc, nodeReadyDesc, nodeBoundDesc, poolIdleDesc, poolBootDesc, poolHitsDesc, poolMissesDesc} {
		ch <- d
	}
}

func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), rest.NodeTime)
	defer cancel()
	if c.states != nil {
		if counts, err := c.states(ctx); err == nil {
			for state, n := range counts {
				ch <- gauge(sandboxesDesc, n, string(state))
			}
		}
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return
	}
	for _, n := range nodes {
		ready := 0
		if n.Ready {
			ready = 1
		}
		ch <- gauge(nodeReadyDesc, ready, n.Node)
		if n.Err == nil {
			collectNode(ch, n)
		}
	}
}

func collectNode(ch chan<- prometheus.Metric, n rest.NodeState) {
	ch <- gauge(nodeBoundDesc, n.Bound, n.Node)
	for _, p := range n.Pools {
		labels := []string{n.Node, p.Template, p.Shape.String()}
		ch <- gauge(poolIdleDesc, p.Idle, labels...)
		ch <- gauge(poolBootDesc, p.Starting, labels...)
		ch <- prometheus.MustNewConstMetric(poolHitsDesc, prometheus.CounterValue, float64(p.Hits), labels...)
		ch <- prometheus.MustNewConstMetric(poolMissesDesc, prometheus.CounterValue, float64(p.Misses), labels...)
	}
}

func gauge(desc *prometheus.Desc, n int, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
}
