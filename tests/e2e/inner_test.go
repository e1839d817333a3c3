package e2e

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Coding agents run untrusted code in bubblewrap without a network. The loopback
// interface in it works, however it is set up, and after a pause.
func TestSandboxesInside(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "inner")
	id := create(t, c, rig.Body{}).ID
	const talk = `import socket
for host in "127.0.0.1", "::1", "localhost":
    server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    client = socket.create_connection(server.getsockname()[:2])
    peer, source = server.accept()
    client.sendall(b"x")
    assert peer.recv(1) == b"x"
    if host == "127.0.0.1":
        assert source[0] == host, source
try:
    socket.create_connection(("10.0.0.1", 53), timeout=20)
    print("reached the network")
except OSError:
    print("fine")
`
	c.Sh(t, id, "cat >talk.py <<'END'\n"+talk+"END")
	for _, how := range []struct{ name, code string }{
		{name: "bubblewrap", code: "bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc python3 talk.py"},
		{name: "bubblewrap without the network", code: "bwrap --unshare-net --dev-bind / / python3 talk.py"},
		{name: "as it begins", code: "unshare -rn python3 talk.py"},
		{name: "set up", code: "unshare -rn sh -c 'ip link set lo up && python3 talk.py'"},
		{name: "with its address", code: "unshare -rn sh -c 'ip addr add 127.0.0.1/8 dev lo && ip link set lo up && python3 talk.py'"},
	} {
		if got := c.Sh(t, id, how.code); got != "fine\n" {
			t.Errorf("%s: %q", how.name, got)
		}
	}
	c.Sh(t, id, `bwrap --unshare-net --dev-bind / / sh -c 'echo began >began; until [ -e resumed ]; do sleep 0.1; done; python3 talk.py' >said 2>&1 &
until [ -e began ]; do sleep 0.1; done`)
	act(t, c, id, "pause", rig.Body{})
	act(t, c, id, "resume", rig.Body{})
	if got := c.Sh(t, id, "touch resumed; until [ -s said ]; do sleep 0.1; done; cat said"); got != "fine\n" {
		t.Errorf("after a pause: %q", got)
	}
}
