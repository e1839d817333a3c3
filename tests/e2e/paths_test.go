package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Every file and git call refuses an invalid path.
func TestBadPaths(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "paths")
	id := c.Acquire(t)
	type request struct {
		method, path string
		body         func(path string) rig.Body
	}
	one := func(more rig.Body) func(string) rig.Body {
		return func(path string) rig.Body {
			body := rig.Body{"sandbox_id": id, "path": path}
			for k, v := range more {
				body[k] = v
			}
			return body
		}
	}
	query := func(method, call string) request { return request{method, "/api/v1/files" + call, nil} }
	two := func(first, second string) func(string) rig.Body {
		return func(path string) rig.Body { return rig.Body{"sandbox_id": id, first: path, second: "fine"} }
	}
	all := []request{
		query("GET", ""), query("PUT", ""), query("DELETE", ""), query("GET", "/list"), query("GET", "/stat"), query("GET", "/archive"),
		query("PUT", "/archive"), query("GET", "/watch"), query("GET", "/changes"),
		{"POST", "/api/v1/files/mkdir", one(nil)},
		{"POST", "/api/v1/files/move", two("source", "destination")},
		{"POST", "/api/v1/files/move", two("destination", "source")},
		{"POST", "/api/v1/files/copy", two("source", "destination")},
		{"POST", "/api/v1/files/copy", two("destination", "source")},
		{"POST", "/api/v1/files/chmod", one(rig.Body{"mode": "0600"})},
		{"POST", "/api/v1/files/search", one(rig.Body{"pattern": "x"})},
		{"POST", "/api/v1/files/replace", one(rig.Body{"pattern": "x", "replacement": "y"})},
		{"POST", "/api/v1/files/sign", one(rig.Body{"method": "PUT"})},
		{"POST", "/api/v1/files/batch", func(path string) rig.Body {
			return rig.Body{"sandbox_id": id, "operations": []rig.Body{{"op": "write", "path": path, "content": "x"}}}
		}},
		{"POST", "/api/v1/git/status", one(nil)},
		{"POST", "/api/v1/git/clone", one(rig.Body{"url": "/tmp"})},
		{"POST", "/api/v1/git/add", func(path string) rig.Body { return rig.Body{"sandbox_id": id, "files": []string{path}} }},
	}
	for _, r := range all {
		for what, path := range map[string]string{
			"up": "../etc/passwd", "within": "a/../../etc/passwd", "only up": "..", "zero byte": "a\x00b", "long": strings.Repeat("x", 5000), "deep": strings.Repeat("a/", 2500),
		} {
			target, body := r.path, any(nil)
			if r.body == nil {
				target += "?" + url.Values{"sandbox_id": {id}, "path": {path}}.Encode()
			} else {
				body = r.body(path)
			}
			if code, raw, err := c.Do(r.method, target, body); err != nil || code != 400 || !bytes.Contains(raw, []byte(`"invalid"`)) {
				t.Errorf("%s %s, %s: %d %.200s %v", r.method, r.path, what, code, raw, err)
			}
		}
		if r.body == nil {
			if code, raw, err := c.Do(r.method, r.path+"?path=%ff%fe&sandbox_id="+id, nil); err != nil || code != 400 {
				t.Errorf("%s %s, not UTF-8: %d %.200s %v", r.method, r.path, code, raw, err)
			}
		}
	}
	if code, raw, err := c.Do("POST", "/api/v1/files/mkdir", []byte(`{"sandbox_id":"`+id+"\",\"path\":\"\xff\"}")); err != nil || code != 400 {
		t.Errorf("not UTF-8: %d %s %v", code, raw, err)
	}
	if got := c.Sh(t, id, "ls -A /workspace"); got != "" {
		t.Errorf("something was made: %s", got)
	}
}

// Replacing a folder with a symlink while root works in it does not redirect root
// outside the folder.
func TestSymlinkRaces(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "races")
	id := c.Acquire(t)
	c.Sh(t, id, `set -e; sudo install -d -m 755 /root/outside; sudo sh -c 'printf "secret text" >/root/outside/f; chmod 600 /root/outside/f'; sudo chmod 755 /root
		mkdir -p d/sub; printf 'inside text' >d/sub/f
		cat >/tmp/swap.py <<'EOF'
import os
os.chdir("/workspace/d")
def tried(f, *args):
    try:
        f(*args)
    except OSError:
        return False
    return True
n = 0
while not os.path.exists("/tmp/stop"):
    if tried(os.rename, "sub", "../kept") and tried(os.symlink, "/root/outside", "sub"):
        os.unlink("sub")
    if not tried(os.rename, "../kept", "sub"):  # root has made a folder meanwhile
        n += 1
        tried(os.rename, "sub", "../junk%d" % n)
        tried(os.rename, "../kept", "sub")
open("/tmp/stopped", "w").close()
EOF
		setsid python3 /tmp/swap.py >/tmp/swap.log 2>&1 </dev/null &`)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "sub/new", Size: 4, Mode: 0o644})
	_, _ = w.Write([]byte("evil"))
	w.Close()
	for i := range 25 {
		// Any of these may fail: the folder is not always there.
		for _, call := range []struct {
			name string
			body rig.Body
		}{
			{"replace", rig.Body{"path": "d", "pattern": "text", "replacement": "text"}},
			{"chmod", rig.Body{"path": "d", "mode": "0755", "recursive": true}},
			{"copy", rig.Body{"source": "d", "destination": fmt.Sprint("copy", i), "recursive": true}},
			{"search", rig.Body{"path": "d", "pattern": "secret"}},
		} {
			call.body["sandbox_id"], call.body["user"] = id, "root"
			_, raw, err := c.Do("POST", "/api/v1/files/"+call.name, call.body)
			if err != nil || bytes.Contains(raw, []byte("secret text")) {
				t.Fatalf("%s: %s %v", call.name, raw, err)
			}
		}
		if _, _, err := c.Do("PUT", rig.Files("/archive", id, "d")+"&user=root", archive.Bytes()); err != nil {
			t.Fatal(err)
		}
		// The archive is cut off if a file vanishes.
		_, raw, _ := c.Do("GET", rig.Files("/archive", id, "d")+"&user=root&format=tar", nil)
		if bytes.Contains(raw, []byte("secret text")) {
			t.Fatalf("archived %q", raw)
		}
	}
	got := c.Sh(t, id, `touch /tmp/stop; until [ -e /tmp/stopped ]; do grep . /tmp/swap.log && break; sleep 0.05; done
		sudo sh -c 'ls -A /root/outside; stat -c "%a %U" /root/outside /root/outside/f; cat /root/outside/f'; find . -path './copy*' -name f -type f | sudo xargs -r grep -l secret; true`)
	if got != "f\n755 root\n600 root\nsecret text" {
		t.Errorf("afterwards %s", got)
	}
}
