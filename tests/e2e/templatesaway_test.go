package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// While the node that keeps the templates is away, sandboxes start from the images on other
// nodes, and from copies in S3 where the image is missing.
func TestClusterTemplatesAway(t *testing.T) {
	rig.LacksEarlier(t, "it remembers no names of templates")
	f := aCluster(t)
	c, other := f.Gateways().Client(t, "templates-away"), f.Gateways().Client(t, "templates-away-other")
	home, node := f.Machine(rig.FleetHome), f.Machine(rig.FleetNode)
	made := upload(t, c, `{"template":"mine:1","source":"tar:","env":{"HI":"there"}}`, tarOf(t, tinyRoot(t)))
	if _, made = follow(t, c, made.ID); made.State != "ready" {
		t.Fatalf("the build ended as %+v", made)
	}
	rig.Within(t, rig.Patience, "the images are copied", func() bool {
		raw, err := os.ReadFile(filepath.Join(home.Data, "server", "images", made.Version))
		return err == nil && strings.Contains(string(raw), `"ready":true`) && home.Metric("cloud_sandbox_template_images_uncopied") == 0
	})
	for _, template := range []string{"base", "mine:1"} { // so that their names are remembered
		id := c.Create(t, rig.Body{"template": template}).ID
		c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
	}
	id := other.Create(t, nil).ID
	other.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)

	away := func() (back func()) {
		f.Kill(t, home.Name)
		back = sync.OnceFunc(func() {
			f.Start(t, home.Name)
			f.Serves(t, home.Name)
		})
		t.Cleanup(back) // also after a failure
		return back
	}
	back := away()
	works(t, c, c.Create(t, nil).ID)
	works(t, c, c.Create(t, rig.Body{"template": "base"}).ID)
	started := func(what string) {
		t.Helper()
		id := c.Create(t, rig.Body{"template": "mine:1"}).ID
		if got := output(t, c, id, "bash", "echo $HI"); got != "there\n" {
			t.Errorf("%s: inside: %q", what, got)
		}
		if _, here := node.Runs(id); !here {
			t.Errorf("%s: the sandbox is not on the other node", what)
		}
		c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
		if !slices.Contains(imagesOn(t, f, node.Name), made.Version) {
			t.Errorf("%s: the node has no image", what)
		}
	}
	started("before its image is lost")
	files, err := filepath.Glob(filepath.Join(node.Data, "templates", "images", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the images are %q, %v", files, err)
	}
	for _, file := range files {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
	started("from the copy")

	for _, tt := range []struct {
		c            *rig.Client
		method, path string
		body         any
	}{
		{c, "POST", "/api/v1/sessions", rig.Body{"template": "mine:2"}},
		{other, "POST", "/api/v1/sessions", rig.Body{"template": "mine:1"}},
		{c, "GET", "/api/v1/templates", nil},
		{c, "DELETE", "/api/v1/templates/mine", nil},
		{c, "POST", "/api/v1/templates", rig.Body{"template": "steps", "dockerfile": "FROM base\nRUN true\n"}},
	} {
		if status, raw, err := tt.c.Do(tt.method, tt.path, tt.body); err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("%s %s: %d %.300s, %v", tt.method, tt.path, status, raw, err)
		}
	}

	back()
	c.Must(t, "DELETE", "/api/v1/templates/mine", nil, nil)
	if status, raw, err := c.Do("POST", "/api/v1/sessions", rig.Body{"template": "mine:1"}); err != nil || status != http.StatusNotFound {
		t.Errorf("a create from a removed template: %d %.300s, %v", status, raw, err)
	}
	back = away()
	if status, raw, err := c.Do("POST", "/api/v1/sessions", rig.Body{"template": "mine:1"}); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("a create from a removed template while its node is away: %d %.300s, %v", status, raw, err)
	}
	back()
}
