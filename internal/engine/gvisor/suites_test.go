package gvisor

import (
	"context"
	"net"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/guesttest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node/nodetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session/sessiontest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/core"
)

// overReal returns the Config of a Core over an Engine with a sentry host of its own,
// because a Node stops all Boots of its Engine that it does not know.
func overReal(t *testing.T) (*stage, *Engine, core.Config) {
	t.Helper()
	s := newStage(t)
	e := s.open(t)
	t.Cleanup(func() { endAll(t, e) })
	return s, e, core.Config{
		Session: session.Config{Engine: "gvisor"},
		Real: &core.Real{
			Engine: e, Image: s.image,
			Guest: func(dial node.Dial) node.GuestControl { return client.New(client.Dial(dial)) },
		},
	}
}

// remember puts a value into the memory of a Boot, in /dev/shm, which is on no disk.
func remember(t *testing.T, e *Engine, bootID, value string) {
	t.Helper()
	sh(t, e, bootID, "echo "+value+" >/dev/shm/value")
}

func recall(t *testing.T, e *Engine, bootID string) string {
	t.Helper()
	return sh(t, e, bootID, "if [ -e /dev/shm/value ]; then cat /dev/shm/value; fi")
}

// The session manager passes the suite of its port over real sentries.
func TestSandboxes(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) sessiontest.World {
		_, e, cfg := overReal(t)
		return sessiontest.World{
			Sandboxes: core.New(t, cfg).Manager,
			Remember:  func(sb sandbox.Sandbox, value string) { remember(t, e, sb.Boot.ID, value) },
			Recall:    func(sb sandbox.Sandbox) string { return recall(t, e, sb.Boot.ID) },
		}
	})
}

// The Node passes the suite of its ports over real sentries.
func TestNode(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) nodetest.World {
		s, e, cfg := overReal(t)
		n := core.NewNode(t, cfg).Node
		return nodetest.World{
			Name: core.NodeName, Image: cfg.Real.Image, NodeBoots: n, NodeSaves: n, NodeChanges: n, NodeVolumes: n, Dialer: n, Reports: n, Files: n,
			NoReplicas: true,
			Echo:       func(bootID string) { echo(t, e, bootID) },
			Remember:   func(bootID, value string) { remember(t, e, bootID, value) },
			Recall:     func(bootID string) string { return recall(t, e, bootID) },
			Need:       func(snapshot, feature string) { need(t, s.dir, snapshot, feature) },
		}
	})
}

// echo starts an echo server on port 8000 of a Boot.
func echo(t *testing.T, e *Engine, bootID string) {
	t.Helper()
	g := guestOf(e, bootID)
	t.Cleanup(g.Close)
	const program = `
import socket
s = socket.create_server(("", 8000))
print("ready", flush=True)
while True:
    c, _ = s.accept()
    while data := c.recv(100):
        c.sendall(data)
`
	const id = "#0000000000000001"
	_, err := g.StartProcess(t.Context(), execution.ProcessStart{ID: id, Args: []string{"python3", "-c", program}})
	codetest.OK(t, "StartProcess", err)
	if ready, err := g.WaitProcess(t.Context(), id, execution.Condition{Log: "ready"}, time.Minute); err != nil || !ready.Met {
		t.Fatalf("the echo: %+v, %v", ready, err)
	}
}

// The Guest inside a real sentry passes the suite of its ports.
func TestGuest(t *testing.T) {
	s := newStage(t)
	e := s.open(t)
	t.Cleanup(func() { endAll(t, e) })
	guesttest.Run(t, func(t *testing.T) guesttest.World {
		ctx, id := t.Context(), sandbox.NewBootID()
		codetest.OK(t, "Start", e.Start(ctx, id, sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}))
		const token, dir = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", "/root/suite"
		g := client.New(func(ctx context.Context, port uint16) (conn net.Conn, err error) { return e.Dial(ctx, id, port) }, client.WithToken(token))
		t.Cleanup(func() {
			g.Close()
			codetest.OK(t, "Stop", e.Stop(context.WithoutCancel(ctx), id, 0))
		})
		b := bound(sandbox.DefaultShape())
		b.Restored, b.BootNumber, b.AccessToken, b.User, b.Cwd = false, boots.Add(1), token, "root", dir
		_, err := g.Bind(ctx, b)
		codetest.OK(t, "Bind", err)
		_, err = g.MakeDir(ctx, dir)
		codetest.OK(t, "MakeDir", err)
		return guesttest.World{Guest: g, Dir: dir}
	})
}
