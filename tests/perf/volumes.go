package main

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// measureVolumes measures files of a Volume from inside a Sandbox.
func measureVolumes(ctx context.Context, o options, n rounds, report *bench.Report, rivals *rivals) error {
	server, err := startServer(ctx, o, 0, 0)
	if err != nil {
		return err
	}
	defer server.stop()
	return rivals.meter(server, report, 0).Volume(ctx, n.volumes)
}
