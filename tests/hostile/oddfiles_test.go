package hostile

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Operations on special files and broken archives never cause a server error. Reading a
// special file is refused with its kind.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	c := s.Client(t, "odd")
	id := c.Acquire(t)
	c.Sh(t, id, `mkdir /workspace/odd && cd /workspace/odd && echo x > file && mkfifo pipe && python3 -c "
import socket; socket.socket(socket.AF_UNIX).bind('socket')" &&
		sudo mknod null c 1 3 && sudo mknod disk b 8 0 && sudo chmod 666 null disk && ln -s pipe link && ln -s /workspace/odd/loop loop`)
	q := func(path string) string { return "?sandbox_id=" + id + "&path=" + url.QueryEscape(path) }
	odd := "/workspace/odd/"
	for _, path := range []string{
		odd + "pipe", odd + "socket", odd + "null", odd + "disk", odd + "link", odd + "loop", odd + "file/below",
		"/dev/tty", "/dev/ptmx", "/dev/zero", "/proc/self/mem", "/proc/kmsg", "/.cloud-sandbox/new",
	} {
		body := func(fields rig.Body) rig.Body {
			fields["sandbox_id"] = id
			return fields
		}
		for _, op := range []struct {
			name, method, path string
			body               any
		}{
			{"read", "GET", "/api/v1/files" + q(path), nil},
			{"write", "PUT", "/api/v1/files" + q(path), []byte("abc")},
			{"stat", "GET", "/api/v1/files/stat" + q(path), nil},
			{"list", "GET", "/api/v1/files/list" + q(path), nil},
			{"archive", "GET", "/api/v1/files/archive" + q(path), nil},
			{"unpack", "PUT", "/api/v1/files/archive" + q(path), tarOf(t)},
			{"watch", "GET", "/api/v1/files/changes" + q(path), nil},
			{"search", "POST", "/api/v1/files/search", body(rig.Body{"path": path, "pattern": "a"})},
			{"replace", "POST", "/api/v1/files/replace", body(rig.Body{"path": path, "pattern": "a", "replacement": "b"})},
			{"copy from", "POST", "/api/v1/files/copy", body(rig.Body{"source": path, "destination": "/workspace/copied", "overwrite": true})},
			{"copy to", "POST", "/api/v1/files/copy", body(rig.Body{"source": odd + "file", "destination": path, "overwrite": false})},
			{"move below", "POST", "/api/v1/files/move", body(rig.Body{"source": odd + "file", "destination": path + "/file"})},
			{"move across", "POST", "/api/v1/files/move", body(rig.Body{"source": odd + "file", "destination": "/dev/file"})},
			{"mkdir", "POST", "/api/v1/files/mkdir", body(rig.Body{"path": path + "/dir"})},
			{"chmod", "POST", "/api/v1/files/chmod", body(rig.Body{"path": path, "mode": "0666"})},
		} {
			status, raw, err := c.Do(op.method, op.path, op.body)
			if err != nil || status >= 500 || bytes.Contains(raw, []byte("internal")) || bytes.Contains(raw, []byte("answered")) {
				t.Errorf("%s of %s: %d %s, %v", op.name, path, status, raw, err)
			}
		}
	}
	for _, tt := range []struct{ path, want string }{
		{odd + "pipe", "a pipe"}, {odd + "socket", "a socket"}, {odd + "disk", "a device"}, {"/dev/tty", "a device"}, {"/workspace", "a directory"},
	} {
		status, raw, err := c.Do("GET", "/api/v1/files"+q(tt.path), nil)
		if err != nil || status != http.StatusBadRequest || !strings.Contains(string(raw), tt.want) {
			t.Errorf("reading %s: %d %s, %v", tt.path, status, raw, err)
		}
	}
	for name, archive := range map[string][]byte{
		"nothing": nil, "text": []byte(strings.Repeat("no archive ", 100)), "half of gzip": {0x1f, 0x8b, 8, 0, 0}, "a cut tar": tarOf(t, tar.TypeReg)[:600],
		"links": tarOf(t, tar.TypeSymlink, tar.TypeLink), "devices": tarOf(t, tar.TypeChar, tar.TypeBlock, tar.TypeFifo), "an unknown kind": tarOf(t, 'Q'),
		"gzip of nonsense": gzipOf(t, []byte("nonsense")), "zip": zipOf(t, "../up", "/etc/x", "a\x00b", strings.Repeat("d/", 3000)+"x", ""),
		"zip without an end": zipOf(t, "a")[:20],
	} {
		for _, format := range []string{"", "tar", "tar.gz", "zip"} {
			path := "/api/v1/files/archive" + q("/workspace/unpacked")
			if format != "" {
				path += "&format=" + format
			}
			status, raw, err := c.Do("PUT", path, archive)
			if err != nil || status >= 500 || bytes.Contains(raw, []byte("internal")) || bytes.Contains(raw, []byte("answered")) {
				t.Errorf("%s as %q: %d %s, %v", name, format, status, raw, err)
			}
		}
	}
	if got := c.Sh(t, id, "echo still here"); got != "still here\n" {
		t.Errorf("%q", got)
	}
}

// tarOf returns an archive with an entry of each kind.
func tarOf(t *testing.T, kinds ...byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i, kind := range kinds {
		h := &tar.Header{Name: fmt.Sprintf("entry%d", i), Typeflag: kind, Mode: 0o644, Linkname: "../../etc/passwd"}
		if kind == tar.TypeReg {
			h.Size = 1 << 10
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipOf(t *testing.T, raw []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zipOf(t *testing.T, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, name := range names {
		if _, err := w.Create(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A listing of too many files is truncated, and the answer says so.
func TestListOfTooManyFiles(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	c := s.Client(t, "many")
	id := c.Acquire(t)
	c.Run(t, id, "python", "import os\nos.mkdir('/workspace/many')\nfor i in range(10050): open(f'/workspace/many/{i:05}', 'w').close()", nil)
	var listed struct {
		Entries   []struct{ Name string }
		Truncated bool
	}
	c.Must(t, "GET", "/api/v1/files/list?sandbox_id="+id+"&path=/workspace/many", nil, &listed)
	// A slow machine may stop earlier, at the time limit.
	if n := len(listed.Entries); !listed.Truncated || n == 0 || n > 10_000 || listed.Entries[0].Name != "00000" {
		t.Errorf("%d entries, truncated %t", n, listed.Truncated)
	}
}
