package fdrpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"

	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Request is one call as its handler sees it. Files are closed after the handler
// returns: a handler that keeps a file sets its entry to nil.
type Request struct {
	Method string
	Body   json.RawMessage
	Files  []*os.File
	Peer   *Peer

	after func()
}

// After sets a function to call once the answer is sent.
func (r *Request) After(f func()) { r.after = f }

// Decode reads the body into v; Invalid when it does not fit.
func (r *Request) Decode(v any) error {
	if err := json.Unmarshal(r.Body, v); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the body of %s cannot be read", r.Method).WithCause(err)
	}
	return nil
}

// TakeFile returns file i, which is then the handler's to close; Invalid when the
// request has no such file.
func (r *Request) TakeFile(i int) (*os.File, error) {
	if i >= len(r.Files) || r.Files[i] == nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "%s needs a file", r.Method)
	}
	f := r.Files[i]
	r.Files[i] = nil
	return f, nil
}

// Handler answers one call. The reply is encoded as JSON; its files are closed once
// sent.
type Handler func(ctx context.Context, r *Request) (reply any, files []*os.File, err error)

// Server serves calls. Its fields are set before Serve and not changed.
type Server struct {
	Handle Handler
	// Hello names the method that must have succeeded on a connection before any other is
	// answered; empty: none.
	Hello string
	// Allow reports whether a user may connect; nil allows only the server's own user and
	// root.
	Allow func(uid uint32) bool
	// Turn returns a request's serialization key: requests with equal keys run one
	// after the other, in the order in which they came, so that the request that
	// undoes a cancelled call cannot overtake it. An empty key, or a nil Turn: the
	// request runs at once.
	Turn func(*Request) string
	Log  *slog.Logger

	mu    sync.Mutex
	turns map[string]chan struct{} // by key, closed when the latest request has been handled; guarded by mu
}

// Peer is one connection, for events to it.
type Peer struct {
	conn    *net.UnixConn
	ctx     context.Context
	greeted atomic.Bool
}

// Event sends an event to the peer.
func (p *Peer) Event(method string, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return send(p.conn, message{Method: method, Body: raw}, nil)
}

// Done is closed when the peer is gone.
func (p *Peer) Done() <-chan struct{} { return p.ctx.Done() }

// Listen makes the socket at path with the given mode bits. It replaces a stale
// socket.
func Listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Serve accepts connections until ctx ends, then closes them and waits for
// their handlers. It closes l.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before the wait: it ends the connections
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if !s.allowed(conn) {
			conn.Close()
			continue
		}
		wg.Go(func() { s.serve(ctx, conn) })
	}
}

func (s *Server) allowed(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return false
	}
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		return true
	}
	if s.Allow != nil && s.Allow(cred.Uid) {
		return true
	}
	s.Log.Warn("refused a local connection", "uid", cred.Uid)
	return false
}

func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if err := tune(conn); err != nil {
		return
	}
	peer := &Peer{conn: conn, ctx: ctx}
	r := newReceiver(conn)
	for {
		m, files, err := r.next()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, io.EOF) {
				s.Log.Warn("a local connection was lost", telemetry.KeyError, err)
			}
			return
		}
		req := &Request{Method: m.Method, Body: m.Body, Files: files, Peer: peer}
		handle := s.inTurn(req, func() { s.answer(ctx, m.ID, req) })
		wg.Go(handle)
	}
}

// inTurn returns a function that waits for the request's turn and runs handle.
func (s *Server) inTurn(r *Request, handle func()) func() {
	name := ""
	if s.Turn != nil {
		name = s.Turn(r)
	}
	if name == "" {
		return handle
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turns == nil {
		s.turns = map[string]chan struct{}{}
	}
	before, mine := s.turns[name], make(chan struct{})
	s.turns[name] = mine
	return func() {
		if before != nil {
			<-before
		}
		handle()
		close(mine)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.turns[name] == mine {
			delete(s.turns, name)
		}
	}
}

func (s *Server) handle(ctx context.Context, r *Request) (any, []*os.File, error) {
	if s.Hello == "" {
		return s.Handle(ctx, r)
	}
	if r.Method != s.Hello && !r.Peer.greeted.Load() {
		return nil, nil, sandbox.Errorf(sandbox.Conflict, "a connection begins with %q", s.Hello)
	}
	reply, out, err := s.Handle(ctx, r)
	if err == nil && r.Method == s.Hello {
		r.Peer.greeted.Store(true)
	}
	return reply, out, err
}

func (s *Server) answer(ctx context.Context, id uint64, req *Request) {
	reply, out, err := s.handle(ctx, req)
	for _, f := range req.Files {
		if f != nil {
			f.Close()
		}
	}
	defer closeAll(out)
	a := message{ID: id}
	if err == nil {
		a.Body, err = json.Marshal(reply)
	}
	if err != nil {
		a = message{ID: id, Error: toWire(err)}
		out = nil
	}
	if err := send(req.Peer.conn, a, out); err != nil && ctx.Err() == nil {
		s.Log.Warn("answering a local call failed", telemetry.KeyMethod, req.Method, telemetry.KeyError, err)
	}
	if req.after != nil {
		req.after()
	}
}
