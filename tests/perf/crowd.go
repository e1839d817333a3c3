package perf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

const (
	// crowdTenants is the number of tenants of a crowd.
	crowdTenants = 20
	// crowdPatience is the total time that each request of a crowd retries while the
	// server answers with Retry-After: a slow request must show as slow, not as failed.
	crowdPatience = 10 * time.Minute
)

// measureCrowd measures a server while many tenants request Sandboxes of their own at
// once, with the default Pool.
func measureCrowd(ctx context.Context, o options, n rounds, report *bench.Report, _ *rivals) error {
	server, err := startServer(ctx, o, 5, 50)
	if err != nil {
		return err
	}
	defer server.stop()
	tenants := crowd(server.url)
	defer func() {
		for _, c := range tenants {
			c.Close()
		}
	}()
	meter := &bench.Meter{Client: server.client, Report: report, PoolSize: 5}
	if n.throughput > 0 {
		err = meter.Throughput(ctx, tenants, n.throughput)
	}
	if n.class > 0 && ctx.Err() == nil {
		err = errors.Join(err, meter.Class(ctx, tenants, n.class))
	}
	return err
}

// crowd returns a client of a server for each of the tenants of a crowd.
func crowd(url string) []*client.Client {
	all := make([]*client.Client, crowdTenants)
	for i := range all {
		all[i] = client.New(config.Client{URL: url, UserID: fmt.Sprintf("crowd-%d", i)})
		all[i].Patience = crowdPatience
	}
	return all
}
