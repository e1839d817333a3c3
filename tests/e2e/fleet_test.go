package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// imagesOn lists the images on a Machine, by version.
func imagesOn(t *testing.T, f *rig.Fleet, name string) (versions []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(f.Machine(name).Data, "templates", "images", "*.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		versions = append(versions, strings.TrimSuffix(filepath.Base(file), ".erofs"))
	}
	return versions
}

// onBothNodes creates Sandboxes until each Node runs one of them, and returns them.
func onBothNodes(t testing.TB, f *rig.Fleet, c *rig.Client, body rig.Body) (ids []string) {
	t.Helper()
	nodes := []string{rig.FleetHome, rig.FleetNode}
	runs := map[string]bool{}
	create := func(body rig.Body) {
		id := c.Create(t, body).ID
		ids = append(ids, id)
		rig.Within(t, rig.Patience, "a node runs the sandbox "+id, func() bool {
			for _, name := range nodes {
				if _, here := f.Machine(name).Runs(id); here {
					runs[name] = true
					return true
				}
			}
			return false
		})
	}
	for range 8 {
		if create(body); len(runs) == len(nodes) {
			return ids
		}
	}
	// The scheduler prefers a Node that has the image while its queue is short. A
	// Sandbox with a Volume starts on the Volume's Node.
	for _, name := range nodes {
		if !runs[name] {
			with := rig.Body{"volumes": []rig.Body{{"volume": volumeOn(t, f, c, name), "path": "/data"}}}
			maps.Copy(with, body)
			if create(with); !runs[name] {
				t.Fatalf("the sandbox with a volume of the node %s is not there", name)
			}
		}
	}
	return ids
}

// volumeOn creates Volumes until one is on a Node, and returns its name: the schedulers hear
// some seconds later that a Node takes Volumes again.
func volumeOn(t testing.TB, f *rig.Fleet, c *rig.Client, node string) (name string) {
	t.Helper()
	rig.Within(t, rig.Patience, "a volume on "+node, func() bool {
		var v struct {
			ID string `json:"volume_id"`
		}
		name = fmt.Sprintf("%s-%d", node, time.Now().UnixNano())
		c.Must(t, "POST", "/api/v1/volumes", rig.Body{"name": name}, &v)
		_, err := os.Stat(filepath.Join(f.Machine(node).Data, "volumes", "kept", v.ID))
		if err != nil {
			c.Must(t, "DELETE", "/api/v1/volumes/"+name, nil, nil)
		}
		return err == nil
	})
	return name
}

// placedOn creates Sandboxes until one runs on a Node, and returns its ID: the schedulers
// hear of a drain, and of its end, some seconds later.
func placedOn(t *testing.T, f *rig.Fleet, c *rig.Client, node string, body rig.Body) (id string) {
	t.Helper()
	rig.Within(t, rig.Patience, "a sandbox on "+node, func() bool {
		id = c.Create(t, body).ID
		_, here := f.Machine(node).Runs(id)
		if !here {
			c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
		}
		return here
	})
	return id
}

// drainer returns a function that sets whether a Node drains.
func drainer(t *testing.T, ops *rig.Client) func(node string, draining bool) {
	return func(node string, draining bool) {
		t.Helper()
		ops.Must(t, "PATCH", "/api/v1/nodes/"+node, rig.Body{"draining": draining}, nil)
	}
}

// takes waits until the scheduler that the leader asks knows that a Node takes Sandboxes
// again.
func takes(t *testing.T, f *rig.Fleet, c *rig.Client, node string) {
	t.Helper()
	c.Must(t, "DELETE", "/api/v1/sessions/"+placedOn(t, f, c, node, littleSession("")), nil, nil)
}

// An installation whose roles share no data folder works like a single process, through
// any of its gateways.
func TestFleet(t *testing.T) {
	rig.OneMachine(t)
	f := rig.NewFleet(t, "CLOUD_SANDBOX_DATABASE="+postgrestest.Start(t).Address(t))
	f.StartAll(t)
	a := f.Machine(rig.FleetGatewayA).Client(t, "fleet")
	b := f.Machine(rig.FleetGatewayB).Anyone(t)
	b.Token = a.Token // both gateways accept the token
	if len(imagesOn(t, f, rig.FleetNode)) == 0 {
		t.Error("the node has filled its pool without the image of its template")
	}

	ids := onBothNodes(t, f, a, rig.Body{"timeout_seconds": 600})
	for _, id := range ids {
		a.Run(t, id, "python", "x = 40", nil)
		if got := b.Run(t, id, "python", "print(x + 2)", nil); got.Stdout != "42\n" {
			t.Errorf("what one gateway began is at the other: %s", got)
		}
		content := bytes.Repeat([]byte("content "), 1<<15)
		a.Must(t, "PUT", rig.Files("", id, "/workspace/file"), content, nil)
		if status, raw, err := b.Do("GET", rig.Files("", id, "/workspace/file"), nil); err != nil || status != http.StatusOK || !bytes.Equal(raw, content) {
			t.Errorf("a file of the other gateway: %d, %d bytes, %v", status, len(raw), err)
		}
		b.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", rig.Body{}, nil)
		a.Must(t, "POST", "/api/v1/sessions/"+id+"/resume", rig.Body{}, nil)
		if got := b.Run(t, id, "python", "print(x)", nil); got.Stdout != "40\n" {
			t.Errorf("after pause and resume: %s", got)
		}
	}

	t.Run("a key", func(t *testing.T) { fleetKey(t, f) })
	t.Run("a secret", func(t *testing.T) {
		a.Must(t, "POST", "/api/v1/secrets", rig.Body{"name": "TOKEN", "value": "a value"}, nil)
		var list struct {
			Secrets []struct{ Name string } `json:"secrets"`
		}
		b.Must(t, "GET", "/api/v1/secrets", nil, &list)
		if len(list.Secrets) != 1 || list.Secrets[0].Name != "TOKEN" {
			t.Errorf("the other gateway lists %+v", list)
		}
	})
	t.Run("a template", func(t *testing.T) { fleetTemplate(t, f, a, b) })
	t.Run("files of a build", func(t *testing.T) {
		uploadsThroughGateways(t, f, a, b, f.Machine(rig.FleetGatewayB).Client(t, "other"))
	})
	t.Run("a gateway dies", func(t *testing.T) {
		f.Kill(t, rig.FleetGatewayA)
		for _, id := range ids {
			if got := b.Run(t, id, "python", "print(x)", nil); got.Stdout != "40\n" {
				t.Errorf("at the other gateway: %s", got)
			}
		}
		b.Create(t, nil)
		f.Start(t, rig.FleetGatewayA)
		f.Serves(t, rig.FleetGatewayA)
		if got := a.Run(t, ids[0], "python", "print(x)", nil); got.Stdout != "40\n" {
			t.Errorf("at the gateway that is back: %s", got)
		}
	})
	for _, id := range ids {
		b.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
		if got := a.Get(t, id); got.State != "ended" {
			t.Errorf("it is %s at the other gateway", got.State)
		}
	}
	t.Run("the home of templates dies", func(t *testing.T) { fleetWithoutHome(t, f, a) })
}

// fleetKey makes a key on the machine of one gateway and uses it at the other.
func fleetKey(t *testing.T, f *rig.Fleet) {
	m := f.Machine(rig.FleetGatewayA)
	var stdout, stderr bytes.Buffer
	cmd := rig.Command(m.Bin, "key", "create", "--data", m.Data, "--tenant", "fleet", "--name", "ci")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("key create: %v: %s", err, stderr.Bytes())
	}
	c := f.Machine(rig.FleetGatewayB).Anyone(t)
	c.Token = strings.TrimSpace(stdout.String())
	c.Must(t, "GET", "/api/v1/sessions", nil, nil)
}

// fleetTemplate builds Templates through one gateway, and starts from them on each Node
// through the other.
func fleetTemplate(t *testing.T, f *rig.Fleet, a, b *rig.Client) {
	made := upload(t, a, `{"template":"mine:1","source":"tar:","env":{"HI":"there"}}`, tarOf(t, tinyRoot(t)))
	log, done := follow(t, b, made.ID)
	if done.State != "ready" || !strings.HasSuffix(log, "ready: version "+done.Version+"\n") {
		t.Fatalf("the other gateway tells of %+v with %s", done, log)
	}
	if slices.Contains(imagesOn(t, f, rig.FleetNode), done.Version) {
		t.Error("the image is where nobody needs it")
	}
	for _, id := range onBothNodes(t, f, b, rig.Body{"template": "mine:1"}) {
		if got := output(t, a, id, "bash", "echo $HI"); got != "there\n" {
			t.Errorf("inside: %q", got)
		}
	}
	if !slices.Contains(imagesOn(t, f, rig.FleetNode), done.Version) {
		t.Error("the node runs from an image that it does not have")
	}
	// Sandboxes on the other Node also prevent its removal.
	if status, raw, err := b.Do("DELETE", "/api/v1/templates/mine", nil); err != nil || status != http.StatusConflict {
		t.Errorf("DELETE of a template in use: %d %s %v", status, raw, err)
	}

	// A build with steps runs in a Sandbox on either Node.
	text, err := json.Marshal(rig.Body{"template": "steps", "dockerfile": "FROM base\nRUN echo built | sudo tee /srv/made\n"})
	if err != nil {
		t.Fatal(err)
	}
	var steps templateBuild
	a.Must(t, "POST", "/api/v1/templates", text, &steps)
	if log, done = follow(t, b, steps.ID); done.State != "ready" || !strings.Contains(log, "RUN echo built") {
		t.Fatalf("the other gateway tells of %+v with %s", done, log)
	}
	var list struct{ Builds []templateBuild }
	for _, c := range []*rig.Client{a, b} {
		c.Must(t, "GET", "/api/v1/builds", nil, &list)
		if len(list.Builds) != 2 || list.Builds[0].ID != steps.ID || list.Builds[1].ID != made.ID {
			t.Errorf("builds: %+v", list.Builds)
		}
	}
	a.Must(t, "POST", "/api/v1/templates", rig.Body{"template": "slow", "dockerfile": "FROM base\nRUN sleep 600\n"}, &steps)
	b.Must(t, "DELETE", "/api/v1/builds/"+steps.ID, nil, &steps)
	if steps.State != "cancelled" {
		t.Errorf("cancelled at the other gateway: %+v", steps)
	}
	for _, id := range onBothNodes(t, f, b, rig.Body{"template": "steps"}) {
		if got := output(t, b, id, "bash", "cat /srv/made"); got != "built\n" {
			t.Errorf("inside: %q", got)
		}
	}
}

// fleetWithoutHome checks that a create works while the Node that keeps the Templates is
// down, if the other Node has the image, and that other uses of Templates are refused.
// After its restart, existing and new Sandboxes work.
func fleetWithoutHome(t *testing.T, f *rig.Fleet, c *rig.Client) {
	running := onBothNodes(t, f, c, nil)
	f.Kill(t, rig.FleetHome)
	works(t, c, c.Create(t, nil).ID)
	for path, body := range map[string]any{"/api/v1/templates": nil, "/api/v1/sessions": rig.Body{"template": "never-asked-for"}} {
		method := "POST"
		if body == nil {
			method = "GET"
		}
		if status, raw, err := c.Do(method, path, body); err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("%s %s: %d %s, %v", method, path, status, raw, err)
		}
	}
	f.Start(t, rig.FleetHome)
	f.Serves(t, rig.FleetHome)
	for _, id := range running {
		works(t, c, id)
	}
	works(t, c, c.Create(t, nil).ID)
}

// A gateway with a different guest seed does not start, because it could not reach the
// Sandboxes.
func TestFleetWithAnotherSeed(t *testing.T) {
	rig.OneMachine(t)
	f := rig.NewFleet(t, "CLOUD_SANDBOX_DATABASE="+postgrestest.Start(t).Address(t))
	f.Start(t, rig.FleetManager)
	m := f.Machine(rig.FleetManager)
	rig.Within(t, rig.Patience, "the session-manager answers", func() bool {
		resp, err := http.Get(m.URL + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	secret := filepath.Join(f.Machine(rig.FleetGatewayA).Data, "seed") // a folder that the server's user may enter
	if err := os.WriteFile(secret, []byte(strings.Repeat("x", 40)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, env := range [][]string{
		{"CLOUD_SANDBOX_GUEST_SEED=" + strings.Repeat("x", 40)},
		{"CLOUD_SANDBOX_GUEST_SEED="},
		{"CLOUD_SANDBOX_GUEST_SEED=", "CLOUD_SANDBOX_GUEST_SEED_FILE=" + secret},
	} {
		g := f.Machine(rig.FleetGatewayA)
		f.Start(t, rig.FleetGatewayA, env...)
		select {
		case <-g.Done():
		case <-time.After(rig.Patience):
			t.Fatalf("a gateway with %q runs", env)
		}
		log, err := os.ReadFile(g.LogFile())
		if err != nil || !bytes.Contains(log, []byte("at every gateway and session-manager")) {
			t.Errorf("a gateway with %q says %s, %v", env, log, err)
		}
		if err := os.Truncate(g.LogFile(), 0); err != nil {
			t.Fatal(err)
		}
		f.Forget(rig.FleetGatewayA)
	}
	f.Start(t, rig.FleetGatewayA)
	rig.Within(t, rig.Patience, "a gateway with the same seed answers", func() bool {
		resp, err := http.Get(f.Machine(rig.FleetGatewayA).URL + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}
