package gvisor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/enginetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// stage is a sentry host with its environment in folders of its own, as the launcher sets
// up a data folder.
type stage struct {
	dir    string
	socket string
	group  string // the cgroup of its sentry hosts
	image  string
	images string
	stop   func() // ends the sentry host
}

// newStage uses the output of `make build` and a Template.
func newStage(t *testing.T) *stage {
	t.Helper()
	binary, templates := os.Getenv("CLOUD_SANDBOX_E2E"), os.Getenv("CLOUD_SANDBOX_TEMPLATES")
	if os.Getuid() != 0 || binary == "" || templates == "" {
		t.Skip("real sentries need root, CLOUD_SANDBOX_E2E (the built program) and CLOUD_SANDBOX_TEMPLATES")
	}
	dir, err := os.MkdirTemp("/var/tmp", "engine")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	store, err := template.Open(templates)
	if err != nil {
		t.Fatal(err)
	}
	image, err := store.Resolve(t.Context(), "", "base")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{dir: dir, socket: filepath.Join(dir, "host.sock"), image: image, images: filepath.Join(templates, "images")}
	s.group = fmt.Sprintf("cloud-sandbox-engine-%d-%d", os.Getpid(), stages.Add(1))
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.stop = s.startHost(t, filepath.Join(filepath.Dir(binary), "stage"), "test")
	return s
}

// stages counts the stages, because several exist at once.
var stages atomic.Int64

// startHost starts the sentry host of a build from the parts in a folder. The host ends
// with the test, or with stop.
func (s *stage) startHost(t *testing.T, parts, build string) (stop func()) {
	t.Helper()
	log, err := os.Create(filepath.Join(s.dir, "host.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(parts, "gvisor_sentry"), "host",
		"--socket", s.socket, "--dir", filepath.Join(s.dir, "host"), "--images", s.images, "--upper-dir", filepath.Join(s.dir, "upper"), "--saved", filepath.Join(s.dir, "saved"),
		"--guest-image", filepath.Join(parts, "guest.erofs"), "--sidecar-dir", parts, "--link", filepath.Join(parts, "link"),
		"--build", build, "--server-uid", "0", "--link-uid", "61741", "--cgroup", s.group)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		s.down()
		_ = cmd.Wait()
		log.Close()
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("the sentry host said:\n%s", b)
		}
		_ = os.Remove(s.socket)
	})
	t.Cleanup(stop)
	for deadline := time.Now().Add(time.Minute); ; {
		// The socket exists before the host listens on it.
		if conn, err := net.Dial("unixpacket", s.socket); err == nil {
			conn.Close()
			return stop
		}
		if time.Now().After(deadline) {
			t.Fatal("the sentry host did not start")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *stage) down() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	e, err := Open(ctx, Config{Socket: s.socket, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return
	}
	if host, err := e.own.connected(ctx); err == nil {
		_ = host.Down(ctx)
	}
	_ = e.Close()
}

func (s *stage) open(t *testing.T) *Engine {
	t.Helper()
	e, err := Open(t.Context(), Config{Socket: s.socket, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The engine passes the suite of engines with real gVisor.
func TestEngine(t *testing.T) {
	s := newStage(t)
	shape := sandbox.DefaultShape()
	shape.MemoryBytes = 256 << 20
	enginetest.Run(t, enginetest.Options{
		Open: func(t *testing.T) sandbox.Engine {
			e := s.open(t)
			t.Cleanup(func() { endAll(t, e) })
			return e
		},
		Reopen: func(t *testing.T, old sandbox.Engine) sandbox.Engine {
			if err := old.(*Engine).Close(); err != nil {
				t.Error(err)
			}
			e := s.open(t)
			t.Cleanup(func() { endAll(t, e) })
			return e
		},
		Kill:     func(t *testing.T, _ sandbox.Engine, id string) { killSentry(t, id) },
		Image:    s.image,
		Shape:    shape,
		Parallel: 4,
		Wait:     time.Minute,
		Pause:    pause(s.dir),
	})
}

func endAll(t *testing.T, e *Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	boots, _ := e.List(ctx)
	for _, b := range boots {
		if err := e.Stop(ctx, b.ID, 0); err != nil {
			t.Error(err)
		}
	}
	_ = e.Close()
}

// killSentry kills the sentry of a Boot, like a crash.
func killSentry(t *testing.T, id string) {
	t.Helper()
	if err := unix.Kill(sentryOf(t, id), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// sentryOf finds the sentry of a Boot by its last argument, the Boot's ID.
func sentryOf(t *testing.T, id string) (pid int) {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		b, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(b), "runsc-sandbox\x00") && strings.HasSuffix(string(b), "\x00"+id+"\x00") {
			pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	t.Fatalf("no sentry of %s", id)
	return 0
}

// A killed link shard is replaced, and its Boots become reachable again.
func TestShardIsReplaced(t *testing.T) {
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	watch, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = e.Watch(watch, func(sandbox.BootEvent) {}) }()
	id := sandbox.NewBootID()
	if err := e.Start(t.Context(), id, sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		shards, err := e.own.current().Shards(t.Context())
		if err != nil || len(shards) != 1 {
			t.Fatalf("shards: %v, %v", shards, err)
		}
		if err := unix.Kill(shards[0].Pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for again := false; !again; { // the killed shard may still answer for a moment
			conn, err := e.Dial(ctx, id, sandbox.GuestPort)
			if err == nil {
				conn.Close()
				now, listErr := e.own.current().Shards(ctx)
				again, err = listErr == nil && len(now) == 1 && now[0].Pid != shards[0].Pid, listErr
			}
			if ctx.Err() != nil {
				t.Fatalf("after the shard's end: %v", err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
	}
}
