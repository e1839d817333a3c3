package gateway

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// metrics counts the gateway's requests and executions.
type metrics struct {
	requests   *prometheus.HistogramVec
	executions *prometheus.HistogramVec
	inFlight   prometheus.Gauge
	refused    *prometheus.CounterVec
	unrecorded prometheus.Counter
}

// The reasons for refusing a request before anything is done for it.
const (
	refusedCredential = "credential" // the credential is not valid
	refusedNobody     = "anonymous"  // no credential was sent
	refusedScope      = "scope"      // the caller lacks the scope
	refusedURL        = "signed_url" // the signature is not valid, or has expired
	refusedRate       = "rate"       // over the rate limit
	refusedSuspended  = "suspended"  // the caller or their Tenant
)

// newMetrics registers everything with reg.
func newMetrics(reg prometheus.Registerer) *metrics {
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
			Help: "Requests in progress.",
		}),
	}
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cloud_sandbox_refused_total",
		Help: "Requests that were refused before anything was done for them, by reason.",
	}, []string{"reason"})
	for _, reason := range []string{refusedCredential, refusedNobody, refusedScope, refusedURL, refusedRate, refusedSuspended} {
		m.refused.WithLabelValues(reason) // so that the first one shows as a change
	}
	m.unrecorded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "cloud_sandbox_audit_failures_total",
		Help: "Audit entries that could not be written and are only in the log.",
	})
	reg.MustRegister(m.requests, m.executions, m.inFlight, m.refused, m.unrecorded)
	return m
}

func (m *metrics) refuse(reason string) { m.refused.WithLabelValues(reason).Inc() }

func (m *metrics) request(rt route, status int, took time.Duration) {
	method := rt.method
	if method == "" {
		method = "other" // a made-up method must not become a label
	}
	m.requests.WithLabelValues(method, rt.path, strconv.Itoa(status)).Observe(took.Seconds())
}

func (m *metrics) execution(language string, status execution.Status, took time.Duration) {
	m.executions.WithLabelValues(language, string(status)).Observe(took.Seconds())
}
