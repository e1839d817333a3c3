// Package shard is a link shard: the server that holds the host's ends of up to
// link.MaxLinks links, each with its own network stack (netstack).
package shard

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/netstack"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// Config of a Shard. The zero value is for production.
type Config struct {
	// Refuse reports addresses that are never reached; nil: all non-public ones, and the
	// host's own.
	Refuse func(netip.Addr) bool
	// ResolvConf is the file with the host's name servers; empty: /etc/resolv.conf.
	ResolvConf string
	// Allow reports users that may connect beside root and our own; nil: none.
	Allow func(uid uint32) bool
	Log   *slog.Logger // nil: none
}

// Shard holds links. Use New.
type Shard struct {
	links netstack.Config
	allow func(uid uint32) bool
	log   *slog.Logger

	mu      sync.Mutex
	plugged map[string]*plug
}

// plug is one link. ready is closed once link is set or known to be nil.
type plug struct {
	file  *os.File // our copy of the host's end, for fetch
	ready chan struct{}
	link  *netstack.Link // nil when it could not be opened
}

// New returns a shard without links.
func New(cfg Config) *Shard {
	if cfg.Refuse == nil {
		cfg.Refuse = new(policy.HostAddresses).Refuse
	}
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = "/etc/resolv.conf"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Shard{
		links:   netstack.Config{Refuse: cfg.Refuse, Resolver: netstack.NewResolver(cfg.ResolvConf), Shared: new(netstack.Shared)},
		allow:   cfg.Allow,
		log:     cfg.Log,
		plugged: map[string]*plug{},
	}
}

// Serve answers calls on l until ctx ends, then unplugs every link.
func (s *Shard) Serve(ctx context.Context, l *net.UnixListener) error {
	server := &fdrpc.Server{Handle: s.handle, Hello: link.MethodHello, Allow: s.allow, Turn: turn, Log: s.log}
	err := server.Serve(ctx, l)
	for _, id := range s.ids() {
		s.remove(id)
	}
	return err
}

// turn serializes the changes of one link, in the order of the calls.
func turn(r *fdrpc.Request) string {
	switch r.Method {
	case link.MethodAdd, link.MethodRemove, link.MethodSetPolicy, link.MethodSetSecrets, link.MethodBandwidth:
		var ref link.Ref
		_ = r.Decode(&ref) // if it cannot be read, the method says so
		return ref.BootID
	}
	return ""
}

func (s *Shard) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.plugged))
	for id := range s.plugged {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// method implements a method of the protocol.
type method func(s *Shard, ctx context.Context, r *fdrpc.Request) (any, *os.File, error)

var methods = map[string]method{
	link.MethodHello:      (*Shard).hello,
	link.MethodAdd:        (*Shard).add,
	link.MethodRemove:     (*Shard).unplug,
	link.MethodList:       (*Shard).list,
	link.MethodFetch:      (*Shard).fetch,
	link.MethodSetPolicy:  (*Shard).setPolicy,
	link.MethodSetSecrets: (*Shard).setSecrets,
	link.MethodDial:       (*Shard).dial,
	link.MethodStats:      (*Shard).stats,
	link.MethodLog:        (*Shard).networkLog,
	link.MethodBandwidth:  (*Shard).setBandwidth,
	link.MethodTraffic:    (*Shard).traffic,
	link.MethodCloseAt:    (*Shard).closeAt,
}

func (s *Shard) handle(ctx context.Context, r *fdrpc.Request) (any, []*os.File, error) {
	answer := methods[r.Method]
	if answer == nil {
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "a link shard has no method %q", r.Method)
	}
	reply, file, err := answer(s, ctx, r)
	if err != nil || file == nil {
		return reply, nil, err
	}
	return reply, []*os.File{file}, nil
}

func (s *Shard) hello(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.Hello
	if err := r.Decode(&body); err != nil {
		return nil, nil, err
	}
	if body.Version != link.Version {
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "this link shard speaks version %d, not %d", link.Version, body.Version)
	}
	if err := s.set(body.Settings); err != nil {
		return nil, nil, err
	}
	return link.Hello{Version: link.Version}, nil, nil
}

// set applies the operator's settings.
func (s *Shard) set(settings link.Settings) error {
	var opened []sandbox.NetworkRule
	for _, text := range settings.Open {
		rule, err := sandbox.ParseNetworkRule(text)
		if err != nil {
			return err
		}
		opened = append(opened, rule)
	}
	var proxy *upstream.Proxy
	if settings.Proxy != "" {
		var err error
		if proxy, err = upstream.Parse(settings.Proxy); err != nil {
			return sandbox.Errorf(sandbox.Invalid, "the upstream proxy: %v", err)
		}
	}
	if err := s.links.Resolver.Use(settings.NameServers); err != nil {
		return err
	}
	if !settings.Fenced {
		s.links.Shared.CloseAt(0, false)
	}
	s.links.Shared.Open(opened)
	s.links.Shared.Through(proxy)
	s.links.Shared.Trust(settings.Roots)
	return nil
}

func (s *Shard) add(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.AddRequest
	if err := r.Decode(&body); err != nil {
		return nil, nil, err
	}
	if !sandbox.ValidBootID(body.BootID) || !body.Policy.Valid() {
		return nil, nil, sandbox.Errorf(sandbox.Invalid, "a link needs a boot ID and a policy")
	}
	file, err := r.TakeFile(0)
	if err != nil {
		return nil, nil, err
	}
	p := &plug{file: file, ready: make(chan struct{})}
	if err := s.reserve(body.BootID, p); err != nil {
		file.Close()
		return nil, nil, err
	}
	p.link, err = open(file, body.Policy, s.links)
	close(p.ready)
	if err != nil {
		s.remove(body.BootID)
		return nil, nil, err
	}
	return nil, nil, nil
}

// reserve reserves a link's place, so that a second add is a Conflict.
func (s *Shard) reserve(id string, p *plug) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plugged[id] != nil {
		return sandbox.Errorf(sandbox.Conflict, "the boot %s has its link here already", id)
	}
	if len(s.plugged) >= link.MaxLinks {
		return sandbox.Errorf(sandbox.Exhausted, "a link shard carries %d links", link.MaxLinks)
	}
	s.plugged[id] = p
	return nil
}

// open makes a Link from a copy of file.
func open(file *os.File, policy sandbox.NetworkPolicy, cfg netstack.Config) (*netstack.Link, error) {
	if err := checkEnd(file); err != nil {
		return nil, err
	}
	own, err := duplicate(file)
	if err != nil {
		return nil, err
	}
	return netstack.Open(own, policy, cfg)
}

// checkEnd checks that f is the end of a link, and makes it non-blocking.
func checkEnd(f *os.File) error {
	var domain, kind int
	err := control(f, func(fd int) (err error) {
		if domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
			return err
		}
		if kind, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
			return err
		}
		return unix.SetNonblock(fd, true)
	})
	if err != nil || domain != unix.AF_UNIX || kind != unix.SOCK_SEQPACKET {
		return sandbox.Errorf(sandbox.Invalid, "the file is not the end of a link")
	}
	return nil
}

// duplicate copies a descriptor.
func duplicate(f *os.File) (*os.File, error) {
	var fd int
	err := control(f, func(n int) (err error) {
		fd, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("copy a descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// control calls do with f's number and leaves f's mode alone, unlike f.Fd.
func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	if err := raw.Control(func(fd uintptr) { doErr = do(int(fd)) }); err != nil {
		return err
	}
	return doErr
}

// find returns a link, and waits while it is being plugged in.
func (s *Shard) find(id string) (*plug, error) {
	s.mu.Lock()
	p := s.plugged[id]
	s.mu.Unlock()
	if p != nil {
		<-p.ready
		if p.link != nil {
			return p, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.NotFound, "the boot has no link here")
}

func (s *Shard) unplug(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.Ref
	if err := r.Decode(&body); err != nil {
		return nil, nil, err
	}
	return s.remove(body.BootID), nil, nil
}

// remove unplugs a link, if it exists, and returns its total traffic when it is gone. Its
// place is free only then.
func (s *Shard) remove(id string) (last link.Traffic) {
	s.mu.Lock()
	p := s.plugged[id]
	s.mu.Unlock()
	if p == nil {
		return last
	}
	<-p.ready
	if p.link != nil {
		p.link.Close()
		last = trafficOf(id, p.link)
	}
	p.file.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plugged[id] == p {
		delete(s.plugged, id)
	}
	return last
}

func trafficOf(id string, l *netstack.Link) link.Traffic {
	u := l.Usage()
	return link.Traffic{BootID: id, Sent: u.Sent, Received: u.Received, Refused: u.Refused}
}

func (s *Shard) traffic(context.Context, *fdrpc.Request) (any, *os.File, error) {
	out := []link.Traffic{}
	for _, id := range s.ids() {
		if p, err := s.find(id); err == nil {
			out = append(out, trafficOf(id, p.link))
		}
	}
	return out, nil, nil
}

func (s *Shard) list(context.Context, *fdrpc.Request) (any, *os.File, error) {
	return s.statuses(), nil, nil
}

// statuses are sorted by Boot ID.
func (s *Shard) statuses() []link.Status {
	out := []link.Status{}
	for _, id := range s.ids() {
		p, err := s.find(id)
		if err != nil {
			continue
		}
		u := p.link.Usage()
		status := link.Status{BootID: id, Policy: p.link.Policy(), Connections: u.Connections, BytesIn: u.BytesIn, BytesOut: u.BytesOut}
		select {
		case <-p.link.Lost():
			status.Lost = true
		default:
		}
		out = append(out, status)
	}
	return out
}

func (s *Shard) stats(context.Context, *fdrpc.Request) (any, *os.File, error) {
	var out link.Stats
	for _, l := range s.statuses() {
		out.Links++
		out.Connections += l.Connections
		out.BytesIn += l.BytesIn
		out.BytesOut += l.BytesOut
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	out.HeapBytes = int64(m.HeapAlloc)
	out.Allowed, out.Refused = s.links.Shared.Decisions()
	out.Limited = s.links.Shared.Limited()
	out.Goroutines = runtime.NumGoroutine()
	out.Threads = threads()
	return out, nil, nil
}

// threads counts this process's threads.
func threads() int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	n := 0
	_, rest, _ := strings.Cut(string(status), "\nThreads:")
	_, _ = fmt.Sscan(rest, &n)
	return n
}

// plugOf decodes a call about one link into body, which sets id to its Boot, and finds it.
func (s *Shard) plugOf(r *fdrpc.Request, body any, id *string) (*plug, error) {
	if err := r.Decode(body); err != nil {
		return nil, err
	}
	return s.find(*id)
}

func (s *Shard) fetch(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.Ref
	p, err := s.plugOf(r, &body, &body.BootID)
	if err != nil {
		return nil, nil, err
	}
	f, err := duplicate(p.file)
	return nil, f, err
}

func (s *Shard) setPolicy(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.PolicyRequest
	p, err := s.plugOf(r, &body, &body.BootID)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, p.link.SetPolicy(body.Policy)
}

func (s *Shard) setSecrets(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.SecretsRequest
	p, err := s.plugOf(r, &body, &body.BootID)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, p.link.SetSecrets(body.Secrets)
}

func (s *Shard) setBandwidth(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.BandwidthRequest
	p, err := s.plugOf(r, &body, &body.BootID)
	if err != nil {
		return nil, nil, err
	}
	if body.BytesPerSecond < 0 {
		return nil, nil, sandbox.Errorf(sandbox.Invalid, "a bandwidth is not negative")
	}
	p.link.SetBandwidth(body.BytesPerSecond)
	return nil, nil, nil
}

func (s *Shard) closeAt(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.CloseAtRequest
	if err := r.Decode(&body); err != nil {
		return nil, nil, err
	}
	if body.At < 0 {
		return nil, nil, sandbox.Errorf(sandbox.Invalid, "the time at which links close is not negative")
	}
	s.links.Shared.CloseAt(body.At, body.Keep)
	return nil, nil, nil
}

func (s *Shard) networkLog(_ context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.Ref
	p, err := s.plugOf(r, &body, &body.BootID)
	if err != nil {
		return nil, nil, err
	}
	return p.link.Log(), nil, nil
}

func (s *Shard) dial(ctx context.Context, r *fdrpc.Request) (any, *os.File, error) {
	var body link.DialRequest
	p, err := s.plugOf(r, &body, &body.BootID)
	if err != nil {
		return nil, nil, err
	}
	timeout := link.DialTimeout
	if body.Timeout > 0 {
		timeout = min(timeout, body.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ours, theirs, err := link.Stream()
	if err != nil {
		return nil, nil, err
	}
	if err := p.link.Dial(ctx, body.Port, ours); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return nil, theirs, nil
}
