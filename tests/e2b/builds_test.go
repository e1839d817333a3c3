package e2b

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// What became of a build is told by the next server too.
func TestBuildsOutliveTheServer(t *testing.T) {
	rig.Need(t)
	s := rig.Own(t, rig.Options{Pool: 1})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	w := &wire{t: t, url: s.URL, key: key(t, s, t.Name()), client: &http.Client{Transport: transport, Timeout: 3 * time.Minute}}
	var made struct{ TemplateID, BuildID string }
	resp, text := w.api("POST", "/v3/templates", `{"name":"fails"}`)
	if resp.StatusCode != 202 || json.Unmarshal([]byte(text), &made) != nil {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	resp, text = w.api("POST", "/v2/templates/"+made.TemplateID+"/builds/"+made.BuildID, `{"fromTemplate":"base","steps":[{"type":"RUN","args":["echo said; exit 3"]}]}`)
	if resp.StatusCode != 202 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	status := func() string {
		_, text := w.api("GET", "/templates/"+made.TemplateID+"/builds/"+made.BuildID+"/status", "")
		return text
	}
	var before string
	rig.Within(t, 3*time.Minute, "the build ended", func() bool {
		before = status()
		return strings.Contains(before, `"status":"error"`)
	})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	w.url = s.URL
	if after := status(); after != before || !strings.Contains(after, "said") || !strings.Contains(after, "exit code 3") {
		t.Errorf("it was %s\nand is %s", before, after)
	}
}
