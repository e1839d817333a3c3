package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	runscboot "gvisor.dev/gvisor/runsc/boot"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost/server/latefile"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A state that is fetched from elsewhere can be started from before all of it is here. Its
// description comes first, and is verified as any import. The pages, which are the memory
// and files of the guest, arrive while the sentry that restores them runs: it reads them
// through a latefile, whose reads wait. The pieces that reads wait for are asked for first.
// The pages are verified once all are here, and only then the state gets its name on the
// disk. See docs/adr/0051-memory-that-arrives-later.md.

// reconnectWait is how long an arrival waits for a server that continues to send, after the
// connection to the former one ended.
const reconnectWait = 2 * time.Minute

// silenceLimit bounds the time in which no piece comes.
const silenceLimit = 10 * time.Minute

// stuckLimit bounds the last words to a server that does not read.
const stuckLimit = 5 * time.Second

// errCut says that the connection on which a state arrives ended early.
var errCut = errors.New("the server that sent the saved state is gone")

// arrival is a state that arrives.
type arrival struct {
	m     *sentryhost.Manifest
	raw   []byte // the Manifest, as it will be on the disk
	sum   []byte // SHA-256 of the pages
	draft *draft
	small []*os.File // its files but the pages
	pages *latePages
	late  *latefile.File

	conns   chan *arrivalConn // the next connection
	quit    context.Context   // ends when nothing needs the arrival
	stop    context.CancelFunc
	checked chan struct{} // closed when all pages are here and verified, or will never be; then:
	err     error         // nil: they are
	done    chan struct{} // closed at the end, when the state has its name or is gone

	// Guarded by Host.mu.
	users    int          // Boots that may still read it, starts in progress, and 1 until it is done
	unwanted bool         // the state was deleted meanwhile
	conn     *arrivalConn // the latest connection
	cut      bool         // that connection has ended
}

// arrivalConn is a connection on which pieces arrive.
type arrivalConn struct {
	*net.UnixConn
	in *bufio.Reader
}

// arrive makes a state from the bytes of a connection, and returns when a Boot can start
// from it. A second call for a state that still arrives continues with another connection.
func (h *Host) arrive(ctx context.Context, r sentryhost.ImportRequest, req *fdrpc.Request) (reply sentryhost.ArriveReply, err error) {
	if !sandbox.ValidSnapshotID(r.Name) {
		return reply, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", r.Name)
	}
	conn, err := takeConn(req)
	if err != nil {
		return reply, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if h.noArrivals != nil {
		return reply, sandbox.Errorf(sandbox.Unsupported, "this host cannot start from a saved state that still arrives").WithCause(h.noArrivals)
	}
	m, err := h.believe(r)
	if err != nil {
		return reply, err
	}
	if err := h.hasImage(m.Image); err != nil {
		return reply, err
	}
	build, err := h.homeOf(m)
	if err != nil {
		return reply, err
	}
	if build != "" || !m.Memory || r.Proof.ImageBytes > 0 || m.Files[len(m.Files)-1].Bytes == 0 {
		return reply, sandbox.Errorf(sandbox.Unsupported, "the saved state %s must be here before a sandbox starts from it", r.Name)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return reply, err
	}
	unlock, a, err := h.lockArrival(ctx, r.Name)
	if err != nil {
		return reply, err
	}
	defer unlock()
	if a != nil {
		return h.continueArrival(a, raw, conn)
	}
	if _, err := os.Lstat(h.savedDir(r.Name)); !errors.Is(err, fs.ErrNotExist) {
		return reply, sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", r.Name).WithCause(err)
	}
	d, err := h.newDraft(m, bytesOf(m), 0)
	if err != nil {
		return reply, err
	}
	d.layer = m.Files[len(m.Files)-1].Layer
	a, err = h.newArrival(d, raw, r.Proof.Sums, conn)
	if err != nil {
		d.discard()
		return reply, err
	}
	h.mu.Lock()
	h.arrivals[r.Name] = a
	h.mu.Unlock()
	h.wg.Go(func() { h.receive(a) })
	return sentryhost.ArriveReply{Saved: savedOf(m, raw)}, nil
}

// lockArrival locks the name of a state, and returns its arrival, if it arrives. It waits for
// the end of one that nothing needs any more.
func (h *Host) lockArrival(ctx context.Context, name string) (unlock func(), a *arrival, err error) {
	for {
		unlock := h.lockName(name)
		a := h.arrivalOf(name)
		if a == nil || a.quit.Err() == nil {
			return unlock, a, nil
		}
		unlock()
		if err := a.wait(ctx); err != nil {
			return nil, nil, err
		}
	}
}

// wait waits for the end of an arrival.
func (a *arrival) wait(ctx context.Context) error {
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeConn returns the connection that comes with a request.
func takeConn(req *fdrpc.Request) (*arrivalConn, error) {
	f, err := req.TakeFile(0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("take the connection of a saved state: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, sandbox.Errorf(sandbox.Invalid, "a saved state arrives on a unix connection")
	}
	return newArrivalConn(conn), nil
}

func newArrivalConn(c *net.UnixConn) *arrivalConn { return &arrivalConn{c, bufio.NewReader(c)} }

// newArrival reads the files before the pages, and prepares the reading of the pages.
func (h *Host) newArrival(d *draft, raw []byte, sums [][]byte, conn *arrivalConn) (a *arrival, err error) {
	last := len(d.files) - 1
	if err := d.fillFiles(conn.in, sums[:last]); err != nil {
		return nil, err
	}
	own, err := os.Open(d.pages().Name()) // the draft closes its files
	if err != nil {
		return nil, err
	}
	m := *d.m // the draft changes its own
	a = &arrival{
		m: &m, raw: raw, sum: sums[last], draft: d, pages: newLatePages(own, d.m.Files[last].Bytes),
		conns: make(chan *arrivalConn, 1), checked: make(chan struct{}), done: make(chan struct{}), conn: conn, users: 1,
	}
	a.late, err = latefile.New(a.pages, a.pages.size)
	if err != nil {
		own.Close()
		return nil, err
	}
	h.wg.Go(func() {
		a.late.Wait()
		own.Close()
	})
	for _, f := range d.files[:last] {
		in, err := os.Open(f.Name())
		if err != nil {
			a.release()
			return nil, err
		}
		a.small = append(a.small, in)
	}
	a.quit, a.stop = context.WithCancel(context.Background())
	a.conns <- conn
	return a, nil
}

// release closes the files that new starts need. Boots that read the pages keep running.
func (a *arrival) release() {
	closeAll(a.small)
	a.late.Close()
}

// fillFiles writes the first files of a draft from a connection, whose content must match
// sums.
func (d *draft) fillFiles(in io.Reader, sums [][]byte) error {
	for i, want := range sums {
		if err := d.fillFile(i, in, want); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) arrivalOf(name string) *arrival {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.arrivals[name]
}

// continueArrival gives an arrival another connection, and says which pieces it has.
func (h *Host) continueArrival(a *arrival, raw []byte, conn *arrivalConn) (reply sentryhost.ArriveReply, err error) {
	if !bytes.Equal(raw, a.raw) {
		return reply, sandbox.Errorf(sandbox.Conflict, "another state arrives as %s", a.m.Name)
	}
	skip := int64(0)
	for _, f := range a.m.Files[:len(a.m.Files)-1] {
		skip += f.Bytes
	}
	if _, err := io.CopyN(io.Discard, conn.in, skip); err != nil {
		return reply, notExported(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.arrivals[a.m.Name] != a {
		return reply, sandbox.Errorf(sandbox.Conflict, "the saved state %s has arrived", a.m.Name)
	}
	a.conn.Close()
	a.conn, a.cut = conn, false
	select {
	case old := <-a.conns:
		old.Close()
	default:
	}
	a.conns <- conn
	return sentryhost.ArriveReply{Saved: savedOf(a.m, a.raw), Have: a.pages.have()}, nil
}

// receive takes pieces until all are here, and makes the state. If they do not come, the
// Boots that need them end.
func (h *Host) receive(a *arrival) {
	err := a.takeAll(func(conn *arrivalConn) { h.cutOff(a, conn) })
	if err == nil {
		err = a.verify()
	}
	if err != nil {
		h.loseMemory(a)
		a.pages.fail(err)
	}
	a.err = err
	close(a.checked) // the Boots that started from it are decided on
	func() {
		defer h.lockName(a.m.Name)()
		h.mu.Lock()
		unwanted := a.unwanted
		h.mu.Unlock()
		switch {
		case err == nil && !unwanted:
			_, err = a.draft.finish()
			if err != nil {
				a.draft.discard()
			}
		default:
			a.draft.discard()
			err = cmp.Or(err, errDeleted)
		}
		h.mu.Lock()
		delete(h.arrivals, a.m.Name)
		h.mu.Unlock()
	}()
	if err != nil {
		h.log.Warn("a saved state did not arrive", telemetry.KeySnapshot, a.m.Name, telemetry.KeyError, err)
	}
	a.stop()
	close(a.done)
	h.mu.Lock()
	conn := a.conn
	h.mu.Unlock()
	h.leave(a)
	if err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(stuckLimit))
		_ = binary.Write(conn, binary.LittleEndian, sentryhost.ArriveEnd)
	}
	conn.Close()
}

// errDeleted says that a state was deleted while it arrived.
var errDeleted = errors.New("the saved state was deleted")

// loseMemory notes that the Boots which started from an arrival do not get the rest of their
// memory. That is the cause of their end, even if their sentries end first.
func (h *Host) loseMemory(a *arrival) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.boots {
		if b.arrives.Load() == a {
			b.unfit = true
		}
	}
}

// cutOff notes that the latest connection of an arrival has ended.
func (h *Host) cutOff(a *arrival, conn *arrivalConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.cut = a.cut || a.conn == conn
}

// stopUnused stops an arrival that no Boot needs and no server continues; false if it stays.
func (h *Host) stopUnused(a *arrival) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	unused := a.users == 1 && a.cut
	if unused {
		a.stop()
	}
	return unused
}

// takeAll takes pieces, from one connection after the other.
func (a *arrival) takeAll(cut func(*arrivalConn)) error {
	for {
		timer := time.NewTimer(reconnectWait)
		select {
		case conn := <-a.conns:
			timer.Stop()
			err := a.take(conn)
			if !errors.Is(err, errCut) {
				return err
			}
			cut(conn)
		case <-timer.C:
			return errCut
		case <-a.quit.Done():
			timer.Stop()
			return errors.New("it was given up")
		}
	}
}

// take takes pieces from a connection until all are here. Meanwhile it asks for the pieces that
// reads wait for.
func (a *arrival) take(conn *arrivalConn) error {
	defer context.AfterFunc(a.quit, func() { conn.Close() })()
	wants := a.pages.listen()
	asking := make(chan struct{})
	var asks sync.WaitGroup
	asks.Go(func() {
		for {
			select {
			case piece := <-wants:
				if err := binary.Write(conn, binary.LittleEndian, uint32(piece)); err != nil {
					return // take notices as well
				}
			case <-asking:
				return
			}
		}
	})
	defer asks.Wait()
	defer close(asking)
	defer func() { _ = conn.SetWriteDeadline(time.Now().Add(stuckLimit)) }() // of the last question
	buf := make([]byte, sentryhost.PieceBytes)
	for !a.pages.whole() {
		if err := conn.SetReadDeadline(time.Now().Add(silenceLimit)); err != nil {
			return fmt.Errorf("%w: %w", errCut, err)
		}
		var piece uint32
		if err := binary.Read(conn.in, binary.LittleEndian, &piece); err != nil {
			return fmt.Errorf("%w: %w", errCut, err)
		}
		if piece == sentryhost.ArriveEnd {
			return errors.New("the server cannot get the rest of it")
		}
		n := a.pages.bytesOf(int(piece))
		if n == 0 {
			return notExported(fmt.Errorf("it has no piece %d", piece))
		}
		if _, err := io.ReadFull(conn.in, buf[:n]); err != nil {
			return fmt.Errorf("%w: %w", errCut, err)
		}
		if a.pages.has(int(piece)) {
			continue
		}
		if _, err := a.draft.pages().WriteAt(buf[:n], int64(piece)*sentryhost.PieceBytes); err != nil {
			return noRoom(err)
		}
		a.pages.arrived(int(piece))
	}
	return nil
}

// verify compares the pages with the checksum that their host signed.
func (a *arrival) verify() error {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(a.pages.file, 0, a.pages.size)); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), a.sum) {
		return notExported(errors.New("its pages do not match their hash"))
	}
	return nil
}

// originOf returns an arrival as the beginning of a Boot; nil if it is over.
func (h *Host) originOf(a *arrival) (*origin, error) {
	h.mu.Lock()
	if h.arrivals[a.m.Name] != a || a.unwanted {
		h.mu.Unlock()
		return nil, nil
	}
	if a.over() {
		h.mu.Unlock()
		return nil, a.notArrived()
	}
	a.users++
	h.mu.Unlock()
	from := &origin{Manifest: *a.m, verified: func() error { return nil }, done: func() { h.leave(a) }, arrives: a}
	for _, f := range a.small {
		in, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // with an offset of its own
		if err != nil {
			from.close()
			return nil, err
		}
		from.files = append(from.files, in)
	}
	pages, err := a.late.Open()
	if err != nil {
		from.close()
		return nil, err
	}
	from.files = append(from.files, pages)
	return from, nil
}

// over reports whether the arrival has failed or was given up, so that the rest will never be
// here.
func (a *arrival) over() bool {
	a.pages.mu.Lock()
	defer a.pages.mu.Unlock()
	return a.pages.failed != nil || a.pages.left > 0 && a.quit.Err() != nil
}

// notArrived is the error of a start that needs an arrival that failed, or ends. It may be tried again:
// the caller of arrive decides from where it is fetched.
func (a *arrival) notArrived() *sandbox.Error {
	return sandbox.Errorf(sandbox.Unavailable, "the saved state %s did not arrive: try again", a.m.Name)
}

// leave ends the use of an arrival. One that nothing needs any more ends.
func (h *Host) leave(a *arrival) {
	h.mu.Lock()
	a.users--
	given, unused := a.unwanted && a.users == 1, a.users == 0
	h.mu.Unlock()
	if given {
		a.stop()
	}
	if unused {
		a.release() // before, a start may be opening the files
	}
}

// unwant notes that a state was deleted while it arrives. The caller holds its name.
func (h *Host) unwant(name string) {
	h.mu.Lock()
	a := h.arrivals[name]
	over := false
	if a != nil {
		a.unwanted = true
		over = a.users == 1
	}
	h.mu.Unlock()
	if over {
		a.stop()
	}
}

// awaitArrival waits until a state does not arrive any more.
func (h *Host) awaitArrival(ctx context.Context, name string) error {
	a := h.arrivalOf(name)
	if a == nil {
		return nil
	}
	return a.wait(ctx)
}

// noteArrived waits in the background until a Boot has read all of the state that arrives
// for it and all was verified, and ends the Boot otherwise.
func (h *Host) noteArrived(b *boot, a *arrival) {
	if a == nil {
		return
	}
	h.mu.Lock()
	a.users++
	h.mu.Unlock()
	h.wg.Go(func() {
		defer h.leave(a)
		select {
		case <-a.checked:
		case <-b.gone:
			return
		}
		err := a.err
		if err == nil {
			err = awaitRestore(b)
		}
		if err == nil {
			h.change(b, func(r *record) { r.Arriving = false })
			b.arrives.Store(nil)
			if err := h.writeRecord(b); err != nil && !errors.Is(err, sandbox.NotFound) {
				h.log.Error("recording that the memory of a boot has arrived failed: it ends with this sentry host", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
			}
			return
		}
		h.mu.Lock()
		over := b.stopping || !b.running
		b.unfit = true // it may have started after loseMemory
		h.mu.Unlock()
		if !over {
			h.log.Warn("ending a boot: its memory did not arrive as it was saved", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
			h.kill(b)
		}
	})
}

// isWhole returns Unavailable for a Boot that started from a state of which not all is here and
// verified. Such a Boot can neither be frozen nor saved.
func (h *Host) isWhole(b *boot) error {
	a := b.arrives.Load()
	if a == nil {
		return nil
	}
	select {
	case <-a.checked:
		if a.err == nil { // a read of the rest waits for the disk alone
			return nil
		}
	default:
	}
	return sandbox.Errorf(sandbox.Unavailable, "the memory of %s still arrives", b.record.ID)
}

// arrived waits until all of the state that a Boot started from is here.
func (h *Host) arrived(ctx context.Context, id string) error {
	b, err := h.find(id)
	if err != nil {
		return err
	}
	a := b.arrives.Load()
	if a == nil {
		return nil
	}
	select {
	case <-a.checked:
		if a.err == nil {
			return nil
		}
	case <-b.gone:
	case <-ctx.Done():
		return ctx.Err()
	}
	return sandbox.Errorf(sandbox.Unavailable, "the memory of %s did not arrive", b.record.ID)
}

// awaitRestore waits until the sentry of a Boot has read everything that it restores. The error
// is the sentry's, or nil if the sentry has ended.
func awaitRestore(b *boot) error {
	for {
		rpc, err := client.ConnectTo(b.record.Socket)
		if err == nil {
			err = rpc.Call(runscboot.ContMgrWaitRestore, nil, nil)
			rpc.Close()
		}
		var refused urpc.RemoteError
		if err == nil || errors.As(err, &refused) {
			return err
		}
		select {
		case <-b.gone:
			return nil
		case <-time.After(time.Second): // it cannot be asked now
		}
	}
}

// latePages are the pages of a state that arrives. They are the Content of a latefile.
type latePages struct {
	file *os.File
	size int64 // in bytes, at least 1

	mu     sync.Mutex
	there  []bool // by piece
	left   int    // pieces that have not arrived
	waits  map[int]chan struct{}
	wants  chan int // pieces that reads wait for
	failed error
}

func newLatePages(file *os.File, size int64) *latePages {
	n := int((size + sentryhost.PieceBytes - 1) / sentryhost.PieceBytes)
	return &latePages{file: file, size: size, there: make([]bool, n), left: n, waits: map[int]chan struct{}{}, wants: make(chan int, n)}
}

// Await implements latefile.Content.
func (p *latePages) Await(ctx context.Context, off, n int64) error {
	for piece := off / sentryhost.PieceBytes; piece*sentryhost.PieceBytes < off+n; piece++ {
		if err := p.await(ctx, int(piece)); err != nil {
			return err
		}
	}
	return nil
}

// ReadAt implements latefile.Content.
func (p *latePages) ReadAt(b []byte, off int64) (int, error) { return p.file.ReadAt(b, off) }

func (p *latePages) await(ctx context.Context, piece int) error {
	p.mu.Lock()
	if p.there[piece] || p.failed != nil {
		defer p.mu.Unlock()
		return p.missing(piece)
	}
	wait := p.waits[piece]
	if wait == nil {
		wait = make(chan struct{})
		p.waits[piece] = wait
		p.wants <- piece // it has room for each piece once
	}
	p.mu.Unlock()
	select {
	case <-wait:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.missing(piece)
}

// missing returns why a piece has not arrived; nil if it has. The caller holds mu.
func (p *latePages) missing(piece int) error {
	if p.there[piece] {
		return nil
	}
	return p.failed
}

// listen returns the pieces that reads wait for, now and later.
func (p *latePages) listen() <-chan int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wants = make(chan int, len(p.there))
	for piece := range p.waits {
		p.wants <- piece
	}
	return p.wants
}

// bytesOf is the size of a piece; zero if the state has no such piece.
func (p *latePages) bytesOf(piece int) int64 {
	at := int64(piece) * sentryhost.PieceBytes
	if piece < 0 || at >= p.size {
		return 0
	}
	return min(sentryhost.PieceBytes, p.size-at)
}

func (p *latePages) has(piece int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there[piece]
}

// have returns a bit for each piece that has arrived.
func (p *latePages) have() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	bits := make([]byte, (len(p.there)+7)/8)
	for i, there := range p.there {
		if there {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return bits
}

func (p *latePages) whole() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left == 0
}

// arrived notes that a piece was written.
func (p *latePages) arrived(piece int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.there[piece] = true
	p.left--
	p.wake(piece)
}

// wake wakes the reads that wait for a piece. The caller holds mu.
func (p *latePages) wake(piece int) {
	if wait := p.waits[piece]; wait != nil {
		close(wait)
		delete(p.waits, piece)
	}
}

// fail fails all reads of pieces that have not arrived.
func (p *latePages) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
	for piece := range p.waits {
		p.wake(piece)
	}
}
