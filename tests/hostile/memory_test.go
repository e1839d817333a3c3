package hostile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// deaf sends a request over a connection with a small receive buffer and does not read
// the answer.
func deaf(t *testing.T, c *rig.Client, method, path, accept string, body rig.Body) net.Conn {
	t.Helper()
	at, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	raw := []byte{}
	if body != nil {
		if raw, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		method, path, at.Host, c.Token, accept, len(raw), raw)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// resident returns the server's resident memory in bytes.
func resident(t *testing.T, s *rig.Server) int64 {
	t.Helper()
	kib, err := strconv.ParseInt(strings.TrimSuffix(rig.Status(t, s.One(t, rig.ServerRole).Pid)["VmRSS"], " kB"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// Many concurrent large answers of all kinds that no client reads use disk and not the
// server's memory. The server soon frees the memory that they take, and a neighbour's
// answers stay quick.
func TestAnswersThatNobodyReads(t *testing.T) {
	const (
		// most bounds the server's memory during the attack. The answers total 3 GB.
		most = 700 << 20
		// after bounds it soon after the attack.
		after = 300 << 20
		// quick bounds the time of the neighbour's answers.
		quick = 15 * time.Second
		full  = 16 << 20
	)
	s := rig.Own(t, rig.Options{Pool: 3})
	attacker, other := s.Client(t, "deaf"), s.Client(t, "neighbour")
	near := other.Acquire(t)
	other.Sh(t, near, "true")
	big := rig.Body{"resources": rig.Body{"memory_mb": 2048}}
	a, b := attacker.Create(t, big).ID, attacker.Create(t, big).ID
	// Each byte takes six bytes in JSON.
	const shout = `x() { head -c 16777216 /dev/zero | tr '\0' '\1'; }; x; x >&2`
	var noisy struct {
		ID string `json:"process_id"`
	}
	attacker.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": a, "command": shout, "max_output_bytes": 1, "yield_ms": 600_000}, &noisy)

	worst := watchNeighbour(t, other, near)
	var peak atomic.Int64
	var watching sync.WaitGroup
	quit := make(chan struct{})
	watching.Go(func() {
		for {
			peak.Store(max(peak.Load(), resident(t, s)))
			select {
			case <-quit:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	var conns []net.Conn
	ask := func(method, path, accept string, body rig.Body) {
		conns = append(conns, deaf(t, attacker, method, path, accept, body))
	}
	for i := range 16 {
		id := a
		if i%2 == 1 {
			id = b
		}
		ask("POST", "/api/v1/execute", "*/*", rig.Body{"sandbox_id": id, "language": "bash", "code": shout, "max_output_bytes": full, "timeout_seconds": 600})
	}
	for range 4 {
		ask("POST", "/api/v1/execute", "text/event-stream", rig.Body{"sandbox_id": b, "language": "bash", "code": shout, "max_output_bytes": full, "timeout_seconds": 600})
		ask("POST", "/api/v1/processes", "*/*", rig.Body{"sandbox_id": a, "command": shout, "max_output_bytes": 8 << 20, "yield_ms": 600_000})
		ask("GET", "/api/v1/processes/"+noisy.ID+"/output?sandbox_id="+a, "*/*", nil)
		ask("GET", "/api/v1/processes/"+noisy.ID+"/output?sandbox_id="+a, "text/event-stream", nil)
		ask("POST", "/api/v1/execute", "*/*", rig.Body{
			"sandbox_id": b, "language": "python", "code": "for i in range(4): display('\\x01' * (7 << 20))",
		})
		ask("POST", "/cloudsandbox.process.v1.ProcessService/Start", "*/*", rig.Body{
			"sandboxId": b, "command": shout, "maxOutputBytes": 8 << 20, "yieldMs": 600_000,
		})
	}
	// Wait until every answer has begun or was refused.
	var reading sync.WaitGroup
	var begun, refused atomic.Int64
	for _, conn := range conns {
		reading.Go(func() {
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Minute))
			line, err := bufio.NewReaderSize(conn, 16).Peek(12)
			switch {
			case err != nil:
				t.Errorf("no answer: %v", err)
			case string(line[9:]) == "200", string(line[9:]) == "201":
				begun.Add(1)
			case string(line[9:]) == "429":
				refused.Add(1)
			default:
				t.Errorf("an answer begins with %q", line)
			}
		})
	}
	reading.Wait()
	if begun.Load() < 16 {
		t.Errorf("only %d answers have begun, %d were refused", begun.Load(), refused.Load())
	}
	close(quit)
	watching.Wait()
	slowest := worst()
	for _, conn := range conns {
		_ = conn.Close()
	}
	t.Logf("%d answers began, %d were refused; the server had up to %d MiB; the neighbour waited up to %v",
		begun.Load(), refused.Load(), peak.Load()>>20, slowest)
	if n := peak.Load(); n > most {
		t.Errorf("the server had %d MiB", n>>20)
	}
	if slowest > quick {
		t.Errorf("a neighbour waited for %v", slowest)
	}
	rig.Within(t, 90*time.Second, "memory that is given back", func() bool { return resident(t, s) < after })

	// A client that reads gets all of the answer.
	status, answer, err := attacker.Do("POST", "/api/v1/execute", rig.Body{"sandbox_id": a, "language": "bash", "code": shout, "max_output_bytes": full, "timeout_seconds": 600})
	var r rig.Result
	if err == nil && status == 200 {
		err = json.Unmarshal(answer, &r)
	}
	if want := strings.Repeat("\x01", full); err != nil || status != 200 || r.Stdout != want || r.Stderr != want || r.Truncated != nil {
		t.Errorf("afterwards: %d, %v, %d and %d bytes, %+v", status, err, len(r.Stdout), len(r.Stderr), r.Truncated)
	}
}
