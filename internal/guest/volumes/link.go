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
	// askTime is how long the Node has to answer, also one that is away meanwhile.
	askTime = 30 * time.Second
	// maxQueries is how many requests of the kernel are under way at a time. Each is
	// at most maxPieces requests to the Node, which remembers more answers than that.
	maxQueries = 32
	// maxLarge is how many of them may need a large buffer.
	maxLarge = 8
)

// link is the way to the Node: requests wait while there is none.
type link struct {
	volumes []string
	queries chan struct{} // holds one for each request of the kernel that asks the Node
	large   chan struct{} // holds one for each that needs a large buffer
	buffers chan []byte   // large ones that are free

	mu       sync.Mutex
	conn     *stream // nil: none that works
	tag      uint64
	pending  map[uint64]*question
	expiring bool // a timer ends questions that are late

	writing sync.Mutex // taken before mu
}

// question is a request under way.
type question struct {
	request volume.Request
	into    []byte              // where the answer's Data goes; nil: it gets memory of its own
	done    func(volume.Answer) // called once; it must neither block nor ask

	frame []byte
	since time.Time
	sent  *stream // over which it was sent last; guarded by link.writing
}

func newLink(volumes []string) *link {
	// Where tags begin is chosen anew by each server: the Node remembers some of those
	// before it.
	return &link{
		volumes: volumes, tag: rand.Uint64(), pending: map[uint64]*question{},
		queries: make(chan struct{}, maxQueries), large: make(chan struct{}, maxLarge), buffers: make(chan []byte, maxLarge),
	}
}

// ask has the Node carry a request out and waits for the answer; EIO when it does not
// come in time. The answer's Data is the caller's.
func (l *link) ask(r volume.Request) (volume.Answer, syscall.Errno) {
	answer := make(chan volume.Answer, 1)
	l.start(&question{request: r, done: func(a volume.Answer) { answer <- a }})
	a := <-answer
	return a, a.Err
}

// start sends questions, together. Each is answered once, with EIO when the Node does
// not in time.
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

// expire ends questions that were not answered in time.
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

// send writes questions; a next connection has them again if this one breaks.
func (l *link) send(questions ...*question) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil { // or else the connection that comes sends what is pending
		conn.send(questions)
	}
}

// serve accepts connections of the Node, of which the last counts.
func (l *link) serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return errors.New("the listener for the node is none of TCP")
		}
		go func() { _ = l.use(tcp) }()
	}
}

// use speaks over a connection until it breaks.
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
	s.end() // whoever writes to it stops
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == s {
		l.conn = nil
	}
	return err
}

// next reads an answer and gives it to who waits for it.
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
	default: // the next connection has it again, which may be there
		l.mu.Lock()
		l.pending[q.request.Tag] = q
		l.mu.Unlock()
		s.end()
		l.send(q)
	}
	return err
}

// greet says which Volumes are meant by which number.
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

// begin makes a connection the one that is used, and sends over it what is under
// way: the Node does nothing twice.
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

// stream is a connection of which the calls block in the kernel: Go's poller makes
// several calls of one, and a call costs more here than what it is for.
type stream struct {
	file *os.File // closed by who reads
	fd   int
	r    *bufio.Reader
}

// newStream takes a connection over.
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

// patience bounds how long a read waits; zero: not at all.
func (s *stream) patience(d time.Duration) error {
	t := unix.NsecToTimeval(int64(d))
	return unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t)
}

// end breaks the connection.
func (s *stream) end() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// send writes the questions that were not sent over this connection, and breaks it
// when it cannot. The caller holds link.writing.
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
