package e2b

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// builder returns a function that builds a Template with steps. The last step fails, so
// that no image is made.
func builder(t *testing.T, s *rig.Server, tenant string) (build func(steps string) (log string)) {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	w := &wire{t: t, key: key(t, s, tenant), client: &http.Client{Transport: transport, Timeout: 3 * time.Minute}}
	return func(steps string) string {
		t.Helper()
		w.url = s.URL
		var made struct{ TemplateID, BuildID string }
		resp, text := w.api("POST", "/v3/templates", `{"name":"layers"}`)
		if resp.StatusCode != 202 || json.Unmarshal([]byte(text), &made) != nil {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		steps += `,{"type":"RUN","args":["exit 3"]}`
		resp, text = w.api("POST", "/v2/templates/"+made.TemplateID+"/builds/"+made.BuildID, `{"fromTemplate":"base","steps":[`+steps+`]}`)
		if resp.StatusCode != 202 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		rig.Within(t, 3*time.Minute, "the build ended", func() bool {
			_, text = w.api("GET", "/templates/"+made.TemplateID+"/builds/"+made.BuildID+"/status", "")
			return strings.Contains(text, `"status":"error"`)
		})
		if !strings.Contains(text, "exit code 3") {
			t.Fatal(text)
		}
		if _, text := w.api("GET", "/snapshots", ""); strings.TrimSpace(text) != "[]" {
			t.Errorf("layers are shown as snapshots: %s", text)
		}
		return text
	}
}

// The layers of a build's steps are cached for the same Tenant, also after a restart,
// and for no other. Damaged layers are rebuilt.
func TestLayersOfBuilds(t *testing.T) {
	rig.Need(t)
	s := rig.Own(t, rig.Options{Pool: 1})
	ours, others := builder(t, s, "ours"), builder(t, s, "others")
	stamp := regexp.MustCompile(`stamp-[0-9]+`)
	steps := `{"type":"RUN","args":["echo stamp-$(date +%s%N) > /tmp/stamp"]},{"type":"USER","args":["root"]},{"type":"RUN","args":["cat /tmp/stamp; rm /etc/debian_version"]}`
	more := steps + `,{"type":"RUN","args":["cat /tmp/stamp; whoami; ls /etc/debian_version || true"]}`
	first := stamp.FindString(ours(steps))
	if log := ours(steps); strings.Count(log, "CACHED [builder") != 2*3 || stamp.MatchString(log) { // each log line appears twice
		t.Errorf("the same steps were carried out again: %s", log)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	log := ours(more)
	if strings.Count(log, "CACHED [builder") != 2*3 || stamp.FindString(log) != first || !strings.Contains(log, "root") || !strings.Contains(log, "cannot access '/etc/debian_version'") {
		t.Errorf("after a restart: %s, want %s", log, first)
	}
	if log := others(more); strings.Contains(log, "CACHED") || stamp.FindString(log) == first {
		t.Errorf("another tenant goes on from what is not its own: %s", log)
	}
	pages, err := filepath.Glob(filepath.Join(s.Data, "saved", "*", "pages.img"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%v, %v", pages, err)
	}
	for _, file := range pages {
		if err := os.Truncate(file, 1); err != nil {
			t.Fatal(err)
		}
	}
	if log := ours(more); strings.Contains(log, "CACHED") || stamp.FindString(log) == first || stamp.FindString(log) == "" {
		t.Errorf("from damaged layers: %s", log)
	}
	if log := ours(more); strings.Count(log, "CACHED [builder") != 2*4 {
		t.Errorf("what was made anew is not kept: %s", log)
	}
}

// The status and log of a build survive a restart of the server.
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
