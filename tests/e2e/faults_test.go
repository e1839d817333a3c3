package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/redistest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

// theCluster is the shared installation of cluster tests.
var theCluster struct {
	*rig.Fleet
	network *rig.Network
	db      *postgrestest.Server
	s3      *s3rig.Server
}

// startCluster starts two machines of each role, in network namespaces, and PostgreSQL,
// Redis and an S3 server that they reach.
func startCluster(t testing.TB) *rig.Server {
	n := rig.NewNetwork(t)
	host := n.Host.String()
	db := postgrestest.StartWith(t, postgrestest.Options{Host: host})
	s3 := s3rig.StartOn(t, host)
	env := append(inBucket(s3, s3.Bucket(t)),
		"SNAPSHOT_DISK_MB=", "CLOUD_SANDBOX_DOMAIN=sandbox.test:8080", "POOL_MIN_SIZE=2", "POOL_MAX_SIZE=2",
		"CLOUD_SANDBOX_DATABASE="+db.Address(t), "RATE_LIMITS="+redistest.StartOn(t, host).URL())
	theCluster.Fleet = rig.NewCluster(t, n, env...)
	theCluster.network, theCluster.db, theCluster.s3 = n, db, s3
	theCluster.StartAll(t)
	if rig.HasEarlier() {
		rollOut(t, theCluster.Fleet)
	}
	return theCluster.Gateways()
}

// aCluster returns the cluster, or skips the test if no cluster is tested. Tests of faults
// do not run in parallel: each has the cluster of its process for itself. Their names begin
// with TestCluster, by which scripts/test-cluster.sh gives them clusters beside those of the
// other tests.
func aCluster(t *testing.T) *rig.Fleet {
	t.Helper()
	if !rig.IsCluster() {
		t.Skip("no cluster is tested: see make test-cluster")
	}
	shared.Server(t)
	presentLeads(t, theCluster.Fleet)
	t.Cleanup(func() { presentLeads(t, theCluster.Fleet) })
	return theCluster.Fleet
}

// atOnce returns a copy of c whose calls time out after 20 s.
func atOnce(c *rig.Client) *rig.Client {
	hasty := *c
	client := *c.HTTP
	client.Timeout = 20 * time.Second
	hasty.HTTP = &client
	return &hasty
}

// The leader dies while 200 sessions are created through both gateways.
func TestClusterLeaderDies(t *testing.T) {
	f := aCluster(t)
	c := f.Gateways().Client(t, "many")
	leader, standby := f.Lead(t)
	back := sync.OnceFunc(func() {
		f.Start(t, leader.Name)
		f.Serves(t, leader.Name)
	})
	ids := createsSurvive(t, c, 200, "the death of the leader", func() {
		f.Kill(t, leader.Name)
		t.Cleanup(back) // also after a failure
	})
	if now, _ := f.Lead(t); now != standby {
		t.Errorf("%s leads", now.Name)
	}
	back()
	if now, _ := f.Lead(t); now != standby {
		t.Errorf("%s leads again", now.Name)
	}
	var all sync.WaitGroup
	for part := range slices.Chunk(ids, 50) {
		all.Go(func() {
			for _, id := range part {
				if err := c.Try("DELETE", "/api/v1/sessions/"+id, nil, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// ticker counts up from 0 in the Sandbox, five times a second, and serves its folder on
// port 8000.
const ticker = `python3 -m http.server 8000 >/dev/null 2>&1 &
i=0; while :; do echo $i; echo $i > /workspace/next; mv /workspace/next /workspace/ticks; i=$((i+1)); sleep 0.2; done`

// ticks is a running Sandbox with a ticker and an interpreter.
type ticks struct {
	id string
	c  *rig.Client
}

func newTicks(t testing.TB, c *rig.Client, id string) ticks {
	t.Helper()
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": id, "background": true, "command": ticker}, nil)
	c.Run(t, id, "python", "x = 40", nil)
	s := ticks{id, c}
	rig.Within(t, rig.Patience, "the port answers", func() bool { _, err := s.at(c.URL); return err == nil })
	return s
}

// at reads the number of ticks from the port, through a gateway.
func (s ticks) at(gateway string) (n int, err error) {
	req, err := http.NewRequest("GET", gateway+"/ticks", nil)
	if err != nil {
		return 0, err
	}
	req.Host = "8000-" + s.id + ".sandbox.test"
	resp, err := (&http.Client{Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	if err == nil {
		_, err = fmt.Sscan(string(text), &n)
	}
	return n, err
}

func (s ticks) remembers(t testing.TB) {
	t.Helper()
	if got := s.c.Run(t, s.id, "python", "print(x + 2)", nil); got.Stdout != "42\n" {
		t.Errorf("the interpreter of %s: %s", s.id, got)
	}
}

// PostgreSQL is down for a minute. Ports keep answering, the API answers 503 with
// Retry-After, Sandboxes keep running, and creates work again afterwards.
func TestClusterWithoutDatabase(t *testing.T) {
	f := aCluster(t)
	c := f.Gateways().Client(t, "recordless")
	var all []ticks
	for _, id := range onBothNodes(t, f, c, rig.Body{"timeout_seconds": 1800}) {
		all = append(all, newTicks(t, c, id))
	}
	began := time.Now()
	before := make([]int, len(all))
	for i, s := range all { // fills the gateways' caches of recently served sandboxes
		for _, name := range []string{rig.FleetGatewayA, rig.FleetGatewayB} {
			var err error
			if before[i], err = s.at(f.Machine(name).URL); err != nil {
				t.Fatal(err)
			}
		}
	}
	theCluster.db.Stop(t)
	away := true
	t.Cleanup(func() {
		if away {
			theCluster.db.Run(t)
		}
	})
	hasty := atOnce(c)
	for time.Since(began) < time.Minute {
		for _, s := range all {
			for _, name := range []string{rig.FleetGatewayA, rig.FleetGatewayB} {
				if _, err := s.at(f.Machine(name).URL); err != nil {
					t.Errorf("after %v, the port of %s through %s: %v", time.Since(began), s.id, name, err)
				}
			}
		}
		for range 2 {
			resp, err := hasty.HTTP.Do(hasty.Request(t, "GET", "/api/v1/sessions", nil))
			if err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
				t.Errorf("after %v a list answers %s, Retry-After %q", time.Since(began), resp.Status, resp.Header.Get("Retry-After"))
			}
		}
		time.Sleep(time.Second)
	}
	theCluster.db.Run(t)
	away = false
	f.Lead(t)
	for range 2 { // through either gateway
		rig.Within(t, rig.Patience, "sandboxes can be created again", func() bool {
			var sb rig.Sandbox
			return hasty.Try("POST", "/api/v1/sessions", littleSession(""), &sb) == nil && hasty.Try("DELETE", "/api/v1/sessions/"+sb.ID, nil, nil) == nil
		})
	}
	took := time.Since(began)
	for i, s := range all {
		if got := c.Get(t, s.id); got.State != "running" {
			t.Errorf("%s is %s, %s", s.id, got.State, got.Cause())
		}
		s.remembers(t)
		if n, err := s.at(c.URL); err != nil || n-before[i] < int(took.Seconds()) { // five a second on an idle machine
			t.Errorf("%s counted from %d to %d in %v: %v", s.id, before[i], n, took, err)
		}
	}
}

// PostgreSQL is frozen: connections are open, and nothing answers. The API answers 503
// with Retry-After within seconds, also calls that came before the silence was noticed, and
// has done nothing. Ports keep answering, and creates work again when PostgreSQL goes on.
func TestClusterWithFrozenDatabase(t *testing.T) {
	f := aCluster(t)
	rig.LacksEarlier(t, "its gateways wait for a frozen database")
	c := f.Gateways().Client(t, "frozen")
	s := newTicks(t, c, c.Create(t, rig.Body{"timeout_seconds": 1800}).ID)
	changed := c.Create(t, rig.Body{"timeout_seconds": 1800}).ID
	gateways := []string{f.Machine(rig.FleetGatewayA).URL, f.Machine(rig.FleetGatewayB).URL}
	for _, gateway := range gateways {
		if _, err := s.at(gateway); err != nil {
			t.Fatal(err)
		}
	}
	theCluster.db.Freeze(t, true)
	thaw := sync.OnceFunc(func() { theCluster.db.Freeze(t, false) })
	t.Cleanup(thaw)
	hasty := atOnce(c)
	calls := []struct{ method, path, body string }{
		{"GET", "/api/v1/sessions", ""},
		{"POST", "/api/v1/sessions", "{}"},
		{"PATCH", "/api/v1/sessions/" + changed, `{"metadata":{"a":"b"}}`},
		{"DELETE", "/api/v1/sessions/" + changed, ""},
	}
	for began := time.Now(); time.Since(began) < 20*time.Second; {
		var all sync.WaitGroup
		for _, call := range calls {
			all.Go(func() {
				asked := time.Now()
				req := hasty.Request(t, call.method, call.path, strings.NewReader(call.body))
				req.Header.Set("Content-Type", "application/json")
				resp, err := hasty.HTTP.Do(req)
				if err != nil {
					t.Errorf("after %v, %s: %v", time.Since(began), call.method, err)
					return
				}
				resp.Body.Close()
				if took := time.Since(asked); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || took > 19*time.Second {
					t.Errorf("after %v, %s answers %s in %v, Retry-After %q", time.Since(began), call.method, resp.Status, took, resp.Header.Get("Retry-After"))
				}
			})
		}
		all.Wait()
		for _, gateway := range gateways {
			if _, err := s.at(gateway); err != nil {
				t.Errorf("after %v, the port through %s: %v", time.Since(began), gateway, err)
			}
		}
	}
	thaw()
	f.Lead(t)
	rig.Within(t, rig.Patience, "sandboxes can be created again", func() bool {
		var sb rig.Sandbox
		return hasty.Try("POST", "/api/v1/sessions", littleSession(""), &sb) == nil && hasty.Try("DELETE", "/api/v1/sessions/"+sb.ID, nil, nil) == nil
	})
	s.remembers(t)
	if got := c.Get(t, changed); got.State != "running" || len(got.Metadata) != 0 {
		t.Errorf("the changes were refused, and the sandbox is %s with %v", got.State, got.Metadata)
	}
}

// A node's packets are dropped. Calls that do not need the node are not delayed, and its
// Sandboxes are intact when it is back.
func TestClusterNodeCutOff(t *testing.T) {
	f := aCluster(t)
	c := f.Gateways().Client(t, "cut-off")
	ids := onBothNodes(t, f, c, rig.Body{"timeout_seconds": 1800})
	var near, far ticks
	for _, id := range ids {
		if _, here := f.Machine(rig.FleetHome).Runs(id); here {
			near = newTicks(t, c, id)
		} else {
			far = newTicks(t, c, id)
		}
	}
	hasty := atOnce(c)
	calls := []struct {
		name string
		call func() error
	}{
		{"list", func() error { return hasty.Try("GET", "/api/v1/sessions", nil, nil) }},
		{"read a record of the node", func() error { return hasty.Try("GET", "/api/v1/sessions/"+far.id, nil, nil) }},
		{"execute", func() error { _, err := hasty.TryRun(near.id, "bash", "true", nil); return err }},
		{"file", func() error {
			return hasty.Try("PUT", rig.Files("", near.id, "/workspace/file"), []byte("content"), nil)
		}},
		{"port", func() error { _, err := near.at(c.URL); return err }},
		{"create and end", func() error {
			var sb rig.Sandbox
			if err := hasty.Try("POST", "/api/v1/sessions", littleSession(""), &sb); err != nil {
				return err
			}
			return hasty.Try("DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
		}},
	}
	times := func(rounds int) map[string][]time.Duration {
		took := map[string][]time.Duration{}
		for range rounds {
			for _, call := range calls {
				began := time.Now()
				if err := call.call(); err != nil {
					t.Errorf("%s: %v", call.name, err)
				}
				took[call.name] = append(took[call.name], time.Since(began))
			}
		}
		for _, all := range took {
			slices.Sort(all)
		}
		return took
	}
	before := times(8)
	f.Machine(rig.FleetNode).Net.Cut(t)
	cut := times(20)
	for name, all := range cut {
		longest, took := before[name][len(before[name])-1], all[len(all)-3] // two may be delays of this machine
		t.Logf("%s: at most %v before, %v while the node was cut off, but for two", name, longest, took)
		limit := longest + time.Second
		if name == "create and end" { // it may be placed there: it takes another node after about a second
			limit += 2 * time.Second
		}
		if took > limit {
			t.Errorf("%s took %v while another node was cut off, and %v before", name, took, longest)
		}
	}
	f.Machine(rig.FleetNode).Net.Mend(t)
	rig.Within(t, rig.Patience, "the node is back", func() bool { _, err := hasty.TryRun(far.id, "bash", "true", nil); return err == nil })
	far.remembers(t)
	near.remembers(t)
	rig.Within(t, rig.Patience, "the node gets sandboxes", func() bool {
		_, there := f.Machine(rig.FleetNode).Runs(c.Create(t, littleSession("")).ID)
		return there
	})
}

// A node has no access to the database, and its operator ends what it runs all the same:
// the session-manager records it. Sandboxes on other nodes go on.
func TestClusterNodeDown(t *testing.T) {
	f := aCluster(t)
	c := f.Gateways().Client(t, "down")
	var gone, kept []string
	node := f.Machine(rig.FleetNode)
	for _, id := range onBothNodes(t, f, c, rig.Body{"timeout_seconds": 1800}) {
		if _, here := node.Runs(id); here {
			gone = append(gone, id)
		} else {
			kept = append(kept, id)
		}
	}
	for _, file := range []string{"database", "cloud-sandbox.db"} {
		if _, err := os.Lstat(filepath.Join(node.Data, "server", file)); err == nil {
			t.Errorf("the node has server/%s", file)
		}
	}
	back := sync.OnceFunc(func() {
		f.Start(t, node.Name)
		f.Serves(t, node.Name)
	})
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"builds"}, "GVISOR"},
		{[]string{"saved-on", "build", "another"}, `"needed":false`},
		{[]string{"saved-on", "image", "another"}, `"needed":false`},
		{[]string{"key", "list", "--tenant", "down"}, "the data folder of a node, which has no access to the database"},
	} {
		out, _ := rig.Command(node.Bin, append(tt.args, "--data", node.Data)...).CombinedOutput()
		if !strings.Contains(string(out), tt.want) {
			t.Errorf("%q on the node: %s", tt.args, out)
		}
	}
	f.Halt(t, node.Name)
	t.Cleanup(back) // also after a failure
	out, err := rig.Command(node.Bin, "down", "--data", node.Data).CombinedOutput()
	_, number, _ := strings.Cut(string(out), "sandboxes ended: ")
	var ended int // others may run there: creates that took effect while the database went away
	if _, scanned := fmt.Sscan(number, &ended); err != nil || scanned != nil || ended < len(gone) {
		t.Errorf("down: %v: %s, want at least %d", err, out, len(gone))
	}
	for _, id := range gone {
		if got := c.Get(t, id); got.State != "ended" || got.Cause() != "operator" {
			t.Errorf("%s is %s, %s", id, got.State, got.Cause())
		}
	}
	for _, id := range kept {
		works(t, c, id)
	}
	back()
}

// No tenant data passes between the roles of a cluster unencrypted.
func TestClusterWire(t *testing.T) {
	f := aCluster(t)
	capture := theCluster.network.Capture(t)
	c := f.Gateways().Client(t, "tenant-of-the-cluster")
	c.Must(t, "POST", "/api/v1/secrets", rig.Body{"name": "API_KEY", "value": secretValue}, nil)
	for _, id := range onBothNodes(t, f, c, rig.Body{"secrets": []rig.Body{{"name": "API_KEY", "host": "api.example", "header": "authorization", "format": "Bearer {value}"}}}) {
		code := fmt.Sprintf("# %s\nprint(%q.replace('X', ''))", codeMark, strings.ReplaceAll(outputMark, "-", "X-"))
		if got := output(t, c, id, "python", code); got != outputMark+"\n" {
			t.Errorf("code: %q", got)
		}
		c.Must(t, "PUT", rig.Files("", id, "/workspace/file"), bytes.Repeat([]byte(fileMark+" "), 10_000), nil)
		c.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", rig.Body{}, nil)
		works(t, c, id)
	}
	c.Must(t, "DELETE", "/api/v1/secrets/API_KEY", nil, nil)
	passed := capture.Passed(t)
	if len(passed) < 200_000 {
		t.Errorf("only %d bytes passed between the roles", len(passed))
	}
	for _, text := range inTheClear {
		if bytes.Contains(passed, []byte(text)) {
			t.Errorf("%q passed in the clear", text)
		}
	}
}

// nodeUse is the part of a node's records that tests read.
type nodeUse struct {
	Draining, Lost bool
	FenceSeconds   float64 `json:"fence_seconds"`
	Records        struct {
		Running, Paused, Snapshots, Volumes int

		Uncopied int `json:"uncopied_snapshots"`
	}
}

// A node drains under use: its sandboxes go on elsewhere with their memory, processes,
// open terminals and files, and output arrives once. Then the other one drains back.
func TestClusterDrain(t *testing.T) {
	rig.LacksEarlier(t, "its nodes have no certified keys, and its gateways do not drain")
	f := aCluster(t)
	gateways := f.Gateways()
	c, ops := gateways.Client(t, "drained"), gateways.Operator(t)
	drain := drainer(t, ops)
	node := func(name string) (n nodeUse) {
		t.Helper()
		ops.Must(t, "GET", "/api/v1/nodes/"+name, nil, &n)
		return n
	}
	t.Cleanup(func() { drain(rig.FleetHome, false); drain(rig.FleetNode, false) })
	if n := node(rig.FleetHome).Records; n.Running > 0 || n.Paused > 0 {
		t.Logf("%+v of other tests are on the node", n)
	}

	drain(rig.FleetNode, true)
	var all []ticks
	for range 6 {
		all = append(all, newTicks(t, c, placedOn(t, f, c, rig.FleetHome, rig.Body{"timeout_seconds": 900})))
	}
	paused := placedOn(t, f, c, rig.FleetHome, rig.Body{"timeout_seconds": 900, "on_timeout": "pause"})
	c.Run(t, paused, "python", "x = 40", nil)
	theCluster.s3.Stop() // so that a kept snapshot has no copy there
	s3Up := sync.OnceFunc(func() {
		if err := theCluster.s3.Up(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s3Up)
	var kept struct {
		ID string `json:"snapshot_id"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+paused+"/snapshots", rig.Body{"name": "kept"}, &kept)
	c.Must(t, "POST", "/api/v1/sessions/"+paused+"/pause", nil, nil)
	drain(rig.FleetNode, false)
	if n := node(rig.FleetHome).Records; n.Uncopied == 0 {
		t.Errorf("the kept snapshot is not on the node alone: %+v", n)
	}

	// Lines that one command prints while its sandbox moves, both ways.
	streamed := make(chan string, 1)
	exec := rig.Command(gateways.Bin, "exec", all[0].id, "--", "sh", "-c", "i=0; until [ -e /tmp/stop ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo end")
	exec.Env = append(os.Environ(), "CLOUD_SANDBOX_URL="+gateways.URL, "CLOUD_SANDBOX_API_KEY="+c.Token)
	var stderr bytes.Buffer
	exec.Stderr = &stderr
	stdout, err := exec.StdoutPipe()
	if err == nil {
		err = exec.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 2)
	if _, err := io.ReadFull(stdout, first); err != nil {
		t.Fatal(err)
	}
	go func() {
		out, err := io.ReadAll(stdout)
		streamed <- fmt.Sprintf("%s%s%v", first, out, errors.Join(err, exec.Wait()))
	}()
	for _, leg := range []struct{ from, to string }{{rig.FleetHome, rig.FleetNode}, {rig.FleetNode, rig.FleetHome}} {
		takes(t, f, c, leg.to) // otherwise they are tried again only half a minute later
		before := make([]int, len(all))
		for i, s := range all {
			before[i] = s.now(t)
		}
		drain(leg.from, true)
		rig.Within(t, 3*rig.Patience, leg.from+" is empty", func() bool {
			n := node(leg.from)
			return n.Draining && n.Records.Running == 0 && n.Records.Paused == 0 && n.Records.Uncopied == 0
		})
		if leg.from == rig.FleetHome { // S3 has no copy
			if n := node(rig.FleetNode).Records; n.Snapshots == 0 {
				t.Errorf("the kept snapshot has not moved: %+v", n)
			}
			from := c.Create(t, rig.Body{"snapshot_id": kept.ID, "timeout_seconds": 60}).ID
			if got := c.Run(t, from, "python", "print(x + 1)", nil); got.Stdout != "41\n" {
				t.Errorf("from the snapshot that moved: %s", got)
			}
			c.Must(t, "DELETE", "/api/v1/sessions/"+from, nil, nil)
			s3Up()
		}
		for i, s := range all {
			s.remembers(t)
			rig.Within(t, rig.Patience, "its processes go on", func() bool { n, err := s.at(c.URL); return err == nil && n > before[i] })
		}
		drain(leg.from, false)
	}
	if got := c.Run(t, paused, "python", "print(x + 2)", nil); got.Stdout != "42\n" {
		t.Errorf("the paused one: %s", got)
	}
	c.Sh(t, all[0].id, "touch /tmp/stop")
	got, want := <-streamed, ""
	for i := range strings.Count(got, "\n") - 1 {
		want += fmt.Sprintln(i + 1)
	}
	if got != want+"end\n<nil>" {
		t.Errorf("the output of a command that moved: %q, %s", got, stderr.Bytes())
	}
	for _, s := range append(all, ticks{paused, c}) {
		c.Must(t, "DELETE", "/api/v1/sessions/"+s.id, nil, nil)
	}
}

// A sandbox with much memory leaves its node over a slow line, and stands still for a part of
// the time that its memory takes.
func TestClusterDrainAhead(t *testing.T) {
	rig.LacksEarlier(t, "its nodes carry no state ahead")
	f := aCluster(t)
	gateways := f.Gateways()
	c, ops := gateways.Client(t, "large"), gateways.Operator(t)
	drain := drainer(t, ops)
	t.Cleanup(func() { drain(rig.FleetHome, false); drain(rig.FleetNode, false) })
	drain(rig.FleetNode, true)
	id := placedOn(t, f, c, rig.FleetHome, rig.Body{"timeout_seconds": 900})
	c.Run(t, id, "python", `import hashlib, os, threading, time
memory = [os.urandom(1 << 20) for _ in range(128)]
digest = lambda: hashlib.sha256(b"".join(memory)).hexdigest()
was, gap, last = digest(), 0, time.time()
def watch():
    global gap, last
    while True:
        now = time.time()
        gap, last = max(gap, now - last), now
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()`, nil)
	drain(rig.FleetNode, false)
	takes(t, f, c, rig.FleetNode)
	const rate, line = 8 << 20, 16.0 // seconds for its memory
	f.Machine(rig.FleetNode).Net.Slow(t, rate)
	drain(rig.FleetHome, true)
	rig.Within(t, 3*rig.Patience, "it has left", func() bool {
		_, there := f.Machine(rig.FleetNode).Runs(id)
		return there
	})
	got := c.Run(t, id, "python", "print(digest() == was, gap)", nil)
	var same string
	var stall float64
	if _, err := fmt.Sscan(got.Stdout, &same, &stall); err != nil || same != "True" {
		t.Fatalf("it says %s", got)
	}
	t.Logf("128 MB of memory over %d MB/s, which takes %.0f s: it stood still for %.1f s", rate>>20, line, stall)
	if stall > 0.75*line { // if all of it followed at the end, it would be more than the line takes
		t.Errorf("it stood still for %.1f s", stall)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
}

// A machine is lost with all its processes. What was paused there resumes on the other one
// from its copy in S3, and what had a checkpoint does once an operator has declared the
// machine lost. It comes back, loses its disk, and gets the states from S3.
func TestClusterNodeLost(t *testing.T) {
	rig.LacksEarlier(t, "its nodes do not fetch states of other nodes")
	f := aCluster(t)
	gateways := f.Gateways()
	c, ops := gateways.Client(t, "unlucky"), gateways.Operator(t)
	machine := f.Machine(rig.FleetNode)
	change := func(node string, body rig.Body) error { return ops.Try("PATCH", "/api/v1/nodes/"+node, body, nil) }
	drainHome := func(draining bool) {
		t.Helper()
		if err := change(rig.FleetHome, rig.Body{"draining": draining}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { drainHome(false) })
	drainHome(true)
	create := func(body rig.Body, code string) string {
		t.Helper()
		body["timeout_seconds"] = 900
		id := placedOn(t, f, c, machine.Name, body)
		c.Run(t, id, "python", code, nil)
		return id
	}
	paused := create(rig.Body{"on_timeout": "pause"}, "x = 40")
	saved := create(rig.Body{"on_timeout": "pause", "checkpoint_every_seconds": 3600}, "x = 1")
	c.Must(t, "POST", "/api/v1/sessions/"+saved+"/snapshots", rig.Body{}, nil)
	c.Run(t, saved, "python", "x = 2", nil)
	unsaved := create(rig.Body{}, "x = 3")
	rebooted := create(rig.Body{"on_timeout": "pause"}, "open('/tmp/kept', 'w').write('here')\nx = 5")
	for _, id := range []string{paused, rebooted} {
		c.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", nil, nil)
	}
	copied := func() {
		t.Helper()
		rig.Within(t, rig.Patience, "the states are copied", func() bool { return machine.Metric("cloud_sandbox_snapshots_uncopied") == 0 })
	}
	copied()
	drainHome(false)

	f.Lose(t, machine.Name)
	back := sync.OnceFunc(func() { f.Start(t, machine.Name); f.Serves(t, machine.Name) })
	t.Cleanup(back) // also after a failure
	if err := change(machine.Name, rig.Body{"lost": true}); !strings.Contains(fmt.Sprint(err), "renews its lease") {
		t.Errorf("declared lost at once: %v", err)
	}
	resumed := func(id, code, want string) {
		t.Helper()
		var got rig.Result
		var err error
		rig.Within(t, rig.Patience, "it resumes on the other machine", func() bool {
			got, err = c.TryRun(id, "python", code, nil)
			return err == nil
		})
		if got.Stdout != want {
			t.Errorf("%s prints %q, %+v", code, got.Stdout, got)
		}
	}
	began := time.Now()
	resumed(paused, "print(x + 2)", "42\n")
	t.Logf("the paused one ran %v after the loss", time.Since(began).Round(time.Millisecond))
	rig.Within(t, rig.Patience, "one reboots on the other machine", func() bool {
		return c.Try("POST", "/api/v1/sessions/"+rebooted+"/resume", rig.Body{"memory": false}, nil) == nil
	})
	resumed(rebooted, "print(open('/tmp/kept').read(), 'x' in globals())", "here False\n")
	c.Must(t, "DELETE", "/api/v1/sessions/"+rebooted, nil, nil)
	rig.Within(t, rig.Patience, "the node can be declared lost", func() bool { return change(machine.Name, rig.Body{"lost": true}) == nil })
	resumed(saved, "print(x)", "1\n")
	var s rig.Sandbox
	rig.Within(t, rig.Patience, "what was not saved ends", func() bool {
		return c.Try("GET", "/api/v1/sessions/"+unsaved, nil, &s) == nil && s.State == "ended"
	})
	if s.Ended == nil || s.Ended.Cause != "node_lost" {
		t.Errorf("it ended with %+v", s.Ended)
	}

	back()
	rig.Within(t, rig.Patience, "the node is not lost", func() bool {
		var n nodeUse
		return ops.Try("GET", "/api/v1/nodes/"+machine.Name, nil, &n) == nil && !n.Lost
	})
	takes(t, f, c, machine.Name)
	drainHome(true) // both move back
	rig.Within(t, 3*rig.Patience, "they moved back", func() bool {
		var n nodeUse
		return ops.Try("GET", "/api/v1/nodes/"+rig.FleetHome, nil, &n) == nil && n.Records.Running+n.Records.Paused == 0
	})
	c.Must(t, "POST", "/api/v1/sessions/"+saved+"/pause", nil, nil)
	copied()
	drainHome(false)
	c.Must(t, "DELETE", "/api/v1/sessions/"+paused, nil, nil)
	state := c.Get(t, saved).SnapshotID
	f.Lose(t, machine.Name)
	if _, err := os.Stat(filepath.Join(machine.Data, "saved", state)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join("saved", state), "server/offload"} { // but not its certificates
		if err := os.RemoveAll(filepath.Join(machine.Data, dir)); err != nil {
			t.Fatal(err)
		}
	}
	f.Start(t, machine.Name)
	f.Serves(t, machine.Name)
	resumed(saved, "print(x + 10)", "11\n")
	c.Must(t, "DELETE", "/api/v1/sessions/"+saved, nil, nil)
}

// now waits for the number of ticks.
func (s ticks) now(t testing.TB) (n int) {
	t.Helper()
	rig.Within(t, rig.Patience, "the port answers", func() (ok bool) {
		var err error
		n, err = s.at(s.c.URL)
		return err == nil
	})
	return n
}
