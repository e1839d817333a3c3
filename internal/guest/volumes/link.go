package volumes

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// askTime is how long the Node has to answer, including a time when it is
	// disconnected.
	askTime = 30 * time.Second
	// maxQueries bounds the concurrent requests of the kernel. Each is at most
	// maxPieces requests to the Node, which remembers more answers than that.
	maxQueries = 32
	// maxLarge bounds the requests among them that need a large buffer.
	maxLarge = 8
)

// link is the connection to the Node: requests wait while it is missing.
type link struct {
	volumes []string
	queries chan struct{} // one slot for each request of the kernel that asks the Node
	large   chan struct{} // one slot for each request that needs a large buffer
	buffers chan []byte   // free large buffers

	mu       sync.Mutex
	conn     *stream // nil: not connected
	tag      uint64
	pending  map[uint64]*question
	expiring bool // a timer for overdue questions runs

	writing sync.Mutex // taken before mu
}

// question is a request to the Node in progress.
type question struct {
	request volume.Request
	into    []byte              // buffer for the answer's Data; nil: new memory
	done    func(volume.Answer) // called once; it must neither block nor ask

	frame []byte
	since time.Time
	sent  *stream // connection over which it was sent last; guarded by link.writing
}

func newLink(volumes []string) *link {
	// Each server begins with a random tag: the Node remembers some tags of the
	// previous one.
	return &link{
		volumes: volumes, tag: rand.Uint64(), pending: map[uint64]*question{},
		queries: make(chan struct{}, maxQueries), large: make(chan struct{}, maxLarge), buffers: make(chan []byte, maxLarge),
	}
}

// ask sends a request to the Node and waits for the answer; EIO when it does not
// come in time. The caller owns the answer's Data.
func (l *link) ask(r volume.Request) (volume.Answer, syscall.Errno) {
	answer := make(chan volume.Answer, 1)
	l.start(&question{request: r, done: func(a volume.Answer) { answer <- a }})
	a := <-answer
	return a, a.Err
}

// start sends questions together. Each is answered once, with EIO when the Node
// does not answer in time.
func (l *link) start(questions ...*question) {
	now := time.Now()
	l.mu.Lock()
	for _, q := range questions {
		l.tag++
		q.request.Tag = l.tag
		q.since = now
		q.frame = volume.AppendRequest(make([]byte, 0, volume.RequestBytes(&q.request)), &q.request)
		l.pending[q.request.Tag] = q
	}
	if !l.expiring {
		l.expiring = true
		time.AfterFunc(askTime, l.expire)
	}
	l.mu.Unlock()
	l.send(questions...)
}

// expire ends overdue questions.
func (l *link) expire() {
	var late []*question
	wait := askTime
	l.mu.Lock()
	for tag, q := range l.pending {
		if left := askTime - time.Since(q.since); left <= 0 {
			delete(l.pending, tag)
			late = append(late, q)
		} else {
			wait = min(wait, left)
		}
	}
	if l.expiring = len(l.pending) > 0; l.expiring {
		time.AfterFunc(wait, l.expire)
	}
	l.mu.Unlock()
	for _, q := range late {
		q.done(volume.Answer{Tag: q.request.Tag, Err: unix.EIO})
	}
}

// send writes questions; the next connection sends them again if this one breaks.
func (l *link) send(questions ...*question) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil { // otherwise the next connection sends the pending questions
		conn.send(questions)
	}
}

// serve accepts connections of the Node; the last one replaces the others.
func (l *link) serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return errors.New("the listener for the node is not a TCP listener")
		}
		go func() { _ = l.use(tcp) }()
	}
}

// use uses a connection until it breaks.
func (l *link) use(conn *net.TCPConn) error {
	s, err := newStream(conn)
	if err != nil {
		return err
	}
	defer s.file.Close()
	if err := l.greet(s); err != nil {
		return err
	}
	l.begin(s)
	for err == nil {
		err = l.next(s)
	}
	s.end() // unblocks a writer
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == s {
		l.conn = nil
	}
	return err
}

// next reads an answer and passes it to its question.
func (l *link) next(s *stream) error {
	var q *question
	a, err := volume.ReadAnswer(s.r, func(tag uint64) []byte {
		l.mu.Lock()
		defer l.mu.Unlock()
		if q = l.pending[tag]; q == nil {
			return nil
		}
		delete(l.pending, tag)
		return q.into
	})
	switch {
	case q == nil:
	case err == nil:
		q.done(a)
	default: // sent again over the next connection, which may exist already
		l.mu.Lock()
		l.pending[q.request.Tag] = q
		l.mu.Unlock()
		s.end()
		l.send(q)
	}
	return err
}

// greet sends the numbers of the Volumes.
func (l *link) greet(s *stream) error {
	if err := s.patience(askTime); err != nil {
		return err
	}
	hello := volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(strings.Join(l.volumes, " "))}
	if err := s.write(volume.AppendRequest(nil, &hello)); err != nil {
		return err
	}
	a, err := volume.ReadAnswer(s.r, nil)
	switch {
	case err != nil:
		return err
	case a.Err != 0:
		return a.Err
	}
	return s.patience(0)
}

// begin makes a connection the current one, and sends the pending questions over
// it: the Node does not repeat a request that it has carried out.
func (l *link) begin(s *stream) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	if l.conn != nil {
		l.conn.end()
	}
	l.conn = s
	var again []*question
	for _, tag := range slices.Sorted(maps.Keys(l.pending)) {
		again = append(again, l.pending[tag])
	}
	l.mu.Unlock()
	s.send(again)
}

// stream is a connection with calls that block in the kernel: Go's poller makes
// several system calls of each, and a system call costs more here than the data.
type stream struct {
	file *os.File // closed by the reader
	fd   int
	r    *bufio.Reader
}

// newStream takes over a connection.
func newStream(conn *net.TCPConn) (*stream, error) {
	file, err := conn.File()
	_ = conn.Close()
	if err != nil {
		return nil, err
	}
	s := &stream{file: file, fd: int(file.Fd())}
	s.r = bufio.NewReaderSize(s, 64<<10)
	late := unix.NsecToTimeval(int64(askTime))
	if err := errors.Join(unix.SetNonblock(s.fd, false), unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &late)); err != nil {
		_ = file.Close()
		return nil, err
	}
	return s, nil
}

// patience sets the maximum time of a read; zero: no limit.
func (s *stream) patience(d time.Duration) error {
	t := unix.NsecToTimeval(int64(d))
	return unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t)
}

// end breaks the connection.
func (s *stream) end() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// send writes the questions that were not sent over this connection yet, and breaks
// the connection if that fails. The caller holds link.writing.
func (s *stream) send(questions []*question) {
	var frames []byte
	for _, q := range questions {
		switch {
		case q.sent == s:
			continue
		case frames == nil:
			frames = q.frame
		default:
			frames = append(frames[:len(frames):len(frames)], q.frame...)
		}
		q.sent = s
		if len(frames) > requestBytes {
			if s.write(frames) != nil {
				s.end()
				return
			}
			frames = nil
		}
	}
	if len(frames) > 0 && s.write(frames) != nil {
		s.end()
	}
}

func (s *stream) write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(s.fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		default:
			b = b[n:]
		}
	}
	return nil
}

// Read implements io.Reader.
func (s *stream) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}
