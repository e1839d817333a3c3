// Package server is the sentry host: it starts, limits, watches and ends
// sentries, and starts link shards. It is the only package that links runsc,
// and the process it runs in the only one with rights.
//
// Sentries and shards are detached: they live on when the sentry host ends, and
// a new sentry host takes them up again from the records under its folder.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/version"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cgroup"
	"github.com/cloud-sandbox/cloud-sandbox/internal/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

// Config says where the sentry host finds and keeps things. All paths are
// absolute and on the local disk.
type Config struct {
	Dir        string // its own records: a folder for each Boot
	Images     string // folder of Template images, named DIGEST.erofs
	UpperDir   string // where upper layers are made; they have no name while in use
	GuestImage string // EROFS image of the Guest
	SidecarDir string // holds gvisor_sentry, this very binary under the name runsc looks for
	LinkBinary string
	Build      string // names the sentry build
	ServerUID  int    // who may connect beside root
	LinkUID    int    // whom link shards run as
	Parent     string // name of the parent cgroup
}

// Host is a sentry host.
type Host struct {
	cfg    Config
	conf   *config.Config
	groups *cgroup.Hierarchy
	log    *slog.Logger
	quit   context.CancelFunc
	wg     sync.WaitGroup // watchers of Boots and shards

	mu       sync.Mutex
	boots    map[string]*boot
	shards   map[int]*shard
	watchers map[*fdrpc.Peer]struct{}
}

// New prepares a sentry host and takes up what an earlier one left running.
func New(cfg Config, log *slog.Logger) (*Host, error) {
	for _, dir := range []string{cfg.Dir, filepath.Join(cfg.Dir, "boots"), filepath.Join(cfg.Dir, "sentries"), filepath.Join(cfg.Dir, "shards"), filepath.Join(cfg.Dir, "empty"), cfg.UpperDir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("make the sentry host's folder: %w", err)
		}
	}
	groups, err := cgroup.Detect(cfg.Parent)
	if err != nil {
		return nil, err
	}
	conf, err := sentryConfig(cfg)
	if err != nil {
		return nil, err
	}
	h := &Host{
		cfg: cfg, conf: conf, groups: groups, log: log,
		boots: map[string]*boot{}, shards: map[int]*shard{}, watchers: map[*fdrpc.Peer]struct{}{},
	}
	raiseFileLimit()
	h.adopt()
	return h, nil
}

// raiseFileLimit lets the process hold a copy of every link.
func raiseFileLimit() {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
	}
}

// Serve answers calls on l until ctx ends or a client calls down. Boots and
// shards live on, except after down.
func (h *Host) Serve(ctx context.Context, l *net.UnixListener) error {
	ctx, h.quit = context.WithCancel(ctx)
	defer h.quit()
	s := &fdrpc.Server{
		Handle: h.handle,
		Allow:  func(uid uint32) bool { return int(uid) == h.cfg.ServerUID },
		Log:    h.log,
	}
	err := s.Serve(ctx, l)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (h *Host) handle(ctx context.Context, r *fdrpc.Request) (any, []*os.File, error) {
	switch r.Method {
	case sentryhost.MethodHello:
		return h.hello(r)
	case sentryhost.MethodStart:
		var body sentryhost.StartRequest
		if err := r.Decode(&body); err != nil {
			return nil, nil, err
		}
		return nil, nil, h.start(ctx, body, r)
	case sentryhost.MethodList:
		return h.list(), nil, nil
	case sentryhost.MethodShard:
		var body sentryhost.ShardRequest
		if err := r.Decode(&body); err != nil {
			return nil, nil, err
		}
		reply, err := h.shard(body.Number)
		return reply, nil, err
	case sentryhost.MethodShards:
		return h.listShards(), nil, nil
	case sentryhost.MethodWatch:
		h.watch(r.Peer)
		return nil, nil, nil
	case sentryhost.MethodDown:
		r.After(h.quit)
		return nil, nil, h.down(ctx)
	case sentryhost.MethodLimit:
		var body sentryhost.LimitRequest
		if err := r.Decode(&body); err != nil {
			return nil, nil, err
		}
		return nil, nil, h.limit(body)
	}
	var body sentryhost.BootRequest
	if err := r.Decode(&body); err != nil {
		return nil, nil, err
	}
	switch r.Method {
	case sentryhost.MethodStop:
		return nil, nil, h.stop(ctx, body.ID)
	case sentryhost.MethodKeep:
		return nil, nil, h.keep(body.ID, r)
	case sentryhost.MethodUsage:
		u, err := h.usage(body.ID)
		return u, nil, err
	case sentryhost.MethodLink:
		f, err := h.linkOf(body.ID)
		if err != nil {
			return nil, nil, err
		}
		return nil, []*os.File{f}, nil
	}
	return nil, nil, sandbox.Errorf(sandbox.Unsupported, "this sentry host has no method %q", r.Method)
}

func (h *Host) hello(r *fdrpc.Request) (any, []*os.File, error) {
	var hello sentryhost.Hello
	if err := r.Decode(&hello); err != nil {
		return nil, nil, err
	}
	if hello.Version != sentryhost.Version {
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "this sentry host speaks version %d, not %d", sentryhost.Version, hello.Version)
	}
	kind := "v1"
	if h.groups.V2() {
		kind = "v2"
	}
	return sentryhost.HelloReply{Version: sentryhost.Version, Engine: version.Version(), Build: h.cfg.Build, Cgroup: kind, Pid: os.Getpid()}, nil, nil
}

func (h *Host) list() []sentryhost.Boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	boots := make([]sentryhost.Boot, 0, len(h.boots))
	for _, b := range h.boots {
		if b.running {
			boots = append(boots, b.record.Boot)
		}
	}
	return boots
}

func (h *Host) find(id string) (*boot, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boots[id]
	if b == nil || !b.running {
		return nil, sandbox.Errorf(sandbox.NotFound, "no boot %s runs here", id)
	}
	return b, nil
}

func (h *Host) usage(id string) (sandbox.Usage, error) {
	b, err := h.find(id)
	if err != nil {
		return sandbox.Usage{}, err
	}
	u, err := b.group.Usage()
	if err != nil {
		return sandbox.Usage{}, sandbox.Errorf(sandbox.Unavailable, "the usage of %s cannot be read", id).WithCause(err)
	}
	out := sandbox.Usage{MemoryBytes: u.MemoryBytes, CPU: u.CPU, Pids: u.Pids}
	out.DiskBytes = b.diskBytes()
	return out, nil
}

func (h *Host) limit(r sentryhost.LimitRequest) error {
	b, err := h.find(r.ID)
	if err != nil {
		return err
	}
	s := b.record.Shape
	s.CPUs = r.CPUs
	if err := s.Check(); err != nil {
		return err
	}
	return b.group.SetLimits(cgroup.Limits{CPUs: r.CPUs})
}

func (h *Host) linkOf(id string) (*os.File, error) {
	b, err := h.find(id)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.link == nil {
		return nil, sandbox.Errorf(sandbox.NotFound, "no copy of the link of %s is here: an earlier sentry host held it", id)
	}
	return duplicate(b.link)
}

// keep takes a copy of a link that an earlier sentry host held.
func (h *Host) keep(id string, r *fdrpc.Request) error {
	b, err := h.find(id)
	if err != nil {
		return err
	}
	f, err := r.TakeFile(0)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.link != nil || !b.running {
		return f.Close()
	}
	b.link = f
	return nil
}

// duplicate copies a descriptor. The copy is close-on-exec.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	if err := raw.Control(func(n uintptr) {
		fd, dupErr = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("dup", dupErr)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (h *Host) watch(p *fdrpc.Peer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers[p] = struct{}{}
	context.AfterFunc(peerContext{p}, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, p)
	})
}

// peerContext lets context.AfterFunc wait for a Peer's end.
type peerContext struct{ *fdrpc.Peer }

func (peerContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (peerContext) Value(any) any               { return nil }
func (p peerContext) Err() error {
	select {
	case <-p.Done():
		return context.Canceled
	default:
		return nil
	}
}

// tell sends an event to everybody who watches.
func (h *Host) tell(method string, body any) {
	h.mu.Lock()
	peers := make([]*fdrpc.Peer, 0, len(h.watchers))
	for p := range h.watchers {
		peers = append(peers, p)
	}
	h.mu.Unlock()
	for _, p := range peers {
		if err := p.Event(method, body); err != nil {
			h.log.Warn("could not send an event", "event", method, "error", err)
		}
	}
}

// down ends everything, the sentry host last.
func (h *Host) down(ctx context.Context) error {
	h.log.Info("ending every boot and link shard")
	var errs []error
	var wg sync.WaitGroup
	var mu sync.Mutex
	gate := make(chan struct{}, 8)
	for _, b := range h.list() {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			if err := h.stop(ctx, b.ID); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	h.endShards()
	errs = append(errs, h.groups.Remove())
	return errors.Join(errs...)
}
