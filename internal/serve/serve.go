// Package serve joins the parts of a process. It is the only package that
// imports both roles and drivers, and the only one that knows which roles share
// a process.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/run"
	"github.com/cloud-sandbox/cloud-sandbox/internal/scheduler"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlite"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// nodeName is the Node of a server that is all roles in one.
const nodeName = "local"

// stopGrace is how long the Guest may take to end its Processes when a Sandbox
// is ended: none, because its files and memory go with it.
const stopGrace = 0 * time.Second

// Run is the server process, without rights: all roles over SQLite, until ctx
// ends. Sandboxes run on.
func Run(ctx context.Context, cfg config.Config, in launch.Inherited, log *slog.Logger) error {
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	if err := giveUpRights(); err != nil {
		return err
	}
	layout := launch.Layout{Root: cfg.Data}
	secrets := cfg
	secrets.Data = layout.Server()
	if err := secrets.KeepSecret(); err != nil {
		return err
	}
	seed, err := guestSeed(layout.Server())
	if err != nil {
		return err
	}
	store, err := sqlite.Open(ctx, filepath.Join(layout.Server(), "cloud-sandbox.db"))
	if err != nil {
		return err
	}
	defer store.Close()
	engine, err := gvisor.Open(ctx, gvisor.Config{Socket: in.HostSocket, Log: log})
	if err != nil {
		return fmt.Errorf("reach the engine: %w", err)
	}
	defer engine.Close()
	images, err := template.Open(layout.Templates())
	if err != nil {
		return err
	}
	parts, err := join(ctx, cfg, joined{
		layout: layout, secret: secrets.Secret, seed: seed, store: store, engine: engine, images: images, listeners: in.Listeners, log: log,
	})
	if err != nil {
		return err
	}
	log.Info("ready to serve", "addr", cfg.Addr, "dev", cfg.Dev, "data", cfg.Data)
	return parts.Wait(ctx)
}

// joined is what the roles are made of.
type joined struct {
	layout    launch.Layout
	secret    []byte
	seed      []byte
	store     sandbox.Store
	engine    sandbox.Engine
	images    sandbox.Images
	listeners []net.Listener
	log       *slog.Logger
}

// join builds the roles downwards and starts them: a role's calls to another
// are method calls here.
func join(ctx context.Context, cfg config.Config, j joined) (*run.Parts, error) {
	var manager *session.Manager
	n, err := node.Open(ctx, node.Config{
		Name: nodeName, Dir: filepath.Join(j.layout.Server(), "node"),
		Engine: j.engine, Store: j.store, Images: j.images, Log: j.log,
		Guest: func(dial node.Dial) node.GuestControl { return client.New(client.Dial(dial)) },
		Pools: []node.PoolConfig{{Template: "base", Min: cfg.PoolMin, Max: cfg.PoolMax}},
		// Called only while the node runs, which is after manager is set.
		OnEnd: func(ctx context.Context, e sandbox.BootEnd) error { return manager.BootEnded(ctx, e) },
	})
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	placement := scheduler.New(j.store, j.log)
	manager = session.New(j.store, n, placement, j.images, session.Config{
		Network: cfg.Egress, Engine: "gvisor", StopGrace: stopGrace, Log: j.log,
		AccessToken: func(id string) string { return guest.AccessToken(j.seed, id) },
	})
	tokens, err := gateway.NewTokens(j.secret, nil)
	if err != nil {
		return nil, err
	}
	door := gateway.New(gateway.Config{
		Sandboxes: manager, Nodes: n, Tokens: tokens, Dev: cfg.Dev, Log: j.log, Registry: telemetry.NewRegistry(),
		NodeNames: func(context.Context) ([]string, error) { return []string{nodeName}, nil },
		NewGuest: func(id string, dial execution.Dial) execution.Guest {
			return client.New(client.Dial(dial), client.WithToken(guest.AccessToken(j.seed, id)))
		},
		States: states(j.store),
	})
	parts := new(run.Parts)
	parts.Start("scheduler", ended(placement.Run))
	parts.Start("session-manager", ended(manager.Run))
	parts.Start("node", ended(n.Run))
	parts.Start("gateway", ended(func(ctx context.Context) error { return door.Run(ctx, j.listeners...) }))
	return parts, nil
}

// ended makes a part's end on request no error.
func ended(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := f(ctx); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// states counts everybody's Sandboxes, for metrics.
func states(store sandbox.SandboxStore) func(context.Context) (map[sandbox.State]int, error) {
	return func(ctx context.Context) (map[sandbox.State]int, error) {
		all, err := store.SandboxesNotEnded(ctx)
		if err != nil {
			return nil, err
		}
		counts := map[sandbox.State]int{}
		for _, s := range all {
			counts[s.State]++
		}
		return counts, nil
	}
}

// giveUpRights makes sure that the server cannot gain any, and lets it hold a
// descriptor for each link.
func giveUpRights() error {
	if os.Geteuid() == 0 {
		return errors.New("the server runs as root, which it must not: start it with `cloud-sandbox serve`")
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up rights: %w", err)
	}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err == nil {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
	}
	return nil
}

// guestSeed is what guests' access tokens are derived from. It is made once and
// kept, apart from what signs users' tokens: changing that one must not lock
// anybody out of running Sandboxes.
func guestSeed(dir string) ([]byte, error) {
	c := config.Config{Data: filepath.Join(dir, "guest-seed")}
	if err := c.KeepSecret(); err != nil {
		return nil, err
	}
	return c.Secret, nil
}
