package disk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// helloTime is how long a Boot may take to send its hello.
	helloTime = 10 * time.Second
	// answerTime is how long it may take to read an answer.
	answerTime = 30 * time.Second
	// remembered is how many answers are kept for repeated requests: more than a Boot's
	// volume server has in flight.
	remembered = 256
	// smallBytes is enough for most frames.
	smallBytes = 8192
)

// boot is the volume.Server of one Boot.
type boot struct {
	disk   *Disk
	tenant sandbox.TenantID
	bound  map[string]bool // the IDs of its Volumes
	budget *budget         // the Tenant's large buffers; nil: closed

	serving sync.Mutex // held while serving a connection
	mounts  map[string]*mount

	mu      sync.Mutex
	answers map[uint64]volume.Answer // to requests that changed something, by tag
	oldest  [remembered]uint64       // their tags, oldest first, a ring
	count   int
}

// ForBoot returns a server of these Volumes for a Boot. Close it when the Boot has ended.
func (d *Disk) ForBoot(tenant sandbox.TenantID, volumes []string) volume.Server {
	b := &boot{disk: d, tenant: tenant, bound: map[string]bool{}, budget: d.budgets.use(tenant), mounts: map[string]*mount{}, answers: map[uint64]volume.Answer{}}
	for _, id := range volumes {
		b.bound[id] = true
	}
	return b
}

// Close implements volume.Server.
func (b *boot) Close() {
	b.serving.Lock()
	defer b.serving.Unlock()
	for _, m := range b.mounts {
		m.close()
	}
	clear(b.mounts)
	if b.budget != nil {
		b.disk.budgets.leave(b.tenant)
		b.budget = nil
	}
}

// Serve implements volume.Server. The Boot is not trusted: it can reach only its own
// Volumes, and its requests are bounded.
func (b *boot) Serve(ctx context.Context, conn net.Conn) error {
	b.serving.Lock()
	defer b.serving.Unlock()
	if b.budget == nil {
		conn.Close()
		return net.ErrClosed
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	c := &connection{boot: b, conn: conn, r: bufio.NewReaderSize(conn, smallBytes), slots: make(chan struct{}, volume.Parallel)}
	err := c.hello()
	if err == nil {
		err = c.serve()
	}
	c.working.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// connection is one connection to a Boot.
type connection struct {
	boot   *boot
	conn   net.Conn
	r      *bufio.Reader
	mounts []*mount // in the order of the hello; nil: not the Boot's, or deleted

	slots   chan struct{} // holds one for each request in flight
	working sync.WaitGroup
	writing sync.Mutex
}

// hello reads the Boot's order of its Volumes.
func (c *connection) hello() error {
	if err := c.conn.SetReadDeadline(time.Now().Add(helloTime)); err != nil {
		return err
	}
	frame, err := volume.ReadFrame(c.r, make([]byte, smallBytes))
	if err != nil {
		return err
	}
	r, err := volume.DecodeRequest(frame)
	if err != nil {
		return err
	}
	ids := strings.Fields(string(r.Data))
	switch {
	case r.Op != volume.OpHello:
		return errors.New("the volume server of the boot sent no hello")
	case r.Size != volume.Version:
		return fmt.Errorf("the volume server of the boot speaks version %d", r.Size)
	case len(ids) > sandbox.MaxVolumeMounts:
		return fmt.Errorf("the volume server of the boot has %d volumes", len(ids))
	}
	for _, id := range ids {
		c.mounts = append(c.mounts, c.boot.mount(id))
	}
	if err := c.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	return c.answer(&volume.Answer{Tag: r.Tag})
}

// mount returns a Volume of the Boot; nil if it is another's or unusable.
func (b *boot) mount(id string) *mount {
	if !b.bound[id] {
		return nil
	}
	if m := b.mounts[id]; m != nil {
		return m
	}
	v, err := b.disk.Volume(sandbox.VolumeRef{ID: id, Tenant: b.tenant})
	if err != nil {
		return nil
	}
	b.mounts[id] = newMount(v)
	return b.mounts[id]
}

// serve reads requests. It holds no buffer while it waits for one.
func (c *connection) serve() error {
	for {
		head, err := c.r.Peek(4)
		if err != nil {
			return err
		}
		c.slots <- struct{}{}
		n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16 | int(head[3])<<24
		buf := c.boot.buffer(n)
		if len(*buf) > smallBytes { // large: others of its Tenant may wait for it
			if err := c.conn.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
				c.boot.giveBack(buf)
				return err
			}
		}
		frame, err := volume.ReadFrame(c.r, *buf)
		var r volume.Request
		if err == nil {
			r, err = volume.DecodeRequest(frame)
		}
		if err == nil && len(*buf) > smallBytes {
			if r.Op != volume.OpWrite { // it would hold this buffer and wait for a second one
				err = errors.New("the volume server of the boot sends a long request that writes nothing")
			} else {
				err = c.conn.SetReadDeadline(time.Time{})
			}
		}
		if err != nil {
			c.boot.giveBack(buf)
			return err
		}
		do := func() {
			defer func() { <-c.slots }()
			defer c.boot.giveBack(buf)
			c.one(&r)
		}
		if r.Op == volume.OpWrite {
			do() // in order of arrival: a growing file must show no gaps
		} else {
			c.working.Go(do)
		}
	}
}

// one runs a request, unless it is a repeat, and answers it.
func (c *connection) one(r *volume.Request) {
	if r.Op.Changes() {
		if a, done := c.boot.answered(r.Tag); done {
			_ = c.answer(&a)
			return
		}
	}
	var buf *[]byte // for the answer's Data, after space for its head
	switch r.Op {
	case volume.OpList:
		r.Size = volume.MaxData
		fallthrough
	case volume.OpRead, volume.OpOpen:
		buf = c.boot.buffer(volume.AnswerBytes + int(r.Size))
		defer c.boot.giveBack(buf)
	}
	var a volume.Answer
	switch {
	case int(r.Mount) >= len(c.mounts) || r.Op == volume.OpHello:
		a = volume.Answer{Tag: r.Tag, Err: unix.EINVAL}
	case c.mounts[r.Mount] == nil:
		a = volume.Answer{Tag: r.Tag, Err: unix.ESTALE}
	case buf != nil:
		a = c.mounts[r.Mount].do(r, (*buf)[volume.AnswerBytes:][:r.Size])
	default:
		a = c.mounts[r.Mount].do(r, nil)
	}
	if r.Op.Changes() {
		c.boot.remember(a)
	}
	// The next read will fail if the connection is broken.
	if buf != nil && a.Err == 0 {
		_ = c.send(volume.FrameAnswer(*buf, &a))
	} else {
		_ = c.answer(&a)
	}
}

// answer sends an answer.
func (c *connection) answer(a *volume.Answer) error {
	out := buffer(len(a.Data) + smallBytes/2)
	defer giveBack(out)
	return c.send(volume.AppendAnswer((*out)[:0], a))
}

// send sends a frame.
func (c *connection) send(frame []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	err := c.conn.SetWriteDeadline(time.Now().Add(answerTime))
	if err == nil {
		_, err = c.conn.Write(frame)
	}
	if err != nil {
		c.conn.Close()
	}
	return err
}

// answered returns the earlier answer to a repeated request.
func (b *boot) answered(tag uint64) (volume.Answer, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, ok := b.answers[tag]
	return a, ok
}

// remember keeps the answer to a request that must not run twice. It drops a file's data
// and lease: they do not hold for a repeat.
func (b *boot) remember(a volume.Answer) {
	if a.Data != nil {
		a.Data, a.Count = nil, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.count % remembered
	if b.count >= remembered {
		delete(b.answers, b.oldest[at])
	}
	b.answers[a.Tag], b.oldest[at] = a, a.Tag
	b.count++
}

var (
	small = sync.Pool{New: func() any { b := make([]byte, smallBytes); return &b }}
	large = sync.Pool{New: func() any { b := make([]byte, volume.Longest+smallBytes); return &b }}
)

// buffer is the function buffer; for a large one it waits while the Tenant, or all
// together, hold too many.
func (b *boot) buffer(n int) *[]byte {
	if n < 0 || n > smallBytes {
		b.disk.budgets.take(b.budget)
	}
	return buffer(n)
}

func (b *boot) giveBack(buf *[]byte) {
	if len(*buf) > smallBytes {
		b.disk.budgets.giveBack(b.budget)
	}
	giveBack(buf)
}

// buffer returns a buffer for n bytes, or the largest one.
func buffer(n int) *[]byte {
	if n >= 0 && n <= smallBytes {
		return small.Get().(*[]byte)
	}
	return large.Get().(*[]byte)
}

func giveBack(b *[]byte) {
	if len(*b) == smallBytes {
		small.Put(b)
	} else {
		large.Put(b)
	}
}
