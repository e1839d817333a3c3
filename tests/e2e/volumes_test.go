package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// makeVolume creates a volume until the test's end.
func makeVolume(t *testing.T, c *rig.Client, name string, mb int) {
	t.Helper()
	c.Must(t, "POST", "/api/v1/volumes", rig.Body{"name": name, "size_mb": mb}, nil)
	t.Cleanup(func() {
		if status, raw, err := c.Do("DELETE", "/api/v1/volumes/"+name, nil); err != nil || status >= 300 && status != http.StatusNotFound {
			t.Errorf("delete volume %s: %d %s %v", name, status, raw, err)
		}
	})
}

// at is the body of a session that has a volume.
func at(name, path string) rig.Body {
	return rig.Body{"volumes": []rig.Body{{"volume": name, "path": path}}}
}

// says checks what a shell command prints.
func says(t *testing.T, c *rig.Client, id, code, want string) {
	t.Helper()
	if got := strings.TrimSpace(c.Sh(t, id, code)); got != want {
		t.Errorf("%s\nsays %q, want %q", code, got, want)
	}
}

// Sandboxes share the files of a volume, and the files outlive them.
func TestVolumeIsShared(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "volumefiles")
	makeVolume(t, c, "shared", 64)
	a, b := c.Create(t, at("shared", "/data")), c.Create(t, at("shared", "/mnt/other"))
	says(t, c, a.ID, "echo one >/data/file && mkdir -p /data/x/y && ln -s ../file /data/x/link && ln /data/file /data/x/hard && cat /data/x/link", "one")
	says(t, c, b.ID, "cd /mnt/other && cat file x/link x/hard && ls x && stat -c '%h %U %a' file", "one\none\none\nhard\nlink\ny\n2 user 644")
	says(t, c, b.ID, "cd /mnt/other && echo two >>file && mv x/hard hard && chmod 640 file && rm x/link && rmdir x/y x", "")
	says(t, c, a.ID, "cd /data && cat file && ls && stat -c %a hard", "one\ntwo\nfile\nhard\n640")
	says(t, c, a.ID, "mkdir /data/many && cd /data/many && for i in $(seq 100); do echo $i >f$i; done && ls | wc -l", "100")
	says(t, c, b.ID, "cat /mnt/other/many/* | sort -n | tail -1", "100")
	says(t, c, b.ID, "head -c 5000000 /dev/urandom >/mnt/other/big && md5sum </mnt/other/big >/mnt/other/sum", "")
	says(t, c, a.ID, "md5sum </data/big | cmp - /data/sum && dd if=/data/big bs=1 skip=4999999 2>/dev/null | wc -c", "1")
	// Programs of other kinds.
	says(t, c, a.ID, "cd /data && tar cf all.tar many && mkdir out && tar xf all.tar -C out && diff -r many out/many && rm -rf out many && ls", "all.tar\nbig\nfile\nhard\nsum")
	says(t, c, a.ID, "cd /data && git init -q repo 2>&1 | grep -o 'unable to mmap' | head -1; rm -rf repo", "unable to mmap") // gVisor's FUSE lacks mmap
	says(t, c, a.ID, "cd /data && sudo sh -c 'umask 077; echo s >secret' && cat secret 2>&1 | grep -o 'Permission denied' && sudo cat secret", "Permission denied\ns")
	says(t, c, a.ID, "python3 -c \"\nimport os\nf = open('/data/open', 'w+')\nf.write('kept')\nf.flush()\nos.remove('/data/open')\nf.seek(0)\nprint(f.read(), os.fstat(f.fileno()).st_nlink)\n\"", "kept 0")
	for _, s := range []string{a.ID, b.ID} {
		c.Must(t, "DELETE", "/api/v1/sessions/"+s, nil, nil)
	}
	again := c.Create(t, at("shared", "/data"))
	says(t, c, again.ID, "cat /data/hard", "one\ntwo")
	if status, raw, _ := c.Do("DELETE", "/api/v1/volumes/shared", nil); status != http.StatusConflict {
		t.Errorf("a volume in use was deleted: %d %s", status, raw)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+again.ID, nil, nil)
	c.Must(t, "DELETE", "/api/v1/volumes/shared", nil, nil)
}

// A full volume answers ENOSPC, and accepts writes again after a removal.
func TestVolumeQuota(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "volumequota")
	makeVolume(t, c, "small", 4)
	s := c.Create(t, at("small", "/data"))
	says(t, c, s.ID, "head -c 3000000 /dev/zero >/data/a; head -c 3000000 /dev/zero 2>&1 >/data/b | grep -o 'No space left on device'", "No space left on device")
	says(t, c, s.ID, "df --output=size,avail -B1 /data | tail -1 | tr -s ' '", "4194304 0")
	says(t, c, s.ID, "rm /data/b && echo fits >/data/c && cat /data/c", "fits")
	says(t, c, s.ID, "truncate -s 100M /data/d 2>&1 | grep -o 'No space left on device'", "No space left on device")
}

// A paused Sandbox keeps its volume and its open files there. A fork shares the volume.
func TestVolumeAcrossPauses(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "volumepause")
	makeVolume(t, c, "lasting", 64)
	s := c.Create(t, at("lasting", "/data"))
	other := c.Create(t, at("lasting", "/data"))
	output(t, c, s.ID, "python", "f = open('/data/log', 'a')\nn = f.write('before\\n')\nf.flush()")
	act(t, c, s.ID, "pause", rig.Body{})
	says(t, c, other.ID, "cat /data/log && echo between >>/data/log", "before")
	act(t, c, s.ID, "resume", rig.Body{})
	output(t, c, s.ID, "python", "n = f.write('after\\n')\nf.flush()")
	says(t, c, s.ID, "cat /data/log && echo new >/data/new", "before\nbetween\nafter")
	var forks struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/fork", rig.Body{"count": 1}, &forks)
	for _, fork := range forks.Forks {
		says(t, c, fork.ID, "cat /data/new && echo fork >/data/fork", "new")
		output(t, c, fork.ID, "python", "n = f.write('fork\\n')\nf.flush()")
	}
	says(t, c, s.ID, "cat /data/fork && tail -1 /data/log", "fork\nfork")
	for _, fork := range forks.Forks { // no cleanup ends them
		c.Must(t, "DELETE", "/api/v1/sessions/"+fork.ID, nil, nil)
	}
}

// Asynchronous reads of a volume (io_submit) are in flight at each moment, when a sandbox is
// saved and continues, and when it is paused.
func TestVolumePausesDuringAsyncReads(t *testing.T) {
	rig.LacksEarlier(t, "a save on its node waits for the reads for ever")
	t.Parallel()
	c := shared.Server(t).Client(t, "volumeaio")
	makeVolume(t, c, "asked", 64)
	s := c.Create(t, at("asked", "/data"))
	output(t, c, s.ID, "python", `import ctypes, errno, os, struct, threading
libc = ctypes.CDLL(None, use_errno=True)
io_setup, io_getevents, io_submit = 206, 208, 209
with open('/data/file', 'wb') as f: f.write(os.urandom(1 << 20))
f = os.open('/data/file', os.O_RDONLY)
reads, failed = 0, []
def read():
    global reads
    aio = ctypes.c_ulong(0)
    if libc.syscall(io_setup, 16, ctypes.byref(aio)) < 0:
        failed.append(ctypes.get_errno())
    buf, events = ctypes.create_string_buffer(1 << 16), ctypes.create_string_buffer(32 * 16)
    cb = ctypes.create_string_buffer(struct.pack('<QIIHhIQQqQII', 0, 0, 0, 0, 0, f, ctypes.addressof(buf), 1 << 16, 0, 0, 0, 0))
    all = (ctypes.c_void_p * 8)(*[ctypes.addressof(cb)] * 8)
    while not failed:
        n = libc.syscall(io_submit, aio, ctypes.c_long(8), all)
        got = 0
        while 0 < n > got:
            got += max(libc.syscall(io_getevents, aio, ctypes.c_long(1), ctypes.c_long(16), events, None), 0)
        if n < 0 and ctypes.get_errno() != errno.EINTR: # as other calls to a volume may end while it is saved
            failed.append(ctypes.get_errno())
        reads += max(n, 0)
for _ in range(4): threading.Thread(target=read, daemon=True).start()
`)
	for range 3 {
		c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/snapshots", rig.Body{}, nil)
	}
	act(t, c, s.ID, "pause", rig.Body{})
	act(t, c, s.ID, "resume", rig.Body{})
	if got := c.Run(t, s.ID, "python", "import time\nwas, late = reads, time.time() + 30\nwhile reads == was and not failed and time.time() < late: time.sleep(.05)\nprint(failed, reads > was)", nil); got.Stdout != "[] True\n" {
		t.Errorf("afterwards it says %s", got)
	}
}

// File operations that are in flight when the server is killed wait for the next one. It
// may repeat an operation, so operations are idempotent.
func TestVolumeOutlivesServer(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "volumecrash")
	makeVolume(t, c, "tough", 64)
	sb := c.Create(t, at("tough", "/data"))
	c.Must(t, "POST", "/api/v1/processes", rig.Body{
		"sandbox_id": sb.ID, "command": "for i in $(seq 200); do mkdir -p /data/$i && echo $i >/data/$i/f || exit 1; done; touch /tmp/done",
	}, nil)
	rig.Within(t, time.Minute, "the first files", func() bool {
		return strings.TrimSpace(c.Sh(t, sb.ID, "ls /data | wc -l")) != "0"
	})
	rig.Kill(t, s.One(t, rig.ServerRole))
	<-s.Done()
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, 2*time.Minute, "all files", func() bool {
		r, err := c.TryRun(sb.ID, "bash", "test -e /tmp/done && echo done", nil)
		return err == nil && strings.Contains(r.Stdout, "done")
	})
	says(t, c, sb.ID, "ls /data | wc -l && cat /data/*/f | sort -nu | wc -l", "200\n200")
}

// Concurrent requests write files into a volume and do not disturb each other with
// signals.
func TestVolumeFilesByRequests(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "volumeputs")
	makeVolume(t, c, "puts", 64)
	s := c.Create(t, at("puts", "/data"))
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 60 {
				path := fmt.Sprintf("/data/%d-%d", w, i)
				status, raw, err := c.Do("PUT", rig.Files("", s.ID, path), strings.NewReader(path))
				if err != nil || status >= 300 {
					t.Errorf("PUT %s: %d %s %v", path, status, raw, err)
				}
				if i%6 == 0 { // the end of a child is a signal
					if r, err := c.TryRun(s.ID, "bash", "cat "+path, nil); err != nil || r.Stdout != path {
						t.Errorf("%s has %q, %v", path, r.Stdout, err)
					}
				}
			}
		})
	}
	all.Wait()
	says(t, c, s.ID, "ls /data | wc -l", "240")
}

// Volumes work with the roles as separate processes, and after a restart of the node.
// E2B's API reaches their files.
func TestVolumesOfRoles(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{})
	c := r.Client(t, "volumeroles")
	makeVolume(t, c, "roles", 16)
	sb := c.Create(t, at("roles", "/data"))
	says(t, c, sb.ID, "echo one >/data/f && cat /data/f", "one")
	r.Kill(t, "node")
	r.Start(t, "node")
	r.Serves(t)
	says(t, c, sb.ID, "cat /data/f && echo two >>/data/f && cat /data/f", "one\none\ntwo")
	var v struct {
		ID    string `json:"volume_id"`
		Used  int64  `json:"used_bytes"`
		Files int64  `json:"files"`
	}
	c.Must(t, "GET", "/api/v1/volumes/roles", nil, &v)
	if v.Files != 1 || v.Used != 3*4096 {
		t.Errorf("the volume is told of as %+v", v)
	}
	// E2B's clients read and write files from outside. Their API is not in our contract.
	for _, call := range []struct {
		method string
		body   io.Reader
		want   string
	}{{http.MethodPut, strings.NewReader("from outside"), `"/new"`}, {http.MethodGet, nil, "from outside"}} {
		req, err := http.NewRequest(call.method, r.URL+"/volumecontent/"+v.ID+"/file?path=/new", call.body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode >= 300 || !strings.Contains(string(raw), call.want) {
			t.Errorf("%s answers %d %q %v", call.method, resp.StatusCode, raw, err)
		}
	}
	says(t, c, sb.ID, "cat /data/new", "from outside")
	c.Must(t, "DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
}

// Volumes work in Boots fresh from the Pool, even if a busy machine delays the start of
// the volume servers.
func TestVolumesBeginOnABusyMachine(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 4})
	c := s.Client(t, "volumebusy")
	makeVolume(t, c, "busy", 16)
	busy, rest := context.WithCancel(t.Context())
	var hogs, users sync.WaitGroup
	for range 2 {
		hogs.Go(func() {
			for sum := [32]byte{}; busy.Err() == nil; {
				sum = sha256.Sum256(sum[:])
			}
		})
	}
	for range 4 {
		users.Go(func() {
			for range 4 {
				var sb rig.Sandbox
				if err := c.Try("POST", "/api/v1/sessions", at("busy", "/data"), &sb); err != nil {
					t.Error(err)
					return
				}
				// The interpreter is pre-started and uses the volume at once.
				code := "with open('/data/" + sb.ID + "', 'a+') as f: f.write('x'); f.seek(0); print(f.read())"
				if r, err := c.TryRun(sb.ID, "python", code, nil); err != nil || r.Stdout != "x\n" {
					t.Errorf("its volume answers %s, %v", r, err)
				}
				if err := c.Try("DELETE", "/api/v1/sessions/"+sb.ID, nil, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	rest()
	hogs.Wait()
}
