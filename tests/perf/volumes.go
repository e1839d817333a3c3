package main

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// measureVolumes measures files of a Volume from inside a Sandbox.
func measureVolumes(ctx context.Context, o options, n rounds, report *bench.Report) error {
	if n.volumes == 0 {
		return nil
	}
	report.Step("Cloud Sandbox, volumes")
	server, err := startServer(ctx, o, 0, 0)
	if err != nil {
		return err
	}
	defer server.stop()
	meter := &bench.Meter{Client: server.client, Report: report}
	return meter.Volume(ctx, n.volumes)
}
