// Package server is the sentry host: it starts, limits, watches and ends sentries, and
// starts link shards. It is the only package that links runsc, and its process is the
// only privileged one.
//
// Sentries and shards are detached: they live on when the sentry host ends, and a new
// sentry host adopts them from the records under its folder.
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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/version"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/cgroup"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost/server/latefile"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Config holds the paths and users of a sentry host. All paths are absolute and on the
// local disk.
type Config struct {
	Dir        string // its own records: a folder for each Boot
	Images     string // folder of Template images, named DIGEST.erofs
	UpperDir   string // where upper layers are made; they have no name while in use
	Saved      string // saved states, a folder each; of all builds
	GuestImage string // EROFS image of the Guest
	SidecarDir string // holds gvisor_sentry, this binary under the name that runsc looks for
	LinkBinary string
	Build      string // names the sentry build
	ServerUID  int    // the user that may connect, beside root
	LinkUID    int    // the user that link shards run as
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
	strays sync.WaitGroup // removals of groups without an owner
	saving chan struct{}  // holds one for each Boot that is being saved
	keys   *installation.Keys
	cpu    sandbox.CPUFeatures
	// hideable are the features of cpu and others that sentries can hide; empty: none.
	hideable sandbox.CPUFeatures
	raised   atomic.Int64 // bytes that hard limits of Boots out of memory are raised by, beyond ownRaise of each

	memoryTotal int64        // of the host, in bytes
	memoryFree  func() int64 // available to processes without swapping, in bytes

	lookLimit, recoverLimit time.Duration // the constants of these names, unless a test changes them

	packSoon chan struct{} // holds one when saved states are to be inspected

	mu       sync.Mutex
	naming   map[string]chan struct{} // locked names of saved states; closed when unlocked
	boots    map[string]*boot
	untold   map[string]*boot // that ended by themselves, until their event was sent
	shards   map[int]*shard
	arrivals map[string]*arrival // states that arrive, by name
	watchers map[*fdrpc.Peer]struct{}
	cache    *sentryhost.CacheRequest    // nil: not set yet
	opened   map[string]int              // starts in progress from a saved state, by its name
	proofs   map[string]*proof           // of saved states, by their names
	dirty    bool                        // chunks of saved states may exist that no state lists
	spares   []*boot                     // sentries that wait for a Boot
	wanted   []kind                      // the kinds of the last starts, to make spares for
	starting int                         // starts in progress
	ending   bool                        // no spare may wait any more
	trusted  map[string]installation.Key // the key with which other builds were verified, by their names
	borrowed int64                       // bytes of the host's memory that saves and loads in progress may allocate

	noArrivals error         // why states cannot arrive on this host; nil: they can
	refillSoon chan struct{} // holds one when spares are to be inspected
	sparing    sync.Mutex    // held during the inspection; taken before mu
}

// New prepares a sentry host and adopts the Boots and shards of an earlier one.
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
		cfg: cfg, conf: conf, groups: groups, log: log, cpu: hostCPU(), hideable: hideableCPU(),
		boots: map[string]*boot{}, untold: map[string]*boot{}, arrivals: map[string]*arrival{}, shards: map[int]*shard{}, watchers: map[*fdrpc.Peer]struct{}{},
		naming: map[string]chan struct{}{}, saving: make(chan struct{}, saveSlots()), keys: installation.Open(cfg.Saved),
		packSoon: make(chan struct{}, 1), refillSoon: make(chan struct{}, 1), opened: map[string]int{}, proofs: map[string]*proof{}, dirty: true, trusted: map[string]installation.Key{},
		memoryTotal: meminfo("MemTotal:"), memoryFree: func() int64 { return meminfo("MemAvailable:") },
		lookLimit: lookLimit, recoverLimit: recoverLimit,
	}
	if err := os.MkdirAll(cfg.Saved, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of saved states: %w", err)
	}
	raiseFileLimit()
	if err := reserveDescriptors(); err != nil {
		return nil, err
	}
	if h.noArrivals = latefile.Supported(); h.noArrivals != nil {
		log.Info("sandboxes start only from saved states that are whole", telemetry.KeyError, h.noArrivals)
	}
	h.removeDrafts()
	h.removeIncoming()
	h.removeUnfinishedBuilds()
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

// The descriptors that a sentry moves its standard streams to, and one above.
const firstOfSentry, aboveSentry = 253, 256

// reserveDescriptors holds, for good, the numbers that a sentry wants for itself: a
// descriptor that is inherited by a child keeps its number there, and must not collide.
// It also makes a child's table of descriptors as wide as it will need: the kernel widens
// the table of a process with threads only after all processors have passed a quiet
// state, which costs every start milliseconds.
func reserveDescriptors() error {
	f, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer f.Close()
	for fd := firstOfSentry; fd <= aboveSentry; fd++ {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, fd); err != nil {
			return fmt.Errorf("reserve descriptors: %w", err)
		}
	}
	return nil
}

// Serve answers calls on l until ctx ends or a client calls down. Boots and shards live
// on, except after down.
func (h *Host) Serve(ctx context.Context, l *net.UnixListener) error {
	ctx, h.quit = context.WithCancel(ctx)
	defer h.quit()
	s := &fdrpc.Server{
		Handle: h.handle,
		Hello:  sentryhost.MethodHello,
		Allow:  func(uid uint32) bool { return int(uid) == h.cfg.ServerUID },
		Turn:   turn,
		Log:    h.log,
	}
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer h.quit() // before the wait
	keeping.Go(func() { h.runPacking(ctx) })
	keeping.Go(func() { h.maintainSpares(ctx) })
	err := s.Serve(ctx, l)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// turn returns the serialization key of a call, so that a call waits for the call that it
// undoes: stop for start, thaw for freeze, delete for save, revoke for share.
func turn(r *fdrpc.Request) string {
	what := ""
	switch r.Method {
	case sentryhost.MethodStart, sentryhost.MethodStop:
		what = "run"
	case sentryhost.MethodFreeze, sentryhost.MethodThaw:
		what = "stand" // a save may delay these, but no stop
	case sentryhost.MethodLimit:
		what = "limits"
	case sentryhost.MethodSave, sentryhost.MethodImport, sentryhost.MethodArrive, sentryhost.MethodImportFromEarlier, sentryhost.MethodDelete:
		what = "saved"
	case sentryhost.MethodShareWithEarlier, sentryhost.MethodRevokeFromEarlier:
		what = "earlier" // for every build
	default:
		return ""
	}
	var names struct{ ID, Name string }
	_ = r.Decode(&names) // if it cannot be read, the method says so
	if what == "saved" || what == "earlier" {
		return what + names.Name
	}
	return what + names.ID
}

// call is a call of a method in progress.
type call struct {
	ctx  context.Context
	host *Host
	r    *fdrpc.Request
}

// reply is a method's answer: a value, descriptors, or an error.
type reply struct {
	value any
	files []*os.File
	err   error
}

func done(err error) reply                { return reply{err: err} }
func answers[T any](v T, err error) reply { return reply{value: v, err: err} }

// method implements a method of the protocol.
type method func(call) reply

// withBody makes a method whose request body is a T.
func withBody[T any](do func(call, T) reply) method {
	return func(c call) reply {
		var body T
		if err := c.r.Decode(&body); err != nil {
			return done(err)
		}
		return do(c, body)
	}
}

// withBoot makes a method whose request body is the ID of a Boot.
func withBoot(do func(call, string) reply) method {
	return withBody(func(c call, b sentryhost.BootRequest) reply { return do(c, b.ID) })
}

// methods are all methods of the protocol.
var methods = map[string]method{
	sentryhost.MethodHello:  withBody(func(c call, b sentryhost.Hello) reply { return answers(c.host.hello(b)) }),
	sentryhost.MethodWatch:  func(c call) reply { c.host.watch(c.r.Peer); return done(nil) },
	sentryhost.MethodDown:   func(c call) reply { c.r.After(c.host.quit); return done(c.host.down(c.ctx)) },
	sentryhost.MethodShard:  withBody(func(c call, b sentryhost.ShardRequest) reply { return answers(c.host.shard(b.Number)) }),
	sentryhost.MethodShards: func(c call) reply { return answers(c.host.listShards(), nil) },

	sentryhost.MethodStart:      withBody(func(c call, b sentryhost.StartRequest) reply { return answers(c.host.start(c.ctx, b, c.r)) }),
	sentryhost.MethodList:       func(c call) reply { return answers(c.host.list(), nil) },
	sentryhost.MethodLimit:      withBody(func(c call, b sentryhost.LimitRequest) reply { return done(c.host.limit(b)) }),
	sentryhost.MethodStop:       withBoot(func(c call, id string) reply { return done(c.host.stop(c.ctx, id)) }),
	sentryhost.MethodFreeze:     withBoot(func(c call, id string) reply { return done(c.host.freeze(id)) }),
	sentryhost.MethodThaw:       withBoot(func(c call, id string) reply { return done(c.host.thaw(id)) }),
	sentryhost.MethodReturnLink: withBoot(func(c call, id string) reply { return done(c.host.returnLink(id, c.r)) }),
	sentryhost.MethodUsage:      withBoot(func(c call, id string) reply { return answers(c.host.usage(id)) }),
	sentryhost.MethodLink: withBoot(func(c call, id string) reply {
		f, err := c.host.linkOf(id)
		if err != nil {
			return done(err)
		}
		return reply{files: []*os.File{f}}
	}),

	sentryhost.MethodSave:              withBody(func(c call, b sentryhost.SaveRequest) reply { return answers(c.host.save(b)) }),
	sentryhost.MethodSaved:             func(c call) reply { return answers(c.host.listSaved()) },
	sentryhost.MethodDelete:            withBody(func(c call, b sentryhost.SavedRequest) reply { return done(c.host.deleteSaved(b.Name)) }),
	sentryhost.MethodShare:             withBody(func(c call, b sentryhost.ShareRequest) reply { return done(c.host.share(b)) }),
	sentryhost.MethodCache:             withBody(func(c call, b sentryhost.CacheRequest) reply { return done(c.host.setCache(b)) }),
	sentryhost.MethodHome:              withBody(func(c call, b sentryhost.SavedRequest) reply { return answers(c.host.home(b.Name)) }),
	sentryhost.MethodShareWithEarlier:  withBody(func(c call, b sentryhost.EarlierRequest) reply { return done(c.host.shareWithEarlier(b)) }),
	sentryhost.MethodRevokeFromEarlier: withBody(func(c call, b sentryhost.EarlierRequest) reply { return done(c.host.revokeFromEarlier(b)) }),
	sentryhost.MethodImportFromEarlier: withBody(func(c call, b sentryhost.EarlierRequest) reply { return answers(c.host.importFromEarlier(b)) }),
	sentryhost.MethodImport:            withBody(func(c call, b sentryhost.ImportRequest) reply { return answers(c.host.take(c.ctx, b, c.r)) }),
	sentryhost.MethodArrive:            withBody(func(c call, b sentryhost.ImportRequest) reply { return answers(c.host.arrive(c.ctx, b, c.r)) }),
	sentryhost.MethodArrived:           withBoot(func(c call, id string) reply { return done(c.host.arrived(c.ctx, id)) }),
	sentryhost.MethodAdmit:             withBody(func(c call, b sentryhost.ImportRequest) reply { return answers(c.host.admit(b)) }),
	sentryhost.MethodBuild:             withBody(func(c call, b sentryhost.BuildRequest) reply { return done(c.host.takeBuild(c.ctx, b, c.r)) }),
	sentryhost.MethodBuildKey:          withBody(func(c call, b installation.BuildKey) reply { return done(c.host.setBuildKey(b)) }),
	sentryhost.MethodExport: withBody(func(c call, b sentryhost.ExportRequest) reply {
		value, files, err := c.host.export(c.ctx, b)
		return reply{value, files, err}
	}),
}

func (h *Host) handle(ctx context.Context, r *fdrpc.Request) (any, []*os.File, error) {
	do, ok := methods[r.Method]
	if !ok {
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "this sentry host has no method %q", r.Method)
	}
	answer := do(call{ctx, h, r})
	return answer.value, answer.files, answer.err
}

func (h *Host) hello(hello sentryhost.Hello) (sentryhost.HelloReply, error) {
	if hello.Version != sentryhost.Version && hello.Version != sentryhost.Version-1 {
		return sentryhost.HelloReply{}, sandbox.Errorf(sandbox.Unsupported, "this sentry host speaks versions %d and %d, not %d", sentryhost.Version-1, sentryhost.Version, hello.Version)
	}
	kind := "v1"
	if h.groups.V2() {
		kind = "v2"
	}
	return sentryhost.HelloReply{Version: hello.Version, Engine: h.engineVersion(), Build: h.cfg.Build, Cgroup: kind, Pid: os.Getpid(), CPU: h.cpu, HideableCPU: h.hideable}, nil
}

func (*Host) engineVersion() string { return version.Version() }

// list returns the running Boots. A Boot that ended by itself stays listed until its
// event was sent: a server that finds it missing has received that event.
func (h *Host) list() []sentryhost.Boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	boots := make([]sentryhost.Boot, 0, len(h.boots))
	for _, b := range h.boots {
		if b.running {
			boots = append(boots, b.record.Boot)
		}
	}
	for _, b := range h.untold {
		boots = append(boots, b.record.Boot)
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

// returnLink stores a copy of a link that an earlier sentry host held.
func (h *Host) returnLink(id string, r *fdrpc.Request) error {
	b, err := h.find(id)
	if err != nil {
		return err
	}
	f, err := r.TakeFile(0)
	if err != nil {
		return err
	}
	if f, err = link.Kept(f); err != nil {
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

// tell sends an event to all watchers.
func (h *Host) tell(method string, body any) {
	h.mu.Lock()
	peers := make([]*fdrpc.Peer, 0, len(h.watchers))
	for p := range h.watchers {
		peers = append(peers, p)
	}
	h.mu.Unlock()
	for _, p := range peers {
		if err := p.Event(method, body); err != nil {
			h.log.Warn("sending an event to the server failed", "event", method, telemetry.KeyError, err)
		}
	}
}

// down ends every Boot and shard, the sentry host last.
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
	h.dropSpares()
	h.endShards()
	h.strays.Wait()
	errs = append(errs, h.groups.Remove())
	return errors.Join(errs...)
}
