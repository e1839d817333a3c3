package gvisor

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

var _ sandbox.Arriver = (*Engine)(nil)

// errIncomplete says that the sentry host gave up a state that arrived.
var errIncomplete = errors.New("the sentry host has not taken the whole state")

// ArriveSaved sends the files before the pages to the sentry host, and then the pages, those
// first that the sentry host asks for.
func (e *Engine) ArriveSaved(ctx context.Context, name string, content sandbox.Arrival, arrived func(error)) (saved sandbox.Saved, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil { // rather than that the content was cancelled
			err = ctx.Err()
		}
	}()
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", name)
	}
	host, err := e.pausing(ctx, e.own)
	if err != nil {
		return sandbox.Saved{}, err
	}
	stop := context.AfterFunc(ctx, content.Cancel)
	defer stop()
	content.Prefer(0, 1)
	all := io.NewSectionReader(content, 0, content.Bytes())
	in := bufio.NewReader(all)
	proof, m, sizes, err := readProof(in)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if err := e.admitCPU(host, m.CPU); err != nil {
		return sandbox.Saved{}, err
	}
	if !m.Memory || proof.ImageBytes > 0 || len(sizes) == 0 {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Unsupported, "the saved state must be here before a sandbox starts from it")
	}
	read, _ := all.Seek(0, io.SeekCurrent) // never fails
	total := read - int64(in.Buffered())
	for _, size := range sizes {
		if total += size; total < 0 {
			break
		}
	}
	if total != content.Bytes() {
		return sandbox.Saved{}, notExported(errors.New("its sizes are wrong"))
	}
	pages := sizes[len(sizes)-1]
	small := total - pages - read + int64(in.Buffered())
	content.Prefer(read, total-pages-read)
	req := sentryhost.ImportRequest{Name: name, Proof: proof, Revoked: e.revoked()}
	if err := e.bringBuild(ctx, host, req, m); err != nil {
		return sandbox.Saved{}, err
	}
	// If ctx ends, the sentry host keeps the arrival for a while: the next call continues.
	conn, reply, err := beginArrival(ctx, host, req, io.LimitReader(in, small))
	if err != nil {
		return sandbox.Saved{}, err
	}
	if !stop() { // content ended, and the next call continues
		conn.Close()
		return sandbox.Saved{}, ctx.Err()
	}
	go func() {
		over := make(chan struct{})
		go func() {
			select {
			case <-e.closing: // the next process may continue
				conn.Close()
			case <-over:
			}
		}()
		err := sendPages(conn, content, pages, reply.Have)
		close(over)
		select {
		case <-e.closing:
			if err != nil {
				return // the next process gets the end
			}
		default:
		}
		arrived(err)
	}()
	return reply.Saved, nil
}

// beginArrival connects to the sentry host and sends the files before the pages.
func beginArrival(ctx context.Context, host *sentryhost.Client, req sentryhost.ImportRequest, small io.Reader) (_ *net.UnixConn, reply sentryhost.ArriveReply, _ error) {
	conn, theirs, err := connected()
	if err != nil {
		return nil, reply, err
	}
	answered := make(chan error, 1)
	go func() {
		var err error
		reply, err = host.Arrive(ctx, req, theirs)
		theirs.Close()
		if err != nil {
			conn.Close() // so that the sending ends
		}
		answered <- err
	}()
	sent := copyAll(ctx, refusing{conn}, small, make([]byte, carried))
	if sent != nil {
		conn.Close()
	}
	err = <-answered
	switch {
	case sent != nil && !errors.Is(sent, errRefused):
		err = sent
	case err == nil:
		err = sent
	}
	if err != nil {
		conn.Close()
		return nil, reply, err
	}
	return conn, reply, nil
}

// connected returns the two ends of a connection.
func connected() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "arrival"), os.NewFile(uintptr(fds[1]), "arrival")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("connect to the sentry host: %w", err)
	}
	return c.(*net.UnixConn), theirs, nil
}

// sendPages sends the last size bytes of content, except the pieces of have, and waits until
// the sentry host has made the state.
func sendPages(conn *net.UnixConn, content sandbox.Arrival, size int64, have []byte) error {
	var sending sync.WaitGroup
	defer sending.Wait()
	defer conn.Close()
	defer content.Cancel() // so that the reads of the senders end
	s := &pageSender{conn: conn, content: content, at: content.Bytes() - size, size: size, sent: map[int64]bool{}}
	pieces := (size + sentryhost.PieceBytes - 1) / sentryhost.PieceBytes
	for i := range pieces {
		if int(i/8) < len(have) && have[i/8]&(1<<(i%8)) != 0 {
			s.sent[i] = true
		}
	}
	failed := make(chan error, 1)
	sending.Go(func() { // in order, for the pieces that the sentry host does not ask for
		for i := range pieces {
			if err := s.send(i); err != nil {
				failed <- err
				s.giveUp()
				return
			}
		}
	})
	wanted := newWanted(pieces)
	defer wanted.end()
	for range wantedAtATime {
		sending.Go(func() {
			for i, ok := wanted.next(); ok; i, ok = wanted.next() {
				content.Prefer(s.at+i*sentryhost.PieceBytes, sentryhost.PieceBytes)
				if s.send(i) != nil {
					return // the sender in order meets the same error
				}
			}
		})
	}
	in := bufio.NewReader(conn)
	for {
		var piece uint32
		if err := binary.Read(in, binary.LittleEndian, &piece); err != nil {
			select {
			case err = <-failed:
			default:
			}
			return fmt.Errorf("%w: %w", errIncomplete, err)
		}
		switch {
		case piece == sentryhost.ArriveEnd:
			return nil
		case int64(piece) < pieces:
			wanted.add(int64(piece))
		}
	}
}

// wantedAtATime is how many pieces that reads wait for are awaited at a time, with a buffer
// each.
const wantedAtATime = 8

// wanted are the pieces that reads wait for. A piece is asked for once on a connection.
type wanted struct{ pieces chan int64 }

func newWanted(pieces int64) wanted { return wanted{make(chan int64, pieces)} }

// add adds a piece. One that does not fit was asked for before.
func (w wanted) add(piece int64) {
	select {
	case w.pieces <- piece:
	default:
	}
}

func (w wanted) next() (piece int64, ok bool) {
	piece, ok = <-w.pieces
	return piece, ok
}

func (w wanted) end() { close(w.pieces) }

// AwaitArrival asks the sentry host, which ends the Boot if the rest does not arrive.
func (e *Engine) AwaitArrival(ctx context.Context, id string) error {
	b, err := e.find(id)
	if err != nil {
		return err
	}
	host, err := b.host.connected(ctx)
	if err != nil {
		return err
	}
	if err := host.Arrived(ctx, id); !errors.Is(err, sandbox.Unsupported) { // of a build that starts from whole states only
		return err
	}
	return nil
}

// pageSender sends pieces. Its methods are called concurrently.
type pageSender struct {
	conn     *net.UnixConn
	content  sandbox.Arrival
	at, size int64 // where the pages are in content

	mu   sync.Mutex // held while a piece is written
	sent map[int64]bool
}

// send sends a piece unless it was sent. It waits until content has it.
func (s *pageSender) send(piece int64) error {
	s.mu.Lock()
	sent := s.sent[piece]
	s.mu.Unlock()
	if sent {
		return nil
	}
	off := piece * sentryhost.PieceBytes
	const index = 4
	b := make([]byte, index+min(sentryhost.PieceBytes, s.size-off))
	if n, err := s.content.ReadAt(b[index:], s.at+off); err != nil && (err != io.EOF || n < len(b)-index) {
		return err
	}
	binary.LittleEndian.PutUint32(b, uint32(piece))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent[piece] {
		return nil
	}
	s.sent[piece] = true
	_, err := s.conn.Write(b)
	return err
}

// giveUp says that the rest will not come, and closes the connection.
func (s *pageSender) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = binary.Write(s.conn, binary.LittleEndian, sentryhost.ArriveEnd)
	s.conn.Close()
}
