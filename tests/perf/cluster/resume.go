package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

// moreResume is the goal for a resume on another node, in ms at the median, beside a server
// with all roles that fetches the same state.
const moreResume = "<= 150"

// copies is the environment of an installation that copies saved states to a bucket of its
// own.
func copies(t testing.TB, s3 *s3rig.Server) []string {
	t.Helper()
	return []string{
		"CLOUD_SANDBOX_BLOBS=s3://" + s3.Bucket(t), "CLOUD_SANDBOX_S3_ENDPOINT=" + s3.URL, "CLOUD_SANDBOX_S3_REGION=" + s3rig.Region,
		"CLOUD_SANDBOX_S3_ACCESS_KEY=" + s3rig.AccessKey, "CLOUD_SANDBOX_S3_SECRET_KEY=" + s3rig.SecretKey,
		"CLOUD_SANDBOX_BLOBS_KEY=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
	}
}

// resumes measures the resume of Sandboxes with 100 MB of memory whose states are in S3
// only: on a node other than their own, which is lost, and on a server that has removed
// its local files.
func resumes(ctx context.Context, t testing.TB, report *bench.Report, sides []side, n int) error {
	f := sides[1].fleet
	ops := sides[1].gateway.Operator(t)
	if err := setDraining(ops, rig.FleetHome, true); err != nil { // so that all of them are on the other node
		return err
	}
	time.Sleep(untilKnown)
	var ids [2][]string
	for i, s := range sides {
		for range n + 2 {
			id, err := paused(ctx, s.client)
			if err != nil {
				return fmt.Errorf("%s: %w", s.who, err)
			}
			ids[i] = append(ids[i], id)
		}
	}
	if err := setDraining(ops, rig.FleetHome, false); err != nil {
		return err
	}
	away := f.Machine(rig.FleetNode)
	rig.Within(t, rig.Patience, "the states are copied", func() bool { return away.Metric("cloud_sandbox_snapshots_uncopied") == 0 })
	rig.Within(t, rig.Patience, "the server removes its local files", func() bool {
		return sides[0].nodes[0].Metric("cloud_sandbox_snapshots_disk_bytes") <= 1<<20
	})
	hosts := []*rig.Server{sides[0].nodes[0], f.Machine(rig.FleetHome).Server}
	fetched := func(i int) float64 {
		return hosts[i].Metric("cloud_sandbox_snapshot_copies_total", `step="fetch"`, `outcome="ok"`)
	}
	began, resumed := []float64{fetched(0), fetched(1)}, []float64{0, 1}
	settle := func(i int) { // the rest of a state arrives after the answer
		rig.Within(t, rig.Patience, "all of the state has arrived", func() bool { return fetched(i) >= began[i]+resumed[i] })
	}
	f.Lose(t, away.Name)
	rig.Within(t, rig.Patience, "the other node takes them", func() bool {
		_, err := sides[1].client.Resume(ctx, ids[1][n+1], false)
		return err == nil
	})
	one := &bench.Series{Operation: oneProcess, Who: oneProcess}
	two := &bench.Series{Operation: "resume 100 MB of memory from S3 on another node", Who: aCluster, Rival: one}
	resume := func(i, number int) func() error {
		return func() error {
			resumed[i]++
			_, err := sides[i].client.Resume(ctx, ids[i][number], false)
			return err
		}
	}
	err := bench.RepeatBoth(ctx, one, two, n, func(_ context.Context, number int) (func() error, func() error) {
		settle(1)
		return resume(0, number), resume(1, number)
	}, func() error { settle(0); return nil })
	if err != nil {
		return err
	}
	report.Add(two)
	report.AddFact(bench.Fact{What: "a resume on another node takes more at the median", Who: aCluster, Value: two.Median - one.Median, Unit: "ms", Goal: moreResume})
	return nil
}

// paused pauses a new Sandbox with 100 MB of random memory, and returns its ID.
func paused(ctx context.Context, c *client.Client) (string, error) {
	sb, err := c.Create(ctx, v1.CreateRequest{})
	if err != nil {
		return "", err
	}
	if _, err := (target{c, sb.ID}).run(ctx, "python", "import os\nx = os.urandom(100 << 20)"); err != nil {
		return "", err
	}
	_, err = c.Pause(ctx, sb.ID, false)
	return sb.ID, err
}
