//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/netstack/netstacktest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// asShard makes the test binary a link shard.
const asShard = "LINK_TEST_AS_SHARD"

func TestMain(m *testing.M) {
	if os.Getenv(asShard) != "" {
		if err := run(os.Args[1:], slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startShard starts a shard process, with the listener of socket when inherit,
// and connects to it.
func startShard(t *testing.T, socket string, inherit bool) (*exec.Cmd, *link.Client) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "--allow-uid", "12345")
	cmd.Env = append(os.Environ(), asShard+"=1")
	cmd.Stderr = os.Stderr
	if inherit {
		l, err := fdrpc.Listen(socket, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.ExtraFiles = []*os.File{f}
		cmd.Args = append(cmd.Args, "--listen-fd", "3")
	} else {
		cmd.Args = append(cmd.Args, "--socket", socket)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	ctx := testContext(t)
	for {
		c, err := link.Dial(ctx, socket, link.Settings{})
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return cmd, c
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestShardProcess(t *testing.T) {
	for name, inherit := range map[string]bool{"inherited listener": true, "own socket": false} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "link.sock")
			cmd, c := startShard(t, socket, inherit)
			if stats, err := c.Stats(testContext(t)); err != nil || stats.Threads == 0 || stats.Threads > 20 {
				t.Errorf("Stats = %+v, %v", stats, err)
			}
			checkNoNewPrivileges(t, cmd.Process.Pid)
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("after SIGTERM it ended with %v", err)
			}
		})
	}
}

// checkNoNewPrivileges looks at every thread.
func checkNoNewPrivileges(t *testing.T, pid int) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "status"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no threads: %v", err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(raw), "NoNewPrivs:\t1") {
			t.Errorf("%s may gain rights", path)
		}
	}
}

func TestKilledShardIsReplaced(t *testing.T) {
	host, end, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	guest := netstacktest.Guest(t, end)
	ln, err := gonet.ListenTCP(guest, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(link.GuestAddress.As4()), Port: 7}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Shutdown()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
	id := sandbox.NewBootID()
	dir := t.TempDir()
	for round := range 3 {
		cmd, c := startShard(t, filepath.Join(dir, strconv.Itoa(round)+".sock"), true)
		ctx := testContext(t)
		if err := c.Add(ctx, id, host, sandbox.NetworkNone); err != nil {
			t.Fatal(err)
		}
		conn, err := c.DialGuest(ctx, id, 7)
		if err != nil {
			t.Fatalf("shard %d: %v", round, err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a stream outlived its shard")
		}
	}
}
