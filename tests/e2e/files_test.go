package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// conditional sends a GET with headers, which come in pairs.
func conditional(t *testing.T, c *rig.Client, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, _ := http.NewRequest("GET", c.URL+path, nil)
	req.Header.Set("Authorization", "Bearer "+c.Token)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestRangesAndConditions(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "ranges")
	id := c.Acquire(t)
	c.Sh(t, id, "printf 0123456789 >/workspace/f; until [ $(( $(date +%s) - $(stat -c %Z /workspace/f) )) -gt 2 ]; do sleep 0.2; done")
	path := rig.Files("", id, "f")
	whole, body := conditional(t, c, path)
	tag, modified := whole.Header.Get("ETag"), whole.Header.Get("Last-Modified")
	if whole.StatusCode != 200 || body != "0123456789" || !strings.HasPrefix(tag, `"`) || modified == "" {
		t.Fatalf("whole: %d %q %v", whole.StatusCode, body, whole.Header)
	}
	for _, tt := range []struct {
		headers     []string
		status      int
		body, where string
	}{
		{[]string{"Range", "bytes=2-4"}, 206, "234", "bytes 2-4/10"},
		{[]string{"Range", "bytes=7-"}, 206, "789", "bytes 7-9/10"},
		{[]string{"Range", "bytes=-3"}, 206, "789", "bytes 7-9/10"},
		{[]string{"Range", "bytes=8-100"}, 206, "89", "bytes 8-9/10"},
		{[]string{"Range", "bytes=10-"}, 416, "", "bytes */10"},
		{[]string{"Range", "bytes=5-2"}, 200, "0123456789", ""},
		{[]string{"Range", "bytes=0-1,3-4"}, 200, "0123456789", ""},
		{[]string{"Range", "lines=1-2"}, 200, "0123456789", ""},
		{[]string{"Range", "bytes=2-4", "If-Range", tag}, 206, "234", "bytes 2-4/10"},
		{[]string{"Range", "bytes=2-4", "If-Range", `"other"`}, 200, "0123456789", ""},
		{[]string{"If-None-Match", tag}, 304, "", ""},
		{[]string{"If-None-Match", `"other"`}, 200, "0123456789", ""},
		{[]string{"If-Modified-Since", modified}, 304, "", ""},
		{[]string{"If-Match", `"other"`}, 412, "", ""},
		{[]string{"If-Match", tag}, 200, "0123456789", ""},
	} {
		resp, body := conditional(t, c, path, tt.headers...)
		if resp.StatusCode != tt.status || resp.StatusCode < 300 && body != tt.body || resp.Header.Get("Content-Range") != tt.where {
			t.Errorf("%q: %d %q %v", tt.headers, resp.StatusCode, body, resp.Header)
		}
	}
	c.Must(t, "PUT", path, []byte("changed"), nil)
	if resp, _ := conditional(t, c, path, "If-None-Match", tag); resp.StatusCode != 200 || resp.Header.Get("ETag") == tag {
		t.Errorf("after a change: %d %v", resp.StatusCode, resp.Header)
	}
}

// Files in /proc, which have no size, are read as streams. FIFOs, symlink loops, devices
// and folders are refused.
func TestFilesThatAreNone(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "odd-files")
	id := c.Acquire(t)
	c.Sh(t, id, "mkfifo fifo; ln -s fifo link; ln -s loop loop")
	for path, want := range map[string]string{"/proc/meminfo": "MemTotal", "/proc/1/status": "guest", "/proc/self/cmdline": "\x00"} {
		if resp, body := conditional(t, c, rig.Files("", id, path)); resp.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q", path, resp.StatusCode, body)
		}
	}
	for _, path := range []string{"fifo", "link", "loop", "/dev/null", "/workspace"} {
		for _, method := range []string{"GET", "PUT"} {
			code, raw, err := c.Do(method, rig.Files("", id, path), []byte(nil))
			if err != nil || code != 400 {
				t.Errorf("%s %s: %d %s %v", method, path, code, raw, err)
			}
		}
	}
}

// found returns a search's matches as lines of path:line:text.
func found(t *testing.T, c *rig.Client, body rig.Body) string {
	t.Helper()
	var reply struct {
		Matches []struct {
			Path string
			Line int
			Text string
		}
	}
	c.Must(t, "POST", "/api/v1/files/search", body, &reply)
	var all []string
	for _, m := range reply.Matches {
		all = append(all, fmt.Sprintf("%s:%d:%s", m.Path, m.Line, m.Text))
	}
	return strings.Join(all, "\n")
}

func TestCopyChmodSearch(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "fileops")
	id := c.Acquire(t)
	c.Sh(t, id, `mkdir -p src/sub .git; printf 'one\ntwo\n' >src/a.py; echo two >src/sub/b.py; echo two >src/x.log; echo '*.log' >.gitignore
		ln -s a.py src/link; sudo sh -c 'echo two >/root/secret; echo two >src/locked; chmod 600 src/locked'`)
	if got := found(t, c, rig.Body{"sandbox_id": id, "pattern": "^tw."}); got != "/workspace/src/a.py:2:two\n/workspace/src/sub/b.py:1:two" {
		t.Errorf("found %s", got)
	}
	if got := found(t, c, rig.Body{"sandbox_id": id, "pattern": "two", "path": "/root", "user": "root"}); got != "/root/secret:1:two" {
		t.Errorf("root found %s", got)
	}
	post := func(call string, body rig.Body) int {
		body["sandbox_id"] = id
		code, raw, err := c.Do("POST", "/api/v1/files/"+call, body)
		if err != nil {
			t.Fatal(err)
		}
		if code >= 300 && !bytes.Contains(raw, []byte(`"message"`)) {
			t.Errorf("%s %v: %s", call, body, raw)
		}
		return code
	}
	for _, tt := range []struct {
		call string
		body rig.Body
		want int
	}{
		{"copy", rig.Body{"source": "src", "destination": "c", "recursive": true}, 403},
		{"copy", rig.Body{"source": "src", "destination": "c"}, 400},
		{"copy", rig.Body{"source": "src/sub", "destination": "new/c", "recursive": true}, 200},
		{"copy", rig.Body{"source": "src/a.py", "destination": "new/c/b.py"}, 409},
		{"copy", rig.Body{"source": "src/a.py", "destination": "new/c/b.py", "overwrite": true}, 200},
		{"copy", rig.Body{"source": "src/locked", "destination": "stolen"}, 403},
		{"copy", rig.Body{"source": "none", "destination": "x"}, 404},
		{"copy", rig.Body{"source": "src/a.py", "destination": "/etc/x"}, 403},
		{"copy", rig.Body{"source": "src/a.py", "destination": "/etc/x", "user": "root"}, 200},
		{"chmod", rig.Body{"path": "src/a.py", "mode": "0600"}, 200},
		{"chmod", rig.Body{"path": "src/locked", "mode": "0666"}, 403},
		{"chmod", rig.Body{"path": "src/locked", "mode": "0640", "user": "root"}, 200},
		{"chmod", rig.Body{"path": "new", "mode": "700", "recursive": true}, 200},
		{"chmod", rig.Body{"path": "none", "mode": "700"}, 404},
		{"search", rig.Body{"pattern": "("}, 400},
		{"search", rig.Body{"pattern": "x", "path": "none"}, 404},
		{"search", rig.Body{"pattern": "x", "path": "/root"}, 403},
	} {
		if got := post(tt.call, tt.body); got != tt.want {
			t.Errorf("%s %v answers %d, want %d", tt.call, tt.body, got, tt.want)
		}
	}
	want := "-rw------- user src/a.py\n-rw-r----- root src/locked\ndrwx------ user new\n-rwx------ user new/c/b.py\n-rw-r--r-- root /etc/x\n"
	if got := c.Sh(t, id, "sudo stat -c '%A %U %n' src/a.py src/locked new new/c/b.py /etc/x; [ ! -e c ] && [ ! -e stolen ]"); got != want {
		t.Errorf("afterwards:\n%s", got)
	}
}

func TestArchives(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "archives")
	id := c.Acquire(t)
	c.Sh(t, id, `mkdir -p d/sub; head -c 3000000 /dev/urandom >d/sub/big; echo a >d/a; chmod 750 d/a; ln -s sub/big d/l; touch /tmp/kept`)
	for _, format := range []string{"tar", "tar.gz", "zip"} {
		code, data, err := c.Do("GET", rig.Files("/archive", id, "d")+"&format="+format, nil)
		if err != nil || code != 200 {
			t.Fatalf("%s: %d %v", format, code, err)
		}
		var done struct{ Files, Directories, Links, Bytes int }
		c.Must(t, "PUT", rig.Files("/archive", id, "out/"+format), data, &done)
		if done.Files != 2 || done.Directories != 1 || done.Links != 1 || done.Bytes != 3000002 {
			t.Errorf("%s: %+v", format, done)
		}
		c.Sh(t, id, "diff -r --no-dereference d out/"+format+" && [ $(stat -c %a%U out/"+format+"/a) = 750user ]")
	}
	var evil bytes.Buffer
	w := tar.NewWriter(&evil)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "up", Linkname: "/tmp"})
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "up/kept", Size: 4, Mode: 0o644})
	_, _ = w.Write([]byte("evil"))
	w.Close()
	for path, want := range map[string]int{
		rig.Files("/archive", id, "hostile"):                  400,
		rig.Files("/archive", id, "/etc/of-root"):             403,
		rig.Files("/archive", id, "hostile") + "&format=zip":  400,
		rig.Files("/archive", id, "hostile") + "&format=rar":  400,
		rig.Files("/archive", id, "hostile") + "&user=nobdy":  400,
		rig.Files("/archive", id, "d/a"):                      400,
		rig.Files("/archive", "i00000000000000000000", "d/a"): 404,
	} {
		if code, raw, err := c.Do("PUT", path, evil.Bytes()); err != nil || code != want {
			t.Errorf("PUT %s answers %d %s %v", path, code, raw, err)
		}
	}
	if got := c.Sh(t, id, "cat /tmp/kept"); got != "" {
		t.Errorf("a file outside of the folder is now %q", got)
	}
	for path, want := range map[string]int{"none": 404, "d/a": 400, "/root": 403} {
		if code, raw, _ := c.Do("GET", rig.Files("/archive", id, path), nil); code != want {
			t.Errorf("GET %s answers %d %.200s", path, code, raw)
		}
	}
}
