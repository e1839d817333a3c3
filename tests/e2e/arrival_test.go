package e2e

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

// slowLink carries connections to an address. What comes back is limited, over all of them.
type slowLink struct {
	addr    string
	limiter *rate.Limiter
}

const linkChunk = 16 << 10

// newSlowLink carries at any speed until limit is called.
func newSlowLink(t *testing.T, to string) *slowLink {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	l := &slowLink{ln.Addr().String(), rate.NewLimiter(rate.Inf, linkChunk)}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go l.carry(t.Context(), conn, to)
		}
	}()
	return l
}

// limit sets the bytes that come back in a second; 0: any number.
func (l *slowLink) limit(bytes int) {
	if bytes == 0 {
		l.limiter.SetLimit(rate.Inf)
		return
	}
	l.limiter.SetLimit(rate.Limit(bytes))
}

func (l *slowLink) carry(ctx context.Context, conn net.Conn, to string) {
	defer conn.Close()
	there, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer there.Close()
	go func() {
		_, _ = io.Copy(there, conn)
		there.Close()
	}()
	b := make([]byte, linkChunk)
	for {
		n, err := there.Read(b)
		// In small waits: the limit may change meanwhile.
		if err != nil || l.limiter.WaitN(ctx, n) != nil {
			return
		}
		if _, err := conn.Write(b[:n]); err != nil {
			return
		}
	}
}

// A session whose state is only in S3 runs before all of its memory has arrived. It outlives
// a stop and a kill of the server meanwhile, a pause of it waits for the rest, and nothing of
// its memory is lost.
func TestRunsWhileItsMemoryArrives(t *testing.T) {
	rig.OneMachine(t)
	t.Parallel()
	s3 := s3rig.Start(t)
	link := newSlowLink(t, s3.Address())
	env := inBucket(s3, s3.Bucket(t))
	for i, v := range env {
		if strings.HasPrefix(v, "CLOUD_SANDBOX_S3_ENDPOINT=") {
			env[i] = "CLOUD_SANDBOX_S3_ENDPOINT=http://" + link.addr
		}
	}
	srv := rig.Own(t, rig.Options{Env: env})
	c := srv.Client(t, "arrives")
	const heap = 200 << 20
	s := create(t, c, rig.Body{"timeout_seconds": 3600})
	sum := output(t, c, s.ID, "python", "import hashlib, os\nheap = os.urandom(200 << 20)\nprint(hashlib.sha256(heap).hexdigest())")
	act(t, c, s.ID, "pause", rig.Body{})
	onlyInBlobs(t, srv)

	link.limit(heap / 60)
	began := time.Now()
	if got := output(t, c, s.ID, "python", "print(len(heap))"); got != "209715200\n" {
		t.Errorf("it prints %q", got)
	}
	t.Logf("the first execution ended after %v", time.Since(began).Round(time.Millisecond))
	arrives := func(when string) {
		t.Helper()
		for _, name := range states(t, srv) {
			if sandbox.ValidSnapshotID(name) {
				t.Fatalf("all had arrived %s", when)
			}
		}
	}
	arrives("before the first execution ended")
	link.limit(heap / 100)

	if err := srv.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := srv.Launch(); err != nil {
		t.Fatal(err)
	}
	c = srv.Client(t, "arrives")
	c.Sh(t, s.ID, "echo > /tmp/after-the-stop")
	arrives("before the server stopped")
	rig.Kill(t, srv.One(t, rig.ServerRole))
	waitDone(t, srv)
	if err := srv.Launch(); err != nil {
		t.Fatal(err)
	}
	c = srv.Client(t, "arrives")
	c.Sh(t, s.ID, "test -e /tmp/after-the-stop")
	arrives("before the server was killed")

	paused := make(chan error, 1)
	go func() { paused <- c.Try("POST", "/api/v1/sessions/"+s.ID+"/pause", rig.Body{}, nil) }()
	select {
	case err := <-paused:
		t.Fatalf("it was paused before all had arrived: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	link.limit(0)
	if err := <-paused; err != nil {
		t.Error(err)
	}
	if got := output(t, c, s.ID, "python", "print(hashlib.sha256(heap).hexdigest())"); got != sum {
		t.Errorf("its memory was %q, and is %q", sum, got)
	}
}
