package perf

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

// measureS3 measures resumes of Sandboxes whose saved state is only in S3, on a
// server of this machine.
func measureS3(ctx context.Context, o options, n rounds, report *bench.Report, rivals *rivals) error {
	if o.s3 == "" {
		return errors.New("no S3 server was given: --versitygw")
	}
	s3, err := s3rig.New(o.s3, filepath.Join(o.work, "s3"))
	if err != nil {
		return err
	}
	defer s3.Stop()
	const bucket = "snapshots"
	if err := os.Mkdir(filepath.Join(s3.Dir, bucket), 0o700); err != nil {
		return err
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	server, err := startServer(ctx, o, 0, 0,
		"CLOUD_SANDBOX_BLOBS=s3://"+bucket, "CLOUD_SANDBOX_BLOBS_KEY="+hex.EncodeToString(key), "SNAPSHOT_DISK_MB=1",
		"CLOUD_SANDBOX_S3_ENDPOINT="+s3.URL, "CLOUD_SANDBOX_S3_REGION="+s3rig.Region,
		"CLOUD_SANDBOX_S3_ACCESS_KEY="+s3rig.AccessKey, "CLOUD_SANDBOX_S3_SECRET_KEY="+s3rig.SecretKey)
	if err != nil {
		return err
	}
	defer server.stop()
	before, err := server.saved() // by an earlier server, which copied nothing
	if err != nil {
		return err
	}
	meter := rivals.meter(server, report, 0)
	return meter.SavedElsewhere(ctx, "S3 on this machine", max(n.Saves/2, 1), func() error { return server.savedNoMore(ctx, before) })
}

// saved returns the saved states on the server's disk.
func (s *server) saved() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.data, "saved"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if sandbox.ValidSnapshotID(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// savedNoMore waits until the server's disk has no saved states but the earlier ones
// in before.
func (s *server) savedNoMore(ctx context.Context, before []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("what was saved stays on the disk"))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := s.saved()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(now, func(name string) bool { return !slices.Contains(before, name) }) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
