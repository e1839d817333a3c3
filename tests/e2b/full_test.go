package e2b

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A full disk in a sandbox is a permanent error: 413 in our API and 507 in E2B's.
func TestFullDiskInside(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	c := shared.Server(t).Client(t, t.Name())
	id := c.Create(t, rig.Body{"resources": rig.Body{"disk_mb": 64}}).ID
	t.Cleanup(func() { c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil) })
	var sb created
	if resp, text := w.api("POST", "/v2/sandboxes/"+id+"/connect", `{}`); resp.StatusCode != 200 || json.Unmarshal([]byte(text), &sb) != nil {
		t.Fatalf("connect: %d %s", resp.StatusCode, text)
	}
	c.Sh(t, id, "cat /dev/zero >/workspace/fill 2>/dev/null || true")

	status, raw, err := c.Do("POST", "/api/v1/files/copy", rig.Body{"sandbox_id": id, "source": "/etc/passwd", "destination": "/workspace/passwd"})
	if err != nil || status != http.StatusRequestEntityTooLarge || !strings.Contains(string(raw), "the disk is full") {
		t.Errorf("a copy: %d %s, %v", status, raw, err)
	}
	resp, text := w.send(w.inside(sb, envd, "POST", "/files?path=/workspace/file", strings.NewReader(strings.Repeat("x", 1<<20)), "Content-Type", "application/octet-stream"))
	if resp.StatusCode != http.StatusInsufficientStorage {
		t.Errorf("a file: %d %s", resp.StatusCode, text)
	}
}
