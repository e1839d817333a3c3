package e2b

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// While a Template is built for the first time, its stand-in is used. Without a
// stand-in, clients get a 503.
func TestStandInWhileBuilt(t *testing.T) {
	rig.Need(t)
	t.Parallel()
	w := newWire(t)
	// Hold the locks as a builder does.
	locks := filepath.Join(shared.Server(t).Data, "templates", "locks")
	if err := os.MkdirAll(locks, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"code-interpreter-v1", "nothing-stands-in"} {
		lock, err := os.Create(filepath.Join(locks, name+".lock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { lock.Close(); os.Remove(lock.Name()) })
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/v2/sandboxes", "/sandboxes"} {
		resp, text := w.api("POST", path, `{"templateID":"code-interpreter-v1","timeout":60}`)
		if resp.StatusCode != 201 || !strings.Contains(text, `"templateID":"base`) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
		resp, text = w.api("POST", path, `{"templateID":"nothing-stands-in","timeout":60}`)
		if resp.StatusCode != 503 || !strings.Contains(text, "nothing-stands-in is being built for the first time") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
	var made struct{ TemplateID, BuildID string }
	resp, text := w.api("POST", "/v3/templates", `{"name":"on-a-stand-in"}`)
	if resp.StatusCode != 202 || json.Unmarshal([]byte(text), &made) != nil {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	resp, text = w.api("POST", "/v2/templates/"+made.TemplateID+"/builds/"+made.BuildID, `{"fromTemplate":"code-interpreter-v1","steps":[{"type":"RUN","args":["exit 3"]}]}`)
	if resp.StatusCode != 202 {
		t.Errorf("a build from it: %d %s", resp.StatusCode, text)
	}
	resp, text = w.api("GET", "/templates/aliases/code-interpreter-v1", "")
	if resp.StatusCode != 200 || !strings.Contains(text, `"templateID":"base"`) {
		t.Errorf("the alias: %d %s", resp.StatusCode, text)
	}
}
