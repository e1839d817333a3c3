package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/disk"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/s3"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/failpoint"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/run"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/replication"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/copies"
)

// probeLimit bounds the first access to the blob store.
const probeLimit = 10 * time.Second

// OpenBlobs opens the store for copies of saved states and for builds, which must be
// configured. A missing bucket or folder and refused credentials are errors; a store that
// does not answer is none, because it may be temporary.
func OpenBlobs(ctx context.Context, c *config.Blobs, log *slog.Logger) (sandbox.Blobs, error) {
	if err := c.ReadKeys(); err != nil {
		return nil, err
	}
	var blobs sandbox.Blobs = disk.Open(c.Dir)
	if c.Bucket != "" {
		bucket, err := s3.Open(s3.Config{
			Endpoint: c.Endpoint, Region: c.Region, Bucket: c.Bucket, Prefix: c.Prefix,
			AccessKey: c.AccessKey, SecretKey: c.SecretKey, CredentialsFile: c.CredentialsFile,
		})
		if err != nil {
			return nil, fmt.Errorf("CLOUD_SANDBOX_BLOBS: %w", err)
		}
		blobs = bucket
	}
	limited, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	switch err := blobs.Probe(limited); {
	case err == nil:
	case errors.Is(err, sandbox.NotFound), errors.Is(err, sandbox.Denied):
		return nil, fmt.Errorf("CLOUD_SANDBOX_BLOBS: %w", err)
	default:
		log.Warn("the store of copies does not answer; snapshots are copied later", telemetry.KeyError, err)
	}
	return blobs, nil
}

// openOffload wraps the engine with snapshot replication, if configured.
func (j *joined) openOffload() error {
	inner := failpoint.Saver(j.engine)
	if j.points != nil {
		inner = j.points.Engine(inner)
	}
	j.boots = inner
	if j.blobs == nil {
		return nil
	}
	var err error
	j.replicas, err = replication.Open(inner, replication.Config{
		Dir: filepath.Join(j.layout.Server(), "offload"), Blobs: j.blobs, Keys: j.cfg.Blobs.Keys, DiskBytes: j.cfg.Blobs.DiskBytes,
		Owner: j.ownerOf, Records: j.records, Node: j.nodeName(), BacklogRate: j.cfg.Blobs.BacklogRate, Log: j.log,
	})
	if err != nil {
		return fmt.Errorf("copies of snapshots: %w", err)
	}
	j.boots = j.replicas
	j.registry.MustRegister(&replicationCollector{j.replicas, j.nodeName()})
	return nil
}

// ownerOf returns the owner of a saved state.
func (j *joined) ownerOf(ctx context.Context, name string) (replication.Owned, error) {
	o, err := j.records.OwnerOf(ctx, j.nodeName(), name)
	return replication.Owned{Group: string(o.Tenant), Bytes: o.Bytes, At: o.CreatedAt}, err
}

// startOffload starts snapshot replication, if configured.
func (j *joined) startOffload(parts *run.Parts) {
	if j.replicas != nil {
		parts.Start("copies of snapshots", ended(j.replicas.Run))
	}
}

// collecting holds the dependencies of a replication.Collector.
type collecting struct {
	blobs  sandbox.Blobs // nil: not configured
	counts replication.CollectorCounts
	log    *slog.Logger
}

// openCollecting opens the store of copies for a process that may lead.
func (j *joined) openCollecting(ctx context.Context) (*collecting, error) {
	c := &collecting{log: j.log}
	j.registry.MustRegister(&collectingCollector{&c.counts})
	if !j.cfg.Blobs.Wanted() {
		return c, nil
	}
	blobs, err := OpenBlobs(ctx, &j.cfg.Blobs, j.log)
	if err != nil {
		return nil, err
	}
	c.blobs = blobs
	return c, nil
}

// run collects with the records of the process that leads, until ctx ends.
func (c *collecting) run(ctx context.Context, records sandbox.CopyGarbage) error {
	return replication.NewCollector(replication.CollectorConfig{Records: records, Blobs: c.blobs, Log: c.log}, &c.counts).Run(ctx)
}

var collectedDesc = prometheus.NewDesc("cloud_sandbox_copies_collected_total", "Copies of snapshots and packs that this process deleted from the blob store because nothing needs them, and failed attempts.", []string{"what"}, nil)

// collectingCollector reads collection metrics.
type collectingCollector struct{ counts *replication.CollectorCounts }

func (c *collectingCollector) Describe(ch chan<- *prometheus.Desc) { ch <- collectedDesc }

func (c *collectingCollector) Collect(ch chan<- prometheus.Metric) {
	for what, n := range map[string]int64{"copy": c.counts.Copies.Load(), "pack": c.counts.Packs.Load(), "failed": c.counts.Failed.Load()} {
		ch <- prometheus.MustNewConstMetric(collectedDesc, prometheus.CounterValue, float64(n), what)
	}
}

var (
	copiesDesc    = prometheus.NewDesc("cloud_sandbox_snapshot_copies_total", "Snapshots that were copied to the blob store, fetched from it, removed from the host or deleted with their copies, and failed attempts.", []string{"node", "step", "outcome"}, nil)
	copyHealDesc  = prometheus.NewDesc("cloud_sandbox_snapshots_healed_total", "Snapshots that were damaged or missing on the host, and were replaced by their copies.", nodeLabels, nil)
	copyBytesDesc = prometheus.NewDesc("cloud_sandbox_snapshot_copy_bytes_total", "Bytes sent to the blob store, and received from it.", []string{"node", "direction"}, nil)
	copyWaitDesc  = prometheus.NewDesc("cloud_sandbox_snapshots_uncopied", "Snapshots that are not copied yet.", nodeLabels, nil)
	copyLateDesc  = prometheus.NewDesc("cloud_sandbox_snapshots_backlog", "Snapshots that are not copied yet and were made before copies were enabled.", nodeLabels, nil)
	copyLateBytes = prometheus.NewDesc("cloud_sandbox_snapshots_backlog_bytes", "Total size of the snapshots that are not copied yet.", nodeLabels, nil)
	copyWhereDesc = prometheus.NewDesc("cloud_sandbox_snapshots_kept", "Snapshots on the host, and snapshots that are only in the blob store.", []string{"node", "where"}, nil)
	copyHereDesc  = prometheus.NewDesc("cloud_sandbox_snapshots_disk_bytes", "Total size of the snapshots on the host, before packing.", nodeLabels, nil)
	copyKeysDesc  = prometheus.NewDesc("cloud_sandbox_blobs_keys_old", "Keys of tenants that are not sealed with the first of the keys for copies of snapshots yet.", nodeLabels, nil)
	copyReachDesc = prometheus.NewDesc("cloud_sandbox_blobs_reachable", "Whether the last request to the blob store succeeded.", nodeLabels, nil)
)

// replicationCollector reads replication metrics.
type replicationCollector struct {
	engine *replication.Engine
	name   string
}

func (c *replicationCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{copiesDesc, copyHealDesc, copyBytesDesc, copyWaitDesc, copyLateDesc, copyLateBytes, copyWhereDesc, copyHereDesc, copyKeysDesc, copyReachDesc} {
		ch <- d
	}
}

func (c *replicationCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.engine.Stats()
	count := func(desc *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append([]string{c.name}, labels...)...)
	}
	count(copiesDesc, s.Copied, "copy", "ok")
	count(copiesDesc, s.CopyFailed, "copy", "failed")
	count(copiesDesc, s.Fetched, "fetch", "ok")
	count(copiesDesc, s.FetchFailed, "fetch", "failed")
	count(copiesDesc, s.Evicted, "evict", "ok")
	count(copiesDesc, s.Deleted, "delete", "ok")
	count(copyHealDesc, s.Healed)
	count(copyBytesDesc, s.PutBytes, "out")
	count(copyBytesDesc, s.GotBytes, "in")
	reachable := 1.0
	if s.Unreachable {
		reachable = 0
	}
	ch <- gauge(copyWaitDesc, float64(s.Waiting), c.name)
	ch <- gauge(copyLateDesc, float64(s.Backlog), c.name)
	ch <- gauge(copyLateBytes, float64(s.BacklogBytes), c.name)
	ch <- gauge(copyWhereDesc, float64(s.Here), c.name, "host")
	ch <- gauge(copyWhereDesc, float64(s.Away), c.name, "blobs")
	ch <- gauge(copyHereDesc, float64(s.HereBytes), c.name)
	ch <- gauge(copyKeysDesc, float64(s.OldKeys), c.name)
	ch <- gauge(copyReachDesc, reachable, c.name)
}

var (
	imageCopiesDesc = prometheus.NewDesc("cloud_sandbox_template_image_copies_total", "Images of templates that were copied to the blob store, or whose copies were deleted from it, and failed attempts.", []string{"node", "step", "outcome"}, nil)
	imageWaitDesc   = prometheus.NewDesc("cloud_sandbox_template_images_uncopied", "Images of templates that are not copied to the blob store yet.", nodeLabels, nil)
)

// imageCopiesCollector reads the metrics of copies of images.
type imageCopiesCollector struct {
	keeper *copies.Keeper
	name   string
}

func (c *imageCopiesCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- imageCopiesDesc
	ch <- imageWaitDesc
}

func (c *imageCopiesCollector) Collect(ch chan<- prometheus.Metric) {
	count := func(n int64, step, outcome string) {
		ch <- prometheus.MustNewConstMetric(imageCopiesDesc, prometheus.CounterValue, float64(n), c.name, step, outcome)
	}
	counts := c.keeper.Counts()
	count(counts.Copied.Load(), "copy", "ok")
	count(counts.CopyFailed.Load(), "copy", "failed")
	count(counts.Deleted.Load(), "delete", "ok")
	count(counts.DeleteFailed.Load(), "delete", "failed")
	ch <- gauge(imageWaitDesc, float64(c.keeper.Waiting()), c.name)
}
