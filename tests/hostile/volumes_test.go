package hostile

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// impostor replaces the volume server of its Sandbox, as root may, and speaks to the
// node itself. It prints the error number of each answer.
const impostor = `
import os, signal, socket, struct, sys
own, foreign = sys.argv[1:]

def frame(op, mount=0, node=1, name=b'', data=b'', offset=0, size=0, other=0, tag=7):
    body = struct.pack('<QBBQQqIIIIIIqqH', tag, op, mount, node, other, offset, size, 0, 0, 0, 0, 0, 0, 0, len(name)) + name + data
    return struct.pack('<I', len(body)) + body

def read(conn, n):
    got = b''
    while len(got) < n:
        part = conn.recv(n - len(got))
        if not part: raise EOFError
        got += part
    return got

def answer(conn):
    body = read(conn, struct.unpack('<I', read(conn, 4))[0])
    return struct.unpack('<I', body[8:12])[0], body

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
for pid in os.listdir('/proc'):
    if pid.isdigit() and b'volumes' in open('/proc/%s/cmdline' % pid, 'rb').read().split(b'\0')[1:2]:
        os.kill(int(pid), signal.SIGKILL)
while True: # until the last of it is gone
    try:
        listener.bind(('', 49981)); break
    except OSError: pass
listener.listen(16)

def meet(volumes=None):
    while True: # a connection of before may come first
        conn, _ = listener.accept()
        try:
            if volumes is None: return conn
            conn.sendall(frame(1, size=1, data=' '.join(volumes).encode()))
            if answer(conn)[0] == 0: return conn
        except (OSError, EOFError): pass

conn = meet([own, foreign, '../' + foreign, '/etc'])
LOOKUP, GETATTR, SYMLINK, CREATE, LIST, READ, WRITE, LINK, HOLD = 2, 3, 6, 7, 18, 15, 16, 12, 13
for what, ask in [
    ('own', frame(GETATTR)),
    ('foreign', frame(GETATTR, mount=1)),
    ('foreign by a path', frame(GETATTR, mount=2)),
    ('host', frame(GETATTR, mount=3)),
    ('beyond', frame(GETATTR, mount=200)),
    ('no file', frame(GETATTR, node=2)),
    ('huge number', frame(READ, node=2**64 - 1, size=4096)),
    ('parent', frame(LOOKUP, name=b'..')),
    ('path', frame(LOOKUP, name=b'../../spec.json')),
    ('absolute', frame(CREATE, name=b'/tmp/x', tag=8)),
    ('NUL', frame(CREATE, name=b'a\0b', tag=9)),
    ('link out', frame(SYMLINK, name=b'out', data=b'/etc', tag=10)),
    ('root as a file', frame(READ, node=1, size=262144)),
    ('far write', frame(WRITE, node=1, offset=2**62, data=b'x', tag=11)),
]:
    conn.sendall(ask)
    print(what, answer(conn)[0])
# The entry that stands for a link is no way out of the folder.
conn.sendall(frame(LOOKUP, name=b'out'))
link = struct.unpack('<Q', answer(conn)[1][12:20])[0]
conn.sendall(frame(LOOKUP, node=link, name=b'passwd'))
print('through a link', answer(conn)[0])
conn.close()

for what, junk in [
    ('4 GiB', struct.pack('<I', 2**32 - 1)),
    ('empty', struct.pack('<I', 0)),
    ('short', struct.pack('<I', 3) + b'abc'),
    ('long name', frame(CREATE, name=b'n' * 300)),
    ('no such thing', frame(250)),
    ('too much', frame(READ, size=2**31)),
    ('hello again', frame(1, size=1) * 3 + struct.pack('<I', 0)),
]:
    conn = meet([own])
    conn.sendall(junk)
    try:
        while True: answer(conn)
    except (EOFError, OSError):
        print(what, 'closed')
    conn.close()

for what, hello in [('HTTP', b'POST / HTTP/1.1\r\n\r\n'), ('no hello', frame(GETATTR)), ('version', frame(1, size=9))]:
    conn = meet()
    conn.sendall(hello)
    try:
        conn.recv(1); print(what, 'closed')
    except OSError: print(what, 'closed')
    conn.close()

# Much is asked for, and no answer read.
conn = meet([own])
conn.settimeout(2)
try:
    for _ in range(1000): conn.sendall(frame(LIST) * 100)
except OSError: pass
print('flood over')
conn.close()
listener.close()
`

// An impostor of a Sandbox's volume server reaches the volumes of that Sandbox, and
// nothing else of the node.
func TestVolumeServerImpostor(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	c, other := s.Client(t, "impostor"), s.Client(t, "victim")
	ids := map[*rig.Client]string{}
	for _, of := range []*rig.Client{c, other} {
		var v struct {
			ID string `json:"volume_id"`
		}
		of.Must(t, "POST", "/api/v1/volumes", rig.Body{"name": "v", "size_mb": 16}, &v)
		ids[of] = v.ID
		t.Cleanup(func() { of.Must(t, "DELETE", "/api/v1/volumes/v", nil, nil) })
	}
	has := rig.Body{"volumes": []rig.Body{{"volume": "v", "path": "/data"}}}
	victim := other.Create(t, has)
	other.Sh(t, victim.ID, "echo safe >/data/file")

	sb := c.Create(t, has)
	c.Must(t, "PUT", rig.Files("", sb.ID, "/tmp/impostor.py"), []byte(impostor), nil)
	got := c.Sh(t, sb.ID, "sudo python3 /tmp/impostor.py "+ids[c]+" "+ids[other])
	const (
		noEntry, isFolder, invalid, notFolder, stale = "2", "21", "22", "20", "116"
	)
	want := strings.Join([]string{
		"own 0", "foreign " + stale, "foreign by a path " + stale, "host " + stale, "beyond " + invalid,
		"no file " + stale, "huge number " + stale, "parent " + invalid, "path " + invalid, "absolute " + invalid, "NUL " + invalid,
		"link out 0", "root as a file " + isFolder, "far write " + invalid, "through a link " + notFolder,
		"4 GiB closed", "empty closed", "short closed", "long name closed", "no such thing closed", "too much closed", "hello again closed",
		"HTTP closed", "no hello closed", "version closed", "flood over",
	}, "\n")
	if strings.TrimSpace(got) != want {
		t.Errorf("the impostor was answered\n%s\nwant\n%s", got, want)
	}
	rig.Within(t, time.Minute, "the volume to be back in the impostor's sandbox", func() bool {
		r, err := c.TryRun(sb.ID, "bash", "readlink /data/out", nil)
		return err == nil && r.Stdout == "/etc\n"
	})
	if out := other.Sh(t, victim.ID, "cat /data/file && echo still >>/data/file && tail -1 /data/file"); out != "safe\nstill\n" {
		t.Errorf("the victim's file has %q", out)
	}
}

// Clients cannot reach the port on which the node speaks to the volume server.
func TestVolumePort(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	c := s.Client(t, "volumeport")
	c.Must(t, "POST", "/api/v1/volumes", rig.Body{"name": "p", "size_mb": 16}, nil)
	t.Cleanup(func() { c.Must(t, "DELETE", "/api/v1/volumes/p", nil, nil) })
	sb := c.Create(t, rig.Body{"volumes": []rig.Body{{"volume": "p", "path": "/data"}}})
	req, err := http.NewRequest("GET", s.URL+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", sb.ID)
	req.Header.Set("E2b-Sandbox-Port", "49981")
	req.Header.Set("Authorization", "Bearer "+c.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway {
		t.Errorf("a request to the port answers %d", resp.StatusCode)
	}
	if status, raw, err := c.Do("GET", "/api/v1/sessions/"+sb.ID+"/ports/49981/connect", nil); err != nil || status != http.StatusBadRequest {
		t.Errorf("a tunnel to the port answers %d %s %v", status, raw, err)
	}
	// A program in the Sandbox cannot use it either.
	if out := c.Sh(t, sb.ID, `python3 -c "
import socket
c = socket.create_connection(('127.0.0.1', 49981)); c.settimeout(30)
print(c.recv(1))"`); out != "b''\n" {
		t.Errorf("a program in the sandbox got %q", out)
	}
	if out := c.Sh(t, sb.ID, "echo x >/data/f && cat /data/f"); out != "x\n" {
		t.Errorf("after that the volume has %q", out)
	}
}
