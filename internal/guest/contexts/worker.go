package contexts

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// longestDrain bounds how long a worker's events are read after its end: processes
// that it left behind may hold its pipes and write more.
const longestDrain = 2 * time.Second

// worker is one running interpreter. It executes one cell at a time.
type worker struct {
	proc    *server.Worker
	command server.Command
	owner   lifetime          // the Bind for which it was seeded
	env     map[string]string // variables of its Sandbox, as it got them

	requests *os.File
	acks     *os.File
	events   *os.File
	stdin    *os.File // a file in memory, also the worker's descriptor 0
	aside    *os.File // a file in memory, also descriptor 6: the requests, if the language reads them there
	latch    *os.File // a counter, also descriptor 6: above zero while SIGINT is handled, if the language has one
	fed      bool     // stdin was not empty in the last cell
	out      [2]*stream

	silent chan struct{} // closed at the end of its events
	ended  chan struct{} // closed when it has ended and status is set
	status syscall.WaitStatus

	mu   sync.Mutex
	cell *cell // nil: idle
}

// lifetime identifies one Bind. Copies of a Sandbox differ in it.
type lifetime struct {
	sandbox        string
	boot, timeline int64
}

func lifetimeOf(o server.Owner) lifetime { return lifetime{o.SandboxID, o.BootNumber, o.Timeline} }

// startWorker starts an interpreter and does not wait for it: requests wait in its
// pipe.
func startWorker(g *server.Guest, l language, command server.Command) (*worker, error) {
	owner, _ := g.Owner()
	w := &worker{command: command, owner: lifetimeOf(owner), env: server.SandboxEnv(owner), silent: make(chan struct{}), ended: make(chan struct{})}
	var theirs []*os.File
	// Files that are created as the user can be opened by path: a language without
	// access to descriptors opens them as /proc/self/fd.
	err := server.As(command.User, func() (err error) {
		theirs, err = w.open(l)
		return err
	})
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if err == nil {
		w.proc, err = g.StartWorker(command, theirs)
	}
	if err != nil {
		w.close()
		for _, s := range w.out {
			if s != nil {
				s.file.Close()
			}
		}
		return nil, err
	}
	for _, s := range w.out {
		go s.run()
	}
	go w.listen()
	go w.wait()
	if l.worker != "" && !l.asFile {
		if err := writeFrame(w.requests, l.worker); err != nil {
			w.kill(0)
			return nil, fmt.Errorf("load the interpreter: %w", err)
		}
	}
	return w, nil
}

// open creates the files between the Guest and the worker. It returns the worker's
// files in the order of its descriptors from 0 on, including those created before an
// error.
func (w *worker) open(l language) (theirs []*os.File, err error) {
	stdin, dup, err := shared("stdin")
	if err != nil {
		return nil, err
	}
	w.stdin, theirs = stdin, append(theirs, dup)
	for i := range 5 {
		r, wr, err := os.Pipe()
		if err != nil {
			return theirs, fmt.Errorf("make a pipe: %w", err)
		}
		switch i {
		case 0, 1:
			w.out[i] = newStream(r)
			w.out[i].lines = l.lines
			theirs = append(theirs, wr)
		case 2:
			w.requests, theirs = wr, append(theirs, r)
		case 3:
			w.events, theirs = r, append(theirs, wr)
		case 4:
			w.acks, theirs = wr, append(theirs, r)
		}
	}
	switch {
	case l.aside:
		if w.aside, dup, err = shared("requests"); err != nil {
			return theirs, err
		}
		theirs = append(theirs, dup)
	case l.asFile:
		text, dup, err := shared("worker")
		if err != nil {
			return theirs, err
		}
		theirs = append(theirs, dup)
		defer text.Close()
		if err := refill(text, []byte(l.worker)); err != nil {
			return theirs, fmt.Errorf("give the worker: %w", err)
		}
	case l.latch:
		if w.latch, dup, err = counter(); err != nil {
			return theirs, err
		}
		theirs = append(theirs, dup)
	}
	return theirs, nil
}

// shared creates a file in memory and the worker's descriptor of it: the same open
// file, with a shared offset.
func shared(name string) (ours, theirs *os.File, err error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("make the input: %w", err)
	}
	ours = os.NewFile(uintptr(fd), name)
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("make the input: %w", err)
	}
	return ours, os.NewFile(uintptr(dup), name), nil
}

// counter creates an eventfd of zero and the worker's descriptor of it. Neither waits
// for it to be above zero, except a read of ours with a deadline.
func counter() (ours, theirs *os.File, err error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("make the latch: %w", err)
	}
	theirs = os.NewFile(uintptr(fd), "latch") // os takes it for one that waits, and leaves its flags alone
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(dup, true)
	}
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make the latch: %w", err)
	}
	return os.NewFile(uintptr(dup), "latch"), theirs, nil
}

// close closes the Guest's ends except the outputs.
func (w *worker) close() {
	for _, f := range []*os.File{w.requests, w.acks, w.events, w.stdin, w.aside, w.latch} {
		if f != nil {
			f.Close()
		}
	}
}

// wait records the worker's end.
func (w *worker) wait() {
	w.status = <-w.proc.Exited()
	w.proc.Release()
	late, cancel := context.WithTimeout(context.Background(), longestDrain)
	defer cancel()
	server.Drained(w.silent, late.Done(), server.NewTap(w.events, 0))
	w.close()
	<-w.silent
	close(w.ended)
}

// listen handles the worker's events until their end. A worker that violates the
// protocol is ended.
func (w *worker) listen() {
	defer close(w.silent)
	r := bufio.NewReader(w.events)
	for {
		texts, err := readFrame(r)
		if err == nil {
			err = w.hear(texts)
		}
		if errors.Is(err, errFrame) {
			w.kill(0)
		}
		if err != nil {
			return
		}
	}
}

// hear handles one frame.
func (w *worker) hear(texts []string) error {
	w.mu.Lock()
	c := w.cell
	w.mu.Unlock()
	switch kind, rest := texts[0], texts[1:]; {
	case kind == "result" && len(rest)%2 == 1:
		if c != nil {
			w.settle()
			c.result(rest)
		}
		if rest[0] == "1" {
			return nil // the cell is over: nothing can be printed before we have seen it
		}
		_, err := w.acks.Write([]byte{1})
		return err
	case kind == "dropped" && len(rest) == 0:
		if c != nil {
			c.drop()
		}
	case kind == "error" && len(rest) == 3:
		if c != nil {
			w.settle()
			c.fail(rest[0], rest[1], rest[2])
		}
	case kind == "done" && len(rest) == 1:
		if c != nil {
			w.settle()
			c.finish(rest[0])
		}
	default:
		return errFrame
	}
	return nil
}

// settle passes on all output that was printed before.
func (w *worker) settle() {
	for _, s := range w.out {
		s.settle()
	}
}

// begin sends a cell to the worker.
func (w *worker) begin(c *cell) error {
	if err := w.feed(c.request.Stdin); err != nil {
		return err
	}
	w.mu.Lock()
	w.cell = c
	w.mu.Unlock()
	w.out[0].to(func(p []byte) { c.output(0, p) })
	w.out[1].to(func(p []byte) { c.output(1, p) })
	fresh, seed := "", ""
	switch {
	case len(c.request.Stdin) > 0:
		fresh = "full"
	case w.fed:
		fresh = "empty"
	}
	w.fed = len(c.request.Stdin) > 0
	lasting, own := "", []string(nil)
	if c.owner != w.owner {
		if w.owner.sandbox != "" && w.owner.sandbox != c.owner.sandbox { // it is a copy of that Sandbox
			own = changed(w.env, c.env)
		}
		seed, w.owner, w.env = newSeed(), c.owner, c.env
	}
	if len(own) > 0 {
		lasting = fmt.Sprint(len(own) / 2)
	}
	texts := append([]string{fmt.Sprint(c.count), c.request.Code, c.request.Cwd, fresh, seed, lasting}, own...)
	for k, v := range c.request.Env {
		texts = append(texts, k, v)
	}
	return w.ask(texts)
}

// handles waits until the worker handles SIGINT, and keeps it so until the worker has
// got one. It says whether that is the case: not if the cell or the worker ends before,
// or after interruptGrace.
func (w *worker) handles(cl *cell) bool {
	if w.latch == nil {
		return true
	}
	if err := w.latch.SetReadDeadline(time.Now().Add(interruptGrace)); err != nil {
		return false // it has ended
	}
	read, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-cl.done:
		case <-w.ended:
		case <-read:
			return
		}
		_ = w.latch.SetReadDeadline(time.Now())
	}()
	_, err := w.latch.Read(make([]byte, 8))
	close(read)
	<-watched
	return err == nil
}

// changed lists the variables of after that differ in before, names and values in
// turn.
func changed(before, after map[string]string) (pairs []string) {
	for name, value := range after {
		if old, there := before[name]; !there || old != value {
			pairs = append(pairs, name, value)
		}
	}
	return pairs
}

// ask sends the texts of a request to the worker.
func (w *worker) ask(texts []string) error {
	if w.aside == nil {
		return writeFrame(w.requests, texts...)
	}
	if err := refill(w.aside, []byte(strings.Join(texts, "\x00")+"\x00")); err != nil {
		return fmt.Errorf("give the request: %w", err)
	}
	_, err := w.requests.WriteString("\n")
	return err
}

// refill replaces the content of a shared file and rewinds it.
func refill(f *os.File, data []byte) error {
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(data, 0)
	}
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	return err
}

// finish detaches the cell from the worker; its further output is dropped.
func (w *worker) finish() {
	w.mu.Lock()
	w.cell = nil
	w.mu.Unlock()
	for _, s := range w.out {
		s.to(nil)
	}
}

// feed sets the input of the worker and its children.
func (w *worker) feed(data []byte) error {
	if len(data) == 0 && !w.fed {
		return nil
	}
	if err := refill(w.stdin, data); err != nil {
		return fmt.Errorf("give the input: %w", err)
	}
	return nil
}

func newSeed() string {
	seed := make([]byte, 32)
	_, _ = rand.Read(seed)
	return hex.EncodeToString(seed)
}

// gone reports whether the worker has ended.
func (w *worker) gone() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// kill ends the worker with everything it started and waits for its end. since is
// the run time of its current cell.
func (w *worker) kill(since time.Duration) { w.proc.Kill(server.Ago(since)) }
