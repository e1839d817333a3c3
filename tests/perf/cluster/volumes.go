package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

const (
	atHome     = "a sandbox on the node that stores the volume"
	volumePath = "/volume"
	volumeMB   = 1024
	// volumeRounds is the number of rounds of the program that measures.
	volumeRounds = 2
)

// volumeOperations are the operations of bench.VolumeProgram to report.
var volumeOperations = []string{"volume: stat of a file", "volume: open and read a file of 4 KiB", "volume: create a file of 4 KiB"}

// volumes measures a program's waits in a Volume that another Node stores, beside the same
// program on that Node.
func volumes(ctx context.Context, t testing.TB, report *bench.Report, s side) (err error) {
	volume, err := s.client.CreateVolume(ctx, "bench", volumeMB)
	if err != nil {
		return err
	}
	home, other := rig.FleetHome, rig.FleetNode
	if _, err := os.Stat(filepath.Join(s.fleet.Machine(home).Data, "volumes", "kept", volume.ID)); err != nil {
		home, other = other, home
	}
	ops := s.gateway.Operator(t)
	if err := setDraining(ops, home, true); err != nil { // so that the first one is on the other node
		return err
	}
	time.Sleep(untilKnown)
	var outputs [2][]byte
	for i, node := range []string{other, home} {
		if i == 1 {
			if err := setDraining(ops, home, false); err != nil {
				return err
			}
			time.Sleep(untilKnown)
		}
		if outputs[i], err = inVolume(ctx, s, node, volume.ID); err != nil {
			return err
		}
	}
	for _, operation := range volumeOperations {
		there, err := bench.BesideVolume(operation, outputs[0], aCluster)
		here, hereErr := bench.BesideVolume(operation, outputs[1], atHome)
		if err := errors.Join(err, hereErr); err != nil {
			return err
		}
		if there == nil || here == nil || len(there.Samples) == 0 || len(here.Samples) == 0 {
			return fmt.Errorf("%s: nothing was measured", operation)
		}
		there.Operation, there.Rival = operation+", which another node stores", here
		report.Add(there)
	}
	return s.client.DeleteVolume(ctx, volume.ID)
}

// inVolume runs the program that measures in a Sandbox with a Volume, which must be on a
// Node, and returns its output.
func inVolume(ctx context.Context, s side, node, volume string) (_ []byte, err error) {
	sb, err := s.client.Create(ctx, v1.CreateRequest{Volumes: &v1.VolumeMounts{{Volume: volume, Path: volumePath}}})
	if err != nil {
		return nil, err
	}
	defer func() {
		_, endErr := s.client.End(context.WithoutCancel(ctx), sb.ID)
		err = errors.Join(err, endErr)
	}()
	if _, here := s.fleet.Machine(node).Runs(sb.ID); !here {
		return nil, fmt.Errorf("the sandbox that measures the volume does not run on %s", node)
	}
	output, err := target{client: s.client, id: sb.ID}.run(ctx, "python", bench.VolumeProgram(volumePath, volumeRounds))
	return []byte(output), err
}
