package volumes

import (
	"bufio"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// askTime is how long the Node has to answer, also one that is away meanwhile.
const askTime = 30 * time.Second

// link is the way to the Node: requests wait while there is none.
type link struct {
	volumes []string

	mu      sync.Mutex
	conn    net.Conn // nil: none that works
	tag     uint64
	pending map[uint64]*question

	writing sync.Mutex // taken before mu
}

// question is a request under way.
type question struct {
	frame  []byte
	answer chan volume.Answer
}

func newLink(volumes []string) *link {
	// Where tags begin is chosen anew by each server: the Node remembers some of those
	// before it.
	return &link{volumes: volumes, tag: rand.Uint64(), pending: map[uint64]*question{}}
}

// ask has the Node carry a request out; EIO when it does not answer in time. The
// answer's Data is the caller's.
func (l *link) ask(r volume.Request) (volume.Answer, syscall.Errno) {
	q := &question{answer: make(chan volume.Answer, 1)}
	l.mu.Lock()
	l.tag++
	r.Tag = l.tag
	l.mu.Unlock()
	q.frame = volume.AppendRequest(nil, &r)
	l.mu.Lock()
	l.pending[r.Tag] = q
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.pending, r.Tag)
		l.mu.Unlock()
	}()
	l.send(q)
	late := time.NewTimer(askTime)
	defer late.Stop()
	select {
	case a := <-q.answer:
		return a, a.Err
	case <-late.C:
		return volume.Answer{}, unix.EIO
	}
}

// send writes a question; a next connection has it again if this one breaks.
func (l *link) send(q *question) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn == nil {
		return // the connection that comes sends what is pending
	}
	_ = conn.SetWriteDeadline(time.Now().Add(askTime))
	if _, err := conn.Write(q.frame); err != nil {
		conn.Close()
	}
}

// serve accepts connections of the Node, of which the last counts.
func (l *link) serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go l.use(conn)
	}
}

// use speaks over a connection until it breaks.
func (l *link) use(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64<<10)
	if !l.greet(conn, r) {
		return
	}
	l.begin(conn)
	for {
		frame, err := volume.ReadFrame(r, nil)
		if err != nil {
			break
		}
		a, err := volume.DecodeAnswer(frame)
		if err != nil {
			break
		}
		l.mu.Lock()
		q := l.pending[a.Tag]
		delete(l.pending, a.Tag)
		l.mu.Unlock()
		if q != nil {
			q.answer <- a
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == conn {
		l.conn = nil
	}
}

// greet says which Volumes are meant by which number.
func (l *link) greet(conn net.Conn, r *bufio.Reader) bool {
	_ = conn.SetDeadline(time.Now().Add(askTime))
	hello := volume.Request{Op: volume.OpHello, Size: volume.Version, Data: []byte(strings.Join(l.volumes, " "))}
	if _, err := conn.Write(volume.AppendRequest(nil, &hello)); err != nil {
		return false
	}
	frame, err := volume.ReadFrame(r, nil)
	if err != nil {
		return false
	}
	a, err := volume.DecodeAnswer(frame)
	return err == nil && a.Err == 0 && conn.SetDeadline(time.Time{}) == nil
}

// begin makes a connection the one that is used, and sends over it what is under
// way: the Node does nothing twice.
func (l *link) begin(conn net.Conn) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	if l.conn != nil {
		l.conn.Close()
	}
	l.conn = conn
	var again [][]byte
	for _, tag := range slices.Sorted(maps.Keys(l.pending)) {
		again = append(again, l.pending[tag].frame)
	}
	l.mu.Unlock()
	_ = conn.SetWriteDeadline(time.Now().Add(askTime))
	for _, frame := range again {
		if _, err := conn.Write(frame); err != nil {
			conn.Close()
			return
		}
	}
}
