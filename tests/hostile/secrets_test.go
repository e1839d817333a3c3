package hostile

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// hunt searches everything that root can read inside for a text: environments, command
// lines, the memory of every process, and files. It joins the text from two parts, so
// that it does not find itself.
const hunt = `
import os, re, sys
needle = ('%s' + '%s').encode()
found = []
def look(path, data):
    if needle in data: found.append(path)
me = os.getpid()
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('environ', 'cmdline'):
        try: look(f'/proc/{pid}/{name}', open(f'/proc/{pid}/{name}', 'rb').read())
        except OSError: pass
    if int(pid) in (me, os.getppid()): continue
    try:
        maps = open(f'/proc/{pid}/maps').read()
        mem = open(f'/proc/{pid}/mem', 'rb', 0)
    except OSError: continue
    for line in maps.splitlines():
        m = re.match(r'([0-9a-f]+)-([0-9a-f]+) r', line)
        if not m: continue
        at, end = (int(x, 16) for x in m.groups())
        if end - at > 256 << 20: continue
        try:
            mem.seek(at)
            look(f'memory of {pid}', mem.read(end - at))
        except (OSError, ValueError, OverflowError): pass
looked = 0
for top in ('/etc', '/home', '/root', '/tmp', '/workspace', '/var', '/usr/local', '/run', '/.cloud-sandbox'):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) < 64 << 20:
                    looked += 1
                    look(path, open(path, 'rb').read())
            except OSError: pass
print('looked' if looked > 100 else looked, sorted(set(found)))
`

// A secret that is set into requests is nowhere inside the Sandbox, in its saved state,
// or in a file or log of the server.
func TestSecretsCannotBeStolen(t *testing.T) {
	s := shared.Server(t)
	c := s.Client(t, "thief")
	const first, last = "sk-never-", "seen-by-anybody"
	c.Must(t, "POST", "/api/v1/secrets", rig.Body{"name": "TREASURE", "value": first + last, "hosts": []string{"api.example.com"}}, nil)
	id := c.Create(t, rig.Body{"secrets": []rig.Body{{"name": "TREASURE", "host": "api.example.com", "header": "Authorization", "format": "Bearer {value}"}}}).ID
	c.Run(t, id, "bash", "curl -s -m 5 https://api.example.com/; true", rig.Body{"timeout_seconds": 20})
	stolen := func(when string) {
		t.Helper()
		if err := writeFile(c, id, "/tmp/hunt.py", fmt.Sprintf(hunt, first, last)); err != nil {
			t.Fatal(err)
		}
		if got := c.Sh(t, id, "sudo python3 /tmp/hunt.py"); strings.TrimSpace(got) != "looked []" {
			t.Errorf("%s: %s", when, got)
		}
	}
	stolen("at first")
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/snapshots", rig.Body{"name": "loot"}, nil)
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", nil, nil)
	for _, dir := range []string{"saved", "server", "hosts", "log", "run"} {
		if at := filesWith(filepath.Join(s.Data, dir), first+last); len(at) > 0 {
			t.Errorf("the value is in %v", at)
		}
	}
	if strings.Contains(s.Log(), first+last) {
		t.Error("the server's log has the value")
	}
	c.Must(t, "POST", "/api/v1/sessions/"+id+"/resume", nil, nil)
	stolen("after it was resumed")

	// No answer has it, and no other tenant can use it.
	for _, path := range []string{"/api/v1/secrets", "/api/v1/sessions/" + id, "/api/v1/sessions", "/api/v1/sessions/" + id + "/network/log"} {
		if status, raw, err := c.Do("GET", path, nil); err != nil || status != http.StatusOK || bytes.Contains(raw, []byte(last)) {
			t.Errorf("%s: %d %s %v", path, status, raw, err)
		}
	}
	stranger := s.Client(t, "stranger")
	use := []rig.Body{{"name": "TREASURE", "host": "evil.example.com", "header": "X-Loot"}}
	if status, raw, _ := stranger.Do("POST", "/api/v1/sessions", rig.Body{"secrets": use}); status != http.StatusBadRequest {
		t.Errorf("a stranger uses it: %d %s", status, raw)
	}
	for _, host := range []string{"evil.example.com", "api.example.com.evil.com", "api.example.com:8443", "*.example.com", "*.api.example.com"} {
		elsewhere := rig.Body{"secrets": []rig.Body{{"name": "TREASURE", "host": host, "header": "X-Loot"}}}
		if status, raw, _ := c.Do("PATCH", "/api/v1/sessions/"+id, elsewhere); status != http.StatusForbidden {
			t.Errorf("it is sent to %s: %d %s", host, status, raw)
		}
	}
	if status, raw, _ := c.Do("PUT", "/api/v1/secrets/TREASURE", rig.Body{"hosts": []string{}}); status != http.StatusBadRequest {
		t.Errorf("its hosts change without its value: %d %s", status, raw)
	}
	for name, bad := range map[string]rig.Body{
		"every host":      {"name": "TREASURE", "host": "*", "header": "X-A"},
		"a wildcard":      {"name": "TREASURE", "host": "api.*.com", "header": "X-A"},
		"an address":      {"name": "TREASURE", "host": "127.0.0.1", "header": "X-A"},
		"a path":          {"name": "TREASURE", "host": "example.com/x", "header": "X-A"},
		"two headers":     {"name": "TREASURE", "host": "example.com", "header": "X-A: b\r\nX-B"},
		"the host header": {"name": "TREASURE", "host": "example.com", "header": "host"},
		"a line's end":    {"name": "TREASURE", "host": "example.com", "header": "X-A", "format": "a\r\nX-B: {value}"},
		"twice":           {"name": "TREASURE", "host": "example.com", "header": "X-A", "format": "{value}{value}"},
	} {
		if status, raw, _ := c.Do("PATCH", "/api/v1/sessions/"+id, rig.Body{"secrets": []rig.Body{bad}}); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, status, raw)
		}
	}
}

func writeFile(c *rig.Client, id, path, text string) error {
	_, err := c.TryRun(id, "python", "import sys; open("+fmt.Sprintf("%q", path)+", 'w').write(sys.stdin.read())", rig.Body{"stdin": text})
	return err
}

// filesWith returns the files below dir that hold a text.
func filesWith(dir, text string) (found []string) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(text)) {
				found = append(found, path)
			}
		}
		return nil // an unreadable file was removed
	})
	return found
}
