package bridge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// checkEvery is the interval of looking for Boots without a connection, which may have
	// ended, and checkConnected the interval of checking the others. Both are in addition to the
	// check when a Boot connects.
	checkEvery     = 5 * time.Second
	checkConnected = 30 * time.Second
	// checkTime bounds one check.
	checkTime = 10 * time.Second
)

// Config of Homes. All fields are required.
type Config struct {
	Node string // the name of this one
	// ForBoot makes a server of Volumes of this host.
	ForBoot func(tenant sandbox.TenantID, volumes []string) volume.Server
	// Records say which Volumes a Boot mounts.
	Records interface {
		VolumeHomes(ctx context.Context, node string, of sandbox.BootPlace) ([]sandbox.VolumeHome, error)
	}
	Log *slog.Logger
}

// Homes serves Volumes of this host to Boots on other Nodes, one Boot of a Sandbox at a
// time. It believes the records alone: the Node that asks says for which Boot, and the
// records say which Volumes that mounts. Its methods are safe for concurrent use. Use
// NewHomes.
type Homes struct {
	cfg Config

	mu    sync.Mutex
	boots map[string]*served // by Sandbox ID
}

// served is a Boot on another Node.
type served struct {
	place  sandbox.BootPlace
	server volume.Server

	// Guarded by Homes.mu.
	checked time.Time
	cut     context.CancelFunc // ends its connection; nil: it has none
	turn    int                // counts its connections
}

// NewHomes returns Homes without Boots.
func NewHomes(cfg Config) *Homes {
	return &Homes{cfg: cfg, boots: map[string]*served{}}
}

// Admit implements sandbox.VolumeHomes for this Node.
func (h *Homes) Admit(ctx context.Context, to sandbox.BootPlace) (serve func(net.Conn), err error) {
	mounts, err := h.cfg.Records.VolumeHomes(ctx, h.cfg.Node, to)
	if err != nil {
		return nil, err
	}
	var here []string
	var tenant sandbox.TenantID
	for _, v := range mounts {
		if v.Node == h.cfg.Node {
			here, tenant = append(here, v.ID), v.Tenant
		}
	}
	if len(here) == 0 {
		return nil, sandbox.Errorf(sandbox.NotFound, "the sandbox mounts no volume of this node")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.boots[to.SandboxID]
	switch {
	case before == nil:
	case before.place == to:
		before.checked = time.Now()
		return func(conn net.Conn) { h.serve(before, conn) }, nil
	case before.place.Number > to.Number:
		return nil, sandbox.Errorf(sandbox.Conflict, "a newer boot of the sandbox has its volumes")
	}
	b := &served{place: to, server: h.cfg.ForBoot(tenant, here), checked: time.Now()}
	h.boots[to.SandboxID] = b
	if before == nil {
		return func(conn net.Conn) { h.serve(b, conn) }, nil
	}
	before.end()
	closed := make(chan struct{})
	go func() {
		before.server.Close()
		close(closed)
	}()
	return func(conn net.Conn) {
		<-closed // no request of the earlier Boot runs once the later one is served
		h.serve(b, conn)
	}, nil
}

// end ends the connection of a Boot. Homes.mu is held.
func (b *served) end() {
	if b.cut != nil {
		b.cut()
	}
}

// serve serves a Boot over a connection, which replaces its earlier one.
func (h *Homes) serve(b *served, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h.mu.Lock()
	if h.boots[b.place.SandboxID] != b {
		h.mu.Unlock()
		return
	}
	b.end()
	b.cut = cancel
	b.turn++
	turn := b.turn
	h.mu.Unlock()
	err := b.server.Serve(ctx, conn)
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.turn == turn {
		b.cut = nil
	}
	h.cfg.Log.Debug("a boot on another node has left its volumes", telemetry.KeySandbox, b.place.SandboxID, telemetry.KeyNode, b.place.Node, telemetry.KeyError, err)
}

// Replace ends the earlier Boots of a Sandbox on other Nodes, before this Node serves a
// Boot of it directly. No request of an earlier one runs once it returns.
func (h *Homes) Replace(by sandbox.BootPlace) {
	h.mu.Lock()
	before := h.boots[by.SandboxID]
	h.mu.Unlock()
	if before != nil && before.place.Number < by.Number {
		h.forget(before)
	}
}

// Cut ends all connections: this Node has lost its Lease.
func (h *Homes) Cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.boots {
		b.end()
	}
}

// Run forgets Boots that the records no longer know, until ctx ends, and then all. It
// returns nil.
func (h *Homes) Run(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			for _, b := range h.due(func(*served) bool { return true }) {
				h.forget(b)
			}
			return nil
		case <-tick.C:
		}
		for _, b := range h.due(func(b *served) bool { return b.cut == nil || time.Since(b.checked) >= checkConnected }) {
			h.check(ctx, b)
		}
	}
}

func (h *Homes) due(is func(*served) bool) (all []*served) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.boots {
		if is(b) {
			all = append(all, b)
		}
	}
	return all
}

// check forgets a Boot that the records no longer know. While they are away, it stays.
func (h *Homes) check(ctx context.Context, b *served) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	_, err := h.cfg.Records.VolumeHomes(ctx, h.cfg.Node, b.place)
	if errors.Is(err, sandbox.NotFound) {
		h.forget(b)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b.checked = time.Now() // also after an error: it is tried again with the next one
}

// forget ends a Boot's connection, and closes its server.
func (h *Homes) forget(b *served) {
	h.mu.Lock()
	if h.boots[b.place.SandboxID] == b {
		delete(h.boots, b.place.SandboxID)
	}
	b.end()
	h.mu.Unlock()
	b.server.Close()
}
