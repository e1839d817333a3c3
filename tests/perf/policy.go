package perf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	v1 "github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

// measurePolicyOverhead measures the cost of the audit log, quotas and network
// policies.
func measurePolicyOverhead(ctx context.Context, o options, n rounds, report *bench.Report, _ *rivals) error {
	return errors.Join(measureRecords(ctx, o, n, report), measurePolicy(ctx, o, n, report))
}

// onRecord is the number of Sandboxes in the store while records are measured.
const onRecord = 1000

// measureRecords measures a request's waits in the store: for its entry in the audit
// log, and, of a create, for its quota.
func measureRecords(ctx context.Context, o options, n rounds, report *bench.Report) error {
	st, err := sqlstore.OpenSQLite(ctx, filepath.Join(o.work, "policy", "db"))
	if err != nil {
		return err
	}
	defer st.Close()
	for i := range onRecord {
		if _, err := st.InsertSandbox(ctx, recorded(sandbox.TenantID(fmt.Sprintf("tenant-%d", i%10)))); err != nil {
			return err
		}
	}
	audited := &bench.Series{Operation: fmt.Sprintf("audit log: append an entry, %d sandboxes on record", onRecord), Who: bench.Ours, Goal: "0.5"}
	err = bench.Repeat(ctx, audited, 100*n.policy, func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		_, err := st.AppendAudit(ctx, sandbox.AuditEntry{
			At: began, Tenant: "tenant-0", User: "bench", Operation: "touchSession", Target: "i00000000000000000000", Status: http.StatusOK,
		})
		return time.Since(began), err
	})
	if err != nil {
		return err
	}
	report.Add(audited)

	const free, bound sandbox.TenantID = "free", "bound"
	quota := sandbox.Quota{
		Sandboxes: 1 << 20, CPUs: 1 << 20, MemoryBytes: 1 << 60, DiskBytes: 1 << 60, CreatesPerMinute: 1 << 20, SnapshotBytes: 1 << 60, EgressBytes: 1 << 60,
	}
	if err := st.SetQuota(ctx, bound, &quota); err != nil {
		return err
	}
	without := &bench.Series{Operation: "the same without a quota", Who: bench.Ours}
	with := &bench.Series{Operation: "store: record a create under a quota of all kinds", Who: bench.Ours, Goal: "0.7", Rival: without}
	report.Begin()
	insert := func(tenant sandbox.TenantID) func() error {
		return func() error {
			_, err := st.InsertSandbox(ctx, recorded(tenant))
			return err
		}
	}
	err = bench.RepeatBoth(ctx, without, with, 40*n.policy, func(context.Context, int) (first, second func() error) { return insert(free), insert(bound) })
	if err != nil {
		return err
	}
	report.Add(with)
	return nil
}

// recorded is a record as a create stores it.
func recorded(tenant sandbox.TenantID) sandbox.Sandbox {
	at := time.Now()
	return sandbox.Sandbox{
		ID: sandbox.NewSandboxID(), Tenant: tenant, State: sandbox.Starting, Template: "base", Image: "sha256:bench", Engine: "gvisor",
		Shape: sandbox.DefaultShape(), Limits: sandbox.DefaultShape().Limits(), Network: sandbox.NetworkPublic,
		Boot: sandbox.Boot{ID: sandbox.NewBootID(), Number: 1, Node: "local"}, CreatedAt: at, Timeout: time.Hour, Deadline: at.Add(time.Hour),
		OnTimeout: sandbox.OnTimeoutEnd, Timeline: 1, Revision: 1,
	}
}

// blobBytes is the size of the download through a link.
const blobBytes = 256 << 20

// ruled returns the measured policy: fifty names and fifty networks before the
// requested address.
func ruled(address string) v1.Network {
	rules := []string{}
	for i := range 50 {
		rules = append(rules, fmt.Sprintf("*.name-%d.example.com", i), fmt.Sprintf("198.51.%d.0/24", i))
	}
	text, _ := json.Marshal(map[string]any{"mode": "none", "allow": append(rules, address)}) // text always becomes JSON
	return v1.Network(text)
}

// measurePolicy compares a link with a policy of many rules to one without: its
// throughput, and the time of a request over a new connection.
func measurePolicy(ctx context.Context, o options, n rounds, report *bench.Report) error {
	host, stop, err := serveBlob()
	if err != nil {
		return err
	}
	defer stop()
	server, err := startServer(ctx, o, 2, 2, "CLOUD_SANDBOX_EGRESS_OPEN="+host)
	if err != nil {
		return err
	}
	defer server.stop()
	address, _, _ := net.SplitHostPort(host)
	ways := []*way{{name: "without rules", network: v1.Network(sandbox.NetworkPublic)}, {name: "with a hundred rules", network: ruled(address)}}
	for _, w := range ways {
		made, err := server.client.Create(ctx, v1.CreateRequest{Network: w.network})
		if err != nil {
			return err
		}
		w.id = made.ID
	}
	report.Begin()
	for range n.policy { // alternating, so that both see the same machine
		for _, w := range ways {
			if err := w.measure(ctx, server, host); err != nil {
				return err
			}
		}
	}
	open, ruled := ways[0], ways[1]
	report.AddFact(bench.Fact{
		What: "download over the link " + ruled.name, Who: bench.Ours, Value: median(ruled.rates), Unit: "MB/s",
		Goal:  fmt.Sprintf(">= %.0f", 0.9*median(open.rates)),
		Rival: &bench.Fact{What: "the same " + open.name, Who: bench.Ours, Value: median(open.rates), Unit: "MB/s"},
	}, bench.Fact{
		What: "a request over a new connection " + ruled.name, Who: bench.Ours, Value: math.Round(median(ruled.requests)), Unit: "µs",
		Goal:  fmt.Sprintf("<= %.0f", median(open.requests)+100),
		Rival: &bench.Fact{What: "the same " + open.name, Who: bench.Ours, Value: math.Round(median(open.requests)), Unit: "µs"},
	})
	return nil
}

// way is a Sandbox with a policy, and its measurements.
type way struct {
	name     string
	network  v1.Network
	id       string
	rates    []float64 // MB/s
	requests []float64 // µs
}

// script makes a download and requests, and prints MB/s and the median of µs.
const script = `
import http.client, time
began, n = time.perf_counter(), 0
c = http.client.HTTPConnection(%[1]q)
c.request("GET", "/blob")
r = c.getresponse()
while chunk := r.read(1 << 20):
    n += len(chunk)
rate = n / (time.perf_counter() - began) / 1e6
took = []
for _ in range(100):
    began = time.perf_counter()
    c = http.client.HTTPConnection(%[1]q)
    c.request("GET", "/")
    c.getresponse().read()
    took.append(time.perf_counter() - began)
    c.close()
print(rate, sorted(took)[50] * 1e6)
`

func (w *way) measure(ctx context.Context, s *server, host string) error {
	answer, err := s.client.Execute(ctx, client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{
		Target: v1.Target{SandboxID: w.id}, Language: "python", Code: fmt.Sprintf(script, host),
	}})
	if err != nil {
		return err
	}
	var rate, took float64
	if _, err := fmt.Sscan(answer.Stdout, &rate, &took); err != nil {
		return fmt.Errorf("over the link %s: %s", w.name, strings.TrimSpace(answer.Stderr))
	}
	w.rates, w.requests = append(w.rates, rate), append(w.requests, took)
	return nil
}

// serveBlob serves at a non-loopback address of this machine: links do not reach the
// loopback.
func serveBlob() (host string, stop func(), err error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", nil, err
	}
	for _, a := range addresses {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.To4() == nil || ip.IP.IsLoopback() || ip.IP.IsLinkLocalUnicast() {
			continue
		}
		listener, err := net.Listen("tcp4", net.JoinHostPort(ip.IP.String(), "0"))
		if err != nil {
			continue
		}
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
		mux.HandleFunc("/blob", func(w http.ResponseWriter, _ *http.Request) {
			piece := make([]byte, 1<<20)
			for range blobBytes / len(piece) {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		})
		server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }()
		return listener.Addr().String(), func() { _ = server.Close() }, nil
	}
	return "", nil, errors.New("this machine has no address but its loopback to serve at")
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
