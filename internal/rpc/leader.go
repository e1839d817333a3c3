package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1/sessionv1connect"
)

const (
	// leadWait is how long a call waits for another session manager to lead when the
	// leader has resigned: the next one takes the lead within about a second.
	leadWait = 5 * time.Second
	// leadPause is the shortest interval between two look-ups of the leader.
	leadPause = 100 * time.Millisecond
)

// Sandboxes is the session manager in another process. Use NewSandboxes or NewLeader.
type Sandboxes struct {
	self Self
	find Find

	mu     sync.Mutex
	all    map[string]*managerPeer // by address
	leader *managerPeer            // nil: unknown
	over   bool                    // of leader, at the last look-up
	found  time.Time               // when leader was looked up
}

// Find returns the address of the session manager that leads, or that led last; over
// reports that its term is over.
type Find func(context.Context) (address string, over bool, err error)

// managerPeer is one session manager.
type managerPeer struct {
	*peer
	client sessionv1connect.SessionServiceClient
}

var (
	_ sandbox.Sandboxes = (*Sandboxes)(nil)
	_ sandbox.BootEnds  = (*Sandboxes)(nil)
)

// NewSandboxes returns the session manager at an address. It does not connect
// yet.
func NewSandboxes(address string, self Self) *Sandboxes {
	return NewLeader(func(context.Context) (string, bool, error) { return address, false, nil }, self)
}

// NewLeader returns the session manager that leads, at the address that find returns. It
// is looked up again every few seconds, and when it does not lead any more.
func NewLeader(find Find, self Self) *Sandboxes {
	return &Sandboxes{self: self, find: find, all: map[string]*managerPeer{}}
}

// Close frees idle connections.
func (s *Sandboxes) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.all {
		p.close()
	}
}

// known returns the leader of the last look-up, which was less than age ago.
func (s *Sandboxes) known(age time.Duration) (leader *managerPeer, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader, s.leader != nil && time.Since(s.found) < age
}

// of returns the leader, which was looked up less than age ago.
func (s *Sandboxes) of(ctx context.Context, age time.Duration) (*managerPeer, error) {
	last, fresh := s.known(age)
	if fresh {
		return last, nil
	}
	address, over, err := s.find(ctx)
	if err != nil {
		if last != nil {
			return last, nil // it probably leads still, and says so if not
		}
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.all[address]
	if p == nil {
		p = &managerPeer{peer: newPeer(SessionManager, "", address, s.self)}
		p.client = sessionv1connect.NewSessionServiceClient(p.http, p.base, p.options()...)
		s.all[address] = p
	}
	s.leader, s.over, s.found = p, over, time.Now()
	return p, nil
}

// vacant reports whether the term of the known leader was over at the last look-up.
func (s *Sandboxes) vacant() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// toLeader makes a call to the session manager that leads. A call that has not begun is
// made again at another one, for up to leadWait after the present one has said that it
// does not lead, or could not be reached and its term is over. While that is so, the
// present one is not called again: it may be closing its connections, and a call on one
// that is being closed has perhaps begun.
func (s *Sandboxes) toLeader(ctx context.Context, do func(*managerPeer) error) (err error) {
	age := addressLife
	var last *managerPeer
	for began := time.Now(); ; {
		p, lookErr := s.of(ctx, age)
		if lookErr != nil {
			return sandbox.NotBegun(lookErr) // no leader is known yet
		}
		if p != last || !s.vacant() {
			err = do(p)
		}
		last = p
		standby := errors.Is(err, sandbox.ErrStandby)
		if err == nil || !standby && !unreached(err) || adviceOf(err) == 0 || time.Since(began) >= leadWait {
			return err
		}
		age = leadPause
		if next, lookErr := s.of(ctx, age); !standby && (lookErr != nil || next == p && !s.vacant()) {
			return err // it is away, and no other one leads soon
		} else if next != p {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(leadPause):
		}
	}
}

// unreached reports whether a call failed because no connection could be made.
func unreached(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// adviceOf is the RetryAfter of err; zero: the call may have begun.
func adviceOf(err error) time.Duration {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// lead makes one call to the session manager that leads.
func lead[Req, Res any](
	ctx context.Context, s *Sandboxes, tenant sandbox.TenantID,
	method func(sessionv1connect.SessionServiceClient, context.Context, *connect.Request[Req]) (*connect.Response[Res], error), msg *Req,
) (res *Res, err error) {
	err = s.toLeader(ctx, func(p *managerPeer) error {
		of := func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
			return method(p.client, ctx, r)
		}
		res, err = call(ctx, p.peer, tenant, of, msg)
		return err
	})
	return res, err
}

// Leading returns the session manager of a process while that leads, and a function that
// must be called once its call has ended; nil: it stands by.
type Leading func() (m Manager, leave func())

// errStandby refuses a call to a process that stands by.
func errStandby() error {
	return &sandbox.Error{
		Code: sandbox.Unavailable, Detail: "this session-manager stands by: another one leads, or the database does not answer",
		RetryAfter: awayAdvice, Cause: sandbox.ErrStandby,
	}
}

// LeaderService is SessionService for a process that leads at times.
func LeaderService(leading Leading) Service {
	s := &leaderService{leading: leading}
	carried := map[string]transfer{}
	for pattern := range (sessionServer{}).transfers() {
		carried[pattern] = s.transfer(pattern)
	}
	return Service{Name: sessionv1connect.SessionServiceName, handler: s.handler, carried: carried}
}

type leaderService struct {
	leading Leading

	mu      sync.Mutex
	current Manager
	serves  http.Handler // current
}

func (s *leaderService) handler(o ...connect.HandlerOption) (string, http.Handler) {
	path, _ := sessionv1connect.NewSessionServiceHandler(sessionServer{}, o...)
	refusals := connect.NewErrorWriter(o...)
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, leave := s.leading()
		if m == nil {
			_ = refusals.Write(w, r, internal(errStandby())) // the client may be gone
			return
		}
		defer leave()
		s.of(m, o).ServeHTTP(w, r)
	})
}

// of is the handler of m.
func (s *leaderService) of(m Manager, o []connect.HandlerOption) http.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != m {
		s.current = m
		_, s.serves = sessionv1connect.NewSessionServiceHandler(sessionServer{m}, o...)
	}
	return s.serves
}

func (s *leaderService) transfer(pattern string) transfer {
	return func(ctx context.Context, query url.Values, from io.Reader, to io.Writer) error {
		m, leave := s.leading()
		if m == nil {
			return errStandby()
		}
		defer leave()
		return (sessionServer{m}).transfers()[pattern](ctx, query, from, to)
	}
}

// epochHeader carries the term of a leader that calls a Node.
const epochHeader = "Cloud-Sandbox-Epoch"

// terms refuses the calls of former leaders. A leader asks every Node for its Boots at
// once, and undoes a half-done save by a call of the Node. So a save that the former leader
// had not sent by then has no effect.
type terms struct{ latest atomic.Int64 }

// admit returns Unavailable for a call of an earlier term than the latest known. Callers
// that do not lead have none, and only session managers lead.
func (t *terms) admit(c Caller, h http.Header) error {
	text := h.Get(epochHeader)
	if text == "" || c.Role != SessionManager {
		return nil
	}
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err != nil || epoch <= 0 {
		return sandbox.Errorf(sandbox.Invalid, "the header %s is not a positive number", epochHeader)
	}
	for {
		latest := t.latest.Load()
		if epoch < latest {
			return sandbox.Errorf(sandbox.Unavailable, "another session-manager leads since this call was sent")
		}
		if t.latest.CompareAndSwap(latest, epoch) {
			return nil
		}
	}
}
