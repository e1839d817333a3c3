package envd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/api/gen/process"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// lateConnect is how long clients can still connect to an ended process.
	lateConnect = 30 * time.Second
	// keepalive is the interval when a client names none.
	keepalive = 90 * time.Second
	// pipeRead and ptyRead bound the data of one event, in bytes.
	pipeRead, ptyRead = 32 << 10, 16 << 10
	// queued is how many events wait for a slow subscriber before the process
	// waits for it.
	queued = 64
	// slowest is how long a process waits for a subscriber that does not read. Then
	// the subscriber is dropped.
	slowest = 30 * time.Second
	// killTime is how long a kill is waited for. Processes end at once unless the
	// system delays them.
	killTime = 5 * time.Second
)

// processes is the process service.
type processes struct {
	guest *server.Guest

	mu    sync.Mutex
	byPID map[uint32]*proc
}

func newProcesses(g *server.Guest) *processes {
	return &processes{guest: g, byPID: map[uint32]*proc{}}
}

// proc is one process that a client started.
type proc struct {
	config *process.ProcessConfig
	tag    *string
	pid    uint32
	input  *os.File // stdin's pipe or the terminal; nil: none
	tty    bool
	ended  chan struct{} // closed once end is set

	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	end         *process.ProcessEvent
	inputClosed bool
}

// subscriber is one stream of a process's events.
type subscriber struct {
	events chan *process.ProcessEvent
	gone   chan struct{} // closed when it leaves or is dropped
	once   sync.Once
}

func (s *subscriber) leave() { s.once.Do(func() { close(s.gone) }) }

// subscribe adds a stream. The stream of an ended process only gets the end.
func (p *proc) subscribe() *subscriber {
	s := &subscriber{events: make(chan *process.ProcessEvent, queued), gone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		s.events <- p.end
		return s
	}
	p.subscribers[s] = struct{}{}
	return s
}

func (p *proc) unsubscribe(s *subscriber) {
	s.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.subscribers, s)
}

// publish gives an event to every subscriber.
func (p *proc) publish(e *process.ProcessEvent) {
	p.mu.Lock()
	all := slices.Collect(maps.Keys(p.subscribers))
	p.mu.Unlock()
	p.give(all, e)
}

// give sends an event to subscribers. It waits up to slowest for a full one, which
// slows the process down.
func (p *proc) give(all []*subscriber, e *process.ProcessEvent) {
	for _, s := range all {
		select {
		case s.events <- e:
			continue
		case <-s.gone:
			continue
		default:
		}
		t := time.NewTimer(slowest)
		select {
		case s.events <- e:
		case <-s.gone:
		case <-t.C:
			p.unsubscribe(s)
		}
		t.Stop()
	}
}

// finish publishes the end, the last event of every stream. The process has ended
// before subscribers receive it, and later subscribers receive it too.
func (p *proc) finish(e *process.ProcessEvent) {
	p.mu.Lock()
	p.end = e
	all := slices.Collect(maps.Keys(p.subscribers))
	clear(p.subscribers)
	close(p.ended)
	p.mu.Unlock()
	p.give(all, e)
}

// Start starts a process and streams its events. The stream's end does not end
// the process; its timeout does.
func (s *processes) Start(ctx context.Context, r *connect.Request[process.StartRequest], stream *connect.ServerStream[process.StartResponse]) error {
	p, sub, err := s.start(r)
	if err != nil {
		return err
	}
	if limit := timeoutOf(r.Header()); limit > 0 {
		expired, stop := s.guest.Countdown(limit)
		go func() {
			defer stop()
			select {
			case <-expired:
				_ = unix.Kill(int(p.pid), unix.SIGKILL)
			case <-p.ended:
			}
		}()
	}
	return follow(ctx, p, sub, r.Header(), func(e *process.ProcessEvent) error {
		return stream.Send(&process.StartResponse{Event: e})
	})
}

// timeoutOf returns the client's limit for the stream, which also limits the
// leader's run time; zero: none.
func timeoutOf(h http.Header) time.Duration {
	n, err := strconv.ParseInt(h.Get("Connect-Timeout-Ms"), 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// Connect streams the events of a running process from now on.
func (s *processes) Connect(ctx context.Context, r *connect.Request[process.ConnectRequest], stream *connect.ServerStream[process.ConnectResponse]) error {
	p, err := s.find(r.Msg.Process)
	if err != nil {
		return err
	}
	return follow(ctx, p, p.subscribe(), r.Header(), func(e *process.ProcessEvent) error {
		return stream.Send(&process.ConnectResponse{Event: e})
	})
}

// follow sends the start, then the events, and a keepalive in every silence.
func follow(ctx context.Context, p *proc, sub *subscriber, h http.Header, send func(*process.ProcessEvent) error) error {
	defer p.unsubscribe(sub)
	started := &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: p.pid}}}
	if err := send(started); err != nil {
		return err
	}
	every := keepaliveOf(h)
	silence := time.NewTimer(every)
	defer silence.Stop()
	for {
		select {
		case e := <-sub.events:
			if err := send(e); err != nil || e.GetEnd() != nil {
				return err
			}
		case <-silence.C:
			if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{}}}); err != nil {
				return err
			}
		case <-sub.gone:
			return connect.NewError(connect.CodeResourceExhausted, errors.New("this stream was read too slowly"))
		case <-ctx.Done():
			return ctx.Err()
		}
		silence.Reset(every)
	}
}

func keepaliveOf(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval"))
	if err != nil || n <= 0 {
		return keepalive
	}
	return time.Duration(n) * time.Second
}

// start starts a process with one subscriber, which receives every event.
func (s *processes) start(r *connect.Request[process.StartRequest]) (*proc, *subscriber, error) {
	m := r.Msg
	if m.Process == nil || m.Process.Cmd == "" {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no program is named"))
	}
	u, err := rpcAccount(s.guest, userOf(r.Header()))
	if err != nil {
		return nil, nil, err
	}
	args := append([]string{m.Process.Cmd}, m.Process.Args...)
	cwd := m.Process.GetCwd()
	if cwd != "" { // a relative path is below the home folder here, as in every call
		if cwd, err = resolve(cwd, u); err != nil {
			return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
	c, err := s.guest.Command(args, m.Process.Envs, cwd, u.Name)
	if err != nil {
		return nil, nil, startError(err)
	}
	p := &proc{config: m.Process, tag: m.Tag, ended: make(chan struct{}), subscribers: map[*subscriber]struct{}{}}
	sub := p.subscribe()
	if m.Pty != nil {
		err = s.startTerminal(p, c, m.Pty)
	} else {
		err = s.startPipes(p, c, m.Stdin == nil || *m.Stdin)
	}
	if err != nil {
		return nil, nil, startError(err)
	}
	return p, sub, nil
}

func startError(err error) error {
	var bad *server.InvalidError
	var rpc *connect.Error
	switch {
	case errors.As(err, &rpc):
		return err
	case errors.As(err, &bad):
		return connect.NewError(connect.CodeInvalidArgument, err)
	case errors.Is(err, server.ErrNotBound):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, syscall.EAGAIN):
		return connect.NewError(connect.CodeResourceExhausted, errors.New("no more processes may be started"))
	}
	return connect.NewError(connect.CodeInternal, err)
}

// startPipes starts a process with pipes for its output.
func (s *processes) startPipes(p *proc, c server.Command, stdin bool) error {
	out, outW, err := server.OutputPipe()
	if err != nil {
		return err
	}
	errs, errW, err := server.OutputPipe()
	if err != nil {
		unix.Close(outW)
		closeFiles(out)
		return err
	}
	in, keep, err := inputOf(stdin)
	if err != nil {
		closeAll(outW, errW)
		closeFiles(out, errs)
		return err
	}
	child, err := s.guest.Start(c, []int{in, outW, errW}, false)
	closeAll(in, outW, errW)
	if err != nil {
		closeFiles(out, errs, keep)
		return err
	}
	p.input = keep
	s.adopt(p, child)
	outTap, errTap := server.NewTap(out, pipeRead), server.NewTap(errs, pipeRead)
	var readers sync.WaitGroup
	readers.Go(func() {
		defer out.Close()
		p.read(outTap, func(b []byte) *process.ProcessEvent_DataEvent {
			return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: b}}
		})
	})
	readers.Go(func() {
		defer errs.Close()
		p.read(errTap, func(b []byte) *process.ProcessEvent_DataEvent {
			return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: b}}
		})
	})
	go s.wait(p, child, &readers, outTap, errTap)
	return nil
}

// inputOf returns a process's input and our end of it: a pipe, or /dev/null and
// nil.
func inputOf(wanted bool) (theirs int, ours *os.File, err error) {
	if wanted {
		ours, theirs, err = server.InputPipe()
		return theirs, ours, err
	}
	theirs, err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return theirs, nil, err
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// startTerminal starts a process on a terminal of its own.
func (s *processes) startTerminal(p *proc, c server.Command, size *process.PTY) error {
	ours, theirs, err := pty.Open()
	if err != nil {
		return err
	}
	if err := resize(ours, size); err != nil {
		closeFiles(ours, theirs)
		return err
	}
	_ = theirs.Chown(int(c.User.UID), int(c.User.GID))
	fd := int(theirs.Fd())
	child, err := s.guest.Start(c, []int{fd, fd, fd}, true)
	theirs.Close()
	if err != nil {
		ours.Close()
		return err
	}
	p.input, p.tty = ours, true
	s.adopt(p, child)
	tap := server.NewTap(ours, ptyRead)
	var readers sync.WaitGroup
	readers.Go(func() {
		p.read(tap, func(b []byte) *process.ProcessEvent_DataEvent {
			return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Pty{Pty: b}}
		})
	})
	go s.wait(p, child, &readers, tap)
	return nil
}

func resize(tty *os.File, size *process.PTY) error {
	if size.GetSize() == nil {
		return nil
	}
	const most = 1 << 15
	cols, rows := min(size.Size.Cols, most), min(size.Size.Rows, most)
	return pty.Setsize(tty, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)})
}

// read publishes a stream until its end.
func (p *proc) read(tap *server.Tap, event func([]byte) *process.ProcessEvent_DataEvent) {
	tap.Run(func(b []byte) {
		data := event(slices.Clone(b)) // it waits in queues
		p.publish(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: data}})
	})
}

func (s *processes) adopt(p *proc, child *server.Child) {
	p.pid = uint32(child.PID)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPID[p.pid] = p
}

// wait publishes the end of a process and removes it a while later. Output of
// processes that it left behind is read and dropped.
func (s *processes) wait(p *proc, child *server.Child, readers *sync.WaitGroup, outputs ...*server.Tap) {
	status := <-child.Exited
	read := make(chan struct{})
	go func() { readers.Wait(); close(read) }()
	server.Drained(read, nil, outputs...)
	p.finish(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: endOf(status)}})
	p.closeInput()
	time.AfterFunc(lateConnect, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.byPID[p.pid] == p {
			delete(s.byPID, p.pid)
		}
	})
}

// closeInput closes our end of the input; for a terminal, once its process has
// ended.
func (p *proc) closeInput() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.input != nil && !p.inputClosed {
		p.inputClosed = true
		p.input.Close()
	}
}

// endOf describes an end as Go's exec package does, which is the text that the SDKs
// show.
func endOf(status syscall.WaitStatus) *process.ProcessEvent_EndEvent {
	e := &process.ProcessEvent_EndEvent{ExitCode: int32(status.ExitStatus()), Exited: status.Exited()}
	e.Status = fmt.Sprintf("exit status %d", e.ExitCode)
	if status.Signaled() {
		e.ExitCode = -1
		e.Status = "signal: " + status.Signal().String()
	}
	if e.ExitCode != 0 {
		e.Error = &e.Status
	}
	return e
}

// find returns the process of a selector.
func (s *processes) find(sel *process.ProcessSelector) (*proc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch by := sel.GetSelector().(type) {
	case *process.ProcessSelector_Pid:
		if p := s.byPID[by.Pid]; p != nil {
			return p, nil
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", by.Pid))
	case *process.ProcessSelector_Tag:
		for _, p := range s.byPID {
			if p.tag != nil && *p.tag == by.Tag {
				return p, nil
			}
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with tag %s not found", by.Tag))
	}
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("the selector names neither pid nor tag"))
}

// findRunning is find without ended processes.
func (s *processes) findRunning(sel *process.ProcessSelector) (*proc, error) {
	p, err := s.find(sel)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.ended:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", p.pid))
	default:
		return p, nil
	}
}

// List lists the running processes.
func (s *processes) List(context.Context, *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &process.ListResponse{}
	for _, p := range s.byPID {
		select {
		case <-p.ended:
		default:
			out.Processes = append(out.Processes, &process.ProcessInfo{Config: p.config, Pid: p.pid, Tag: p.tag})
		}
	}
	slices.SortFunc(out.Processes, func(a, b *process.ProcessInfo) int { return int(a.Pid) - int(b.Pid) })
	return connect.NewResponse(out), nil
}

// Update changes a terminal's size.
func (s *processes) Update(_ context.Context, r *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	p, err := s.findRunning(r.Msg.Process)
	if err != nil {
		return nil, err
	}
	if r.Msg.Pty != nil {
		if !p.tty {
			return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal"))
		}
		if err := resize(p.input, r.Msg.Pty); err != nil {
			return nil, connect.NewError(connect.CodeInternal, err)
		}
	}
	return connect.NewResponse(&process.UpdateResponse{}), nil
}

// write writes input to a process. It blocks while the process does not read.
func (p *proc) write(in *process.ProcessInput) error {
	var data []byte
	switch by := in.GetInput().(type) {
	case *process.ProcessInput_Stdin:
		if p.tty {
			return connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has a terminal: send pty input"))
		}
		data = by.Stdin
	case *process.ProcessInput_Pty:
		if !p.tty {
			return connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal: send stdin input"))
		}
		data = by.Pty
	default:
		return connect.NewError(connect.CodeUnimplemented, errors.New("the input is neither stdin nor pty"))
	}
	p.mu.Lock()
	closed := p.input == nil || p.inputClosed
	p.mu.Unlock()
	if closed {
		return connect.NewError(connect.CodeInternal, errors.New("stdin is not open"))
	}
	if _, err := p.input.Write(data); err != nil {
		return connect.NewError(connect.CodeInternal, fmt.Errorf("write input: %w", err))
	}
	return nil
}

// SendInput writes input to a process.
func (s *processes) SendInput(_ context.Context, r *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	p, err := s.findRunning(r.Msg.Process)
	if err != nil {
		return nil, err
	}
	if err := p.write(r.Msg.Input); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

// StreamInput writes input to a process, piece by piece.
func (s *processes) StreamInput(_ context.Context, stream *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	var p *proc
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *process.StreamInputRequest_Start:
			var err error
			if p, err = s.findRunning(e.Start.Process); err != nil {
				return nil, err
			}
		case *process.StreamInputRequest_Data:
			if p == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the first event must be start"))
			}
			if err := p.write(e.Data.Input); err != nil {
				return nil, err
			}
		case *process.StreamInputRequest_Keepalive:
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.StreamInputResponse{}), nil
}

// SendSignal sends SIGTERM or SIGKILL. After SIGKILL it waits up to killTime for
// the end, so that the next call does not list the process as running.
func (s *processes) SendSignal(ctx context.Context, r *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	p, err := s.findRunning(r.Msg.Process)
	if err != nil {
		return nil, err
	}
	var sig unix.Signal
	switch r.Msg.Signal {
	case process.Signal_SIGNAL_SIGTERM:
		sig = unix.SIGTERM
	case process.Signal_SIGNAL_SIGKILL:
		sig = unix.SIGKILL
	default:
		return nil, connect.NewError(connect.CodeUnimplemented, fmt.Errorf("the signal %s is not known", r.Msg.Signal))
	}
	switch err := unix.Kill(int(p.pid), sig); {
	case errors.Is(err, unix.ESRCH): // it has just ended; its last output is still passed on
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", p.pid))
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("send the signal: %w", err))
	}
	if sig == unix.SIGKILL {
		late := time.NewTimer(killTime)
		defer late.Stop()
		select {
		case <-p.ended:
		case <-late.C:
		case <-ctx.Done():
		}
	}
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}

// CloseStdin ends a process's input. A repeated call succeeds.
func (s *processes) CloseStdin(_ context.Context, r *connect.Request[process.CloseStdinRequest]) (*connect.Response[process.CloseStdinResponse], error) {
	p, err := s.findRunning(r.Msg.Process)
	if err != nil {
		return nil, err
	}
	if p.tty {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("a terminal's input is ended with Ctrl-D"))
	}
	p.closeInput()
	return connect.NewResponse(&process.CloseStdinResponse{}), nil
}
