package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Files for a COPY reach a build of E2B's builder through any gateway of a cluster.
func TestClusterUploads(t *testing.T) {
	f := aCluster(t)
	rig.LacksEarlier(t, "its node takes no uploads, and each gateway keeps its own")
	c := f.Gateways().Client(t, "uploads")
	through := func(name string) *rig.Client {
		return &rig.Client{URL: f.Machine(name).URL, HTTP: c.HTTP, Token: c.Token}
	}
	uploadsThroughGateways(t, f, through(rig.FleetGatewayA), through(rig.FleetGatewayB), f.Gateways().Client(t, "other-uploads"))
}

// uploadsThroughGateways asks for an upload at a, sends it through b, and builds at a. The
// node that keeps the templates keeps the files, for their tenant alone.
func uploadsThroughGateways(t *testing.T, f *rig.Fleet, a, b, other *rig.Client) {
	content := make([]byte, 5<<20) // more than any buffer
	_, _ = rand.Read(content)      // never fails
	sum := sha256.Sum256(content)
	hash := hex.EncodeToString(sum[:])
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "data", Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	var draft struct{ TemplateID, BuildID string }
	var asked struct {
		Present bool
		URL     string
	}
	ask := func(c *rig.Client, present bool) *url.URL {
		t.Helper()
		if askE2B(t, c, "GET", "/templates/copied/files/"+hash, nil, &asked); asked.Present != present {
			t.Errorf("the files are there: %v, want %v", asked.Present, present)
		}
		u, err := url.Parse(asked.URL)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	put := func(u *url.URL) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "PUT", u.String(), bytes.NewReader(archive.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	askE2B(t, a, "POST", "/v3/templates", rig.Body{"name": "copied"}, &draft)
	u := ask(a, false)
	u.Host = strings.TrimPrefix(b.URL, "http://") // as a load balancer does
	if status := put(u); status != http.StatusOK {
		t.Fatalf("PUT at the other gateway: %d", status)
	}
	ask(a, true)
	ask(b, true)
	askE2B(t, other, "POST", "/v3/templates", rig.Body{"name": "copied"}, nil)
	ask(other, false)
	for name, want := range map[string]int{rig.FleetHome: 1, rig.FleetNode: 0, rig.FleetGatewayA: 0, rig.FleetGatewayB: 0} {
		files, err := filepath.Glob(filepath.Join(f.Machine(name).Data, "server", "uploads", "*", hash))
		if err != nil || len(files) != want {
			t.Errorf("%s keeps %d of the uploads, want %d: %v", name, len(files), want, err)
		}
	}

	steps := []rig.Body{{"type": "COPY", "args": []string{"data", "/srv/", "", ""}, "filesHash": hash}}
	askE2B(t, a, "POST", "/v2/templates/copied/builds/"+draft.BuildID, rig.Body{"fromTemplate": "base", "steps": steps}, nil)
	var build struct {
		Status     string
		LogEntries []struct{ Message string }
	}
	rig.Within(t, 3*time.Minute, "the build has ended", func() bool {
		askE2B(t, b, "GET", "/templates/copied/builds/"+draft.BuildID+"/status", nil, &build)
		return build.Status == "ready" || build.Status == "error"
	})
	if build.Status != "ready" {
		t.Fatalf("the build: %+v", build)
	}
	id := b.Create(t, rig.Body{"template": "copied"}).ID
	want := fmt.Sprintf("%x  /srv/data\n", sum)
	if got := output(t, a, id, "bash", "sha256sum /srv/data"); got != want {
		t.Errorf("inside: %q, want %q", got, want)
	}
	a.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
}
