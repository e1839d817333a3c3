package hostile

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// reach tries to connect to every address of a JSON list. It prints the addresses that
// answered and those that did not refuse in time.
const reach = `
import json, socket, sys, threading, time
reached = []
def attempt(host, port):
    began = time.time()
    try:
        family = socket.AF_INET6 if ':' in host else socket.AF_INET
        s = socket.socket(family, socket.SOCK_STREAM)
        s.settimeout(15)
        s.connect((host, port))
        # A userspace stack may accept before it has dialled: only an answer counts.
        s.settimeout(15)
        try:
            s.sendall(b'GET / HTTP/1.0\r\n\r\n')
            first = s.recv(1)
        except ConnectionError:
            first = b''
        except TimeoutError:
            first = b'silence'
        if first:
            reached.append(f'{host}:{port} {first!r}')
    except TimeoutError:
        reached.append(f'{host}:{port} is not refused but silent')
    except OSError:
        pass
threads = [threading.Thread(target=attempt, args=(h, p)) for h, p in json.load(sys.stdin)]
[t.start() for t in threads]
[t.join() for t in threads]
print('\n'.join(sorted(reached)), end='')
`

func tryReach(t *testing.T, c *rig.Client, id string, targets [][2]any) string {
	t.Helper()
	stdin, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	r := c.Run(t, id, "python", reach, rig.Body{"stdin": string(stdin), "timeout_seconds": 120})
	if r.Status != "ok" {
		t.Fatal(r)
	}
	return r.Stdout
}

// greeter starts a listener on all addresses of the host that greets clients and counts
// them.
func greeter(t *testing.T) (port int, met *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	met = new(atomic.Int64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			met.Add(1)
			fmt.Fprintln(conn, "the host greets")
			conn.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, met
}

// No private address answers: not the host by any of its addresses, the metadata
// service, a neighbour, or the guest's control port.
func TestPrivateAddressesAreRefused(t *testing.T) {
	s := shared.Server(t)
	c := s.Client(t, "network")
	port, met := greeter(t)
	_, apiPort, _ := strings.Cut(s.Addr, ":")
	api, _ := strconv.Atoi(apiPort)
	targets := [][2]any{
		{"169.254.169.254", 80},
		{"169.254.169.254", port},
		{"10.0.0.1", 22},
		{"10.0.0.1", 80},
		{"10.0.0.3", 80},
		{"192.168.0.1", 80},
		{"192.168.1.1", 443},
		{"172.16.0.1", 80},
		{"172.17.0.1", 22},
		{"100.64.0.1", 80},
		{"127.0.0.1", 49982},
		{"10.0.0.2", 49982},
		{"10.0.0.1", 49982},
		{"0.0.0.0", 49982},
		{"127.1.2.3", 49982},
		{"::1", 49982},
		{"::ffff:127.0.0.1", 49982},
		{"::ffff:10.0.0.2", 49982},
		{"240.0.0.1", 80},
		{"0.0.0.0", port},
	}
	hosts := []string{"127.0.0.1", "127.0.0.2", "10.0.0.1", "::1", "::ffff:127.0.0.1"}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		hosts = append(hosts, a.(*net.IPNet).IP.String())
	}
	for _, h := range hosts {
		targets = append(targets, [2]any{h, port}, [2]any{h, api}, [2]any{h, 22})
	}
	for _, policy := range []string{"public", "none"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			id := c.Create(t, rig.Body{"network": policy}).ID
			if got := tryReach(t, c, id, targets); got != "" {
				t.Errorf("reached:\n%s", got)
			}
			if n := met.Load(); n != 0 {
				t.Errorf("the host's listener met %d connections", n)
			}
		})
	}
}

// Without a network no name resolves, through any resolver.
func TestNoNamesWithoutNetwork(t *testing.T) {
	c := shared.Server(t).Client(t, "names")
	id := c.Create(t, rig.Body{"network": "none"}).ID
	const ask = `
import socket
for name in ('example.com', 'metadata.google.internal', 'deb.debian.org'):
    try: print(name, socket.getaddrinfo(name, 80))
    except OSError: pass
query = b'\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01'
for server in ('10.0.0.1', '8.8.8.8', '1.1.1.1', '169.254.169.253'):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    try:
        s.connect((server, 53)); s.send(query)
        a = s.recv(512)
        if int.from_bytes(a[6:8], 'big') or a[3] & 15 == 0: print(server, a)
    except OSError: pass
`
	r := c.Run(t, id, "python", ask, rig.Body{"timeout_seconds": 40})
	if r.Status != "ok" || r.Stdout != "" {
		t.Errorf("names resolve: %s", r)
	}
	if r.DurationMS > 25_000 {
		t.Errorf("a refusal takes too long: %.0f ms", r.DurationMS)
	}
}

// Sandboxes all have the same address and cannot reach each other.
func TestNeighboursDoNotMeet(t *testing.T) {
	c := shared.Server(t).Client(t, "neighbours")
	one, two := c.Acquire(t), c.Acquire(t)
	c.Sh(t, one, "setsid python3 -m http.server 7777 --bind 0.0.0.0 >/dev/null 2>&1 </dev/null &")
	up := func() bool {
		r, err := c.TryRun(one, "bash", "exec 3<>/dev/tcp/10.0.0.2/7777", nil)
		return err == nil && r.Status == "ok"
	}
	rig.Within(t, time.Minute, "a server inside", up)
	if got := tryReach(t, c, two, [][2]any{{"10.0.0.2", 7777}, {"10.0.0.1", 7777}, {"127.0.0.1", 7777}}); got != "" {
		t.Errorf("reached a neighbour: %s", got)
	}
	if !up() {
		t.Error("the server that was to be reached is gone")
	}
}
