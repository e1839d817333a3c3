package chaos

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/redistest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

// Variables of scripts/chaos.sh. Without the first one no cluster is started.
const (
	seedVariable     = "CHAOS_SEED"
	durationVariable = "CHAOS_DURATION"
	reportVariable   = "CHAOS_REPORT"  // a folder
	foldersVariable  = "CHAOS_FOLDERS" // a file for the data folders, one in a line
)

// site is a cluster, and all that it depends on.
type site struct {
	*rig.Fleet
	network *rig.Network
	db      *postgrestest.Server
	redis   *redistest.Server
	s3      *s3rig.Server
	disk    *rig.Disk // of node-b
	beats   *beats
	ops     *rig.Client
	live    func() []string // IDs of the Sandboxes that clients use
}

// diskBytes is the size of the disk of node-b.
const diskBytes = 6 << 30

// newSite starts a cluster whose nodes fence themselves after some seconds; empty: as by
// default.
func newSite(t *testing.T, fence string) *site {
	t.Helper()
	if os.Getenv(seedVariable) == "" {
		t.Skipf("%s is not set: see make chaos", seedVariable)
	}
	rig.Need(t)
	n := rig.NewNetwork(t)
	host := n.Host.String()
	s := &site{
		network: n, beats: newBeats(t, host),
		db: postgrestest.StartWith(t, postgrestest.Options{Host: host}), redis: redistest.StartOn(t, host), s3: s3rig.StartOn(t, host),
	}
	env := append(s.s3.Settings(s.s3.Bucket(t)), fmt.Sprintf("CLOUD_SANDBOX_BLOBS_KEY=%064x", 1),
		"POOL_MIN_SIZE=1", "POOL_MAX_SIZE=2", "CLOUD_SANDBOX_DATABASE="+s.db.Address(t), "RATE_LIMITS="+s.redis.URL(),
		"CLOUD_SANDBOX_EGRESS_OPEN="+s.beats.address)
	if fence != "" {
		env = append(env, "CLOUD_SANDBOX_FENCE_SECONDS="+fence)
	}
	s.Fleet = rig.NewCluster(t, n, env...)
	s.listFolders(t)
	s.disk = s.PutOnDisk(t, rig.FleetNode, diskBytes)
	s.StartAll(t)
	s.ops = s.hasty(s.Gateways().Operator(t))
	return s
}

// listFolders lists the data folders of the Machines in a file, so that a script can remove them
// after the end of a test process that was killed.
func (s *site) listFolders(t *testing.T) {
	t.Helper()
	path := os.Getenv(foldersVariable)
	if path == "" {
		return
	}
	var text strings.Builder
	for _, name := range []string{
		rig.FleetHome, rig.FleetNode, rig.FleetScheduler, rig.FleetSchedulerB, rig.FleetManager, rig.FleetManagerB, rig.FleetGatewayA, rig.FleetGatewayB,
	} {
		fmt.Fprintln(&text, s.Machine(name).Data)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// callLimit bounds a call of a client.
const callLimit = 20 * time.Second

// hasty returns a copy of c whose calls time out.
func (s *site) hasty(c *rig.Client) *rig.Client {
	copied := *c
	client := *c.HTTP
	client.Timeout = callLimit
	copied.HTTP = &client
	return &copied
}

func (s *site) node(i int) *rig.Machine {
	return s.Machine([]string{rig.FleetHome, rig.FleetNode}[i])
}

// drain sets whether Sandboxes leave a node.
func (s *site) drain(t *testing.T, node string, draining bool) {
	t.Helper()
	rig.Within(t, rig.Patience, "a node drains", func() bool {
		return s.ops.Try("PATCH", "/api/v1/nodes/"+node, rig.Body{"draining": draining}, nil) == nil
	})
}

// seed is the seed of this run.
func seed(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(os.Getenv(seedVariable), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedVariable, err)
	}
	return n
}

// judge writes the operations and drawings of illegal histories to files that begin with
// name, and returns a sentence for each.
func judge(t *testing.T, name string, r *Report, limit time.Duration) (failures []string) {
	t.Helper()
	base := filepath.Join(reportFolder(t), fmt.Sprintf("%s-%d", name, r.Seed))
	var text bytes.Buffer
	for _, o := range r.All {
		fmt.Fprintln(&text, o)
	}
	if err := os.WriteFile(base+".txt", text.Bytes(), 0o644); err != nil {
		t.Error(err)
	}
	r.Verdicts = Check(r.All, limit)
	for _, v := range r.Verdicts {
		if v.Result == "Ok" {
			continue
		}
		path := base + "-" + v.Sandbox + ".html"
		if err := v.Draw(path); err != nil {
			t.Error(err)
		}
		failures = append(failures, fmt.Sprintf("the history of %s, %d operations, is %s, from %q on: see %s", v.Sandbox, v.Operations, v.Result, v.Contradiction(r.All), path))
	}
	return failures
}

func reportFolder(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(reportVariable)
	if dir == "" {
		return t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// hostOf returns the address of a service of this host.
func hostOf(t *testing.T, address string) (net.IP, int) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return net.ParseIP(host), n
}
