package perf

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// measureNeighbours measures one tenant's waits while another attacks.
func measureNeighbours(ctx context.Context, o options, n rounds, report *bench.Report, rivals *rivals) error {
	const pool = 2
	server, err := startServer(ctx, o, pool, pool)
	if err != nil {
		return err
	}
	defer server.stop()
	attacker := client.New(config.Client{URL: server.url, UserID: "attacker"})
	defer attacker.Close()
	return rivals.meter(server, report, pool).Neighbours(ctx, attacker, n.neighbours)
}
