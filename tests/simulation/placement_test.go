package simulation

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/scheduler"
)

// stateFile has the reports of a thousand Nodes with a hundred thousand Sandboxes, from
// make simulate.
const stateFile = "testdata/reports.json.gz"

// reported are the Nodes of a simulation as a scheduler sees them.
type reported struct {
	sandbox.NodeStore
	of map[string]sandbox.NodeStats
}

func (r reported) Nodes(context.Context) (all []sandbox.NodeRecord, _ error) {
	for name := range r.of {
		all = append(all, sandbox.NodeRecord{Name: name, LeaseLeft: time.Hour})
	}
	slices.SortFunc(all, func(a, b sandbox.NodeRecord) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (r reported) Stats(_ context.Context, node string) (sandbox.NodeStats, error) {
	return r.of[node], nil
}

func readState(b *testing.B) (all []sandbox.NodeStats) {
	file, err := os.Open(stateFile)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	content, err := gzip.NewReader(file)
	if err == nil {
		err = json.NewDecoder(content).Decode(&all)
	}
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// BenchmarkPlacement measures one placement in real time, while the scheduler receives the
// reports of all Nodes every two seconds.
func BenchmarkPlacement(b *testing.B) {
	r := reported{of: map[string]sandbox.NodeStats{}}
	for _, stats := range readState(b) {
		r.of[stats.Node] = stats
	}
	s := scheduler.New(r, r, nil)
	stop := running(b, "the scheduler", s.Run)
	defer stop()
	for {
		_, err := s.PlaceElsewhere(b.Context(), sandbox.BootNeeds{}, "")
		if err == nil {
			break
		}
		if !errors.Is(err, sandbox.Exhausted) {
			b.Fatal(err)
		}
		time.Sleep(time.Millisecond) // until a Node has reported
	}
	needs := sandbox.BootNeeds{Image: fake.Image, Shape: sandbox.DefaultShape()}
	var took []time.Duration
	for b.Loop() {
		needs.Tenant = sandbox.TenantID([]string{"a", "b", "c", "d"}[len(took)%4])
		began := time.Now()
		names, err := s.Place(b.Context(), needs)
		took = append(took, time.Since(began))
		if err != nil || len(names) == 0 {
			b.Fatal(names, err)
		}
	}
	b.ReportMetric(float64(quantile(took, 0.5).Nanoseconds())/1e6, "p50-ms")
	b.ReportMetric(float64(quantile(took, 0.99).Nanoseconds())/1e6, "p99-ms")
}
