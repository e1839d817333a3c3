package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// newTestArrival returns an arrival of pages, of which none are here.
func newTestArrival(t *testing.T, size int64) *arrival {
	t.Helper()
	f, err := os.Create(t.TempDir() + "/pages")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	a := &arrival{m: &sentryhost.Manifest{Name: "s"}, draft: &draft{files: []*os.File{f}}, pages: newLatePages(f, size), conns: make(chan *arrivalConn, 1)}
	a.quit, a.stop = context.WithCancel(t.Context())
	return a
}

// connectArrival gives an arrival a connection, and returns the server's end and how the
// taking ends.
func connectArrival(t *testing.T, a *arrival) (net.Conn, <-chan error) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { ends[i].Close() })
	}
	took := make(chan error, 1)
	conn := newArrivalConn(ends[1].(*net.UnixConn))
	go func() { took <- a.take(conn) }()
	return ends[0], took
}

func sendPiece(t *testing.T, to net.Conn, piece uint32, content []byte) {
	t.Helper()
	if _, err := to.Write(append(binary.LittleEndian.AppendUint32(nil, piece), content...)); err != nil {
		t.Error(err)
	}
}

// Pieces may come in any order and twice. What reads wait for is asked for once, on each
// connection.
func TestTakePieces(t *testing.T) {
	const size = 2*sentryhost.PieceBytes + 100
	all := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(all)
	a := newTestArrival(t, size)
	server, took := connectArrival(t, a)
	sendPiece(t, server, 1, all[sentryhost.PieceBytes:2*sentryhost.PieceBytes])
	sendPiece(t, server, 1, make([]byte, sentryhost.PieceBytes)) // it is not replaced
	read := make(chan error, 2)
	for range 2 {
		go func() { read <- a.pages.Await(t.Context(), 2*sentryhost.PieceBytes-100, 200) }()
	}
	var piece uint32
	if err := binary.Read(server, binary.LittleEndian, &piece); err != nil || piece != 2 {
		t.Errorf("piece %d is asked for, %v", piece, err)
	}
	server.Close()
	if err := <-took; !errors.Is(err, errCut) {
		t.Errorf("after the connection was closed: %v", err)
	}
	if have := a.pages.have(); !bytes.Equal(have, []byte{2}) {
		t.Errorf("it has %b", have)
	}
	server, took = connectArrival(t, a)
	if err := binary.Read(server, binary.LittleEndian, &piece); err != nil || piece != 2 {
		t.Errorf("piece %d is asked for again, %v", piece, err)
	}
	sendPiece(t, server, 2, all[2*sentryhost.PieceBytes:])
	for range 2 {
		if err := <-read; err != nil {
			t.Error(err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.pages.Await(gone, 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("a read that was given up: %v", err)
	}
	sendPiece(t, server, 0, all[:sentryhost.PieceBytes])
	if err := <-took; err != nil {
		t.Error(err)
	}
	got := make([]byte, size)
	if n, err := a.pages.ReadAt(got, 0); n != size || err != nil || !slices.Equal(got, all) {
		t.Errorf("other bytes, %v", err)
	}
}

// A server that sends what is no piece, or that the rest will not come, ends the arrival, and
// every read that waits.
func TestTakeWrongPieces(t *testing.T) {
	for name, send := range map[string]func(t *testing.T, to net.Conn){
		"a piece that does not exist": func(t *testing.T, to net.Conn) { sendPiece(t, to, 3, nil) },
		"the largest number":          func(t *testing.T, to net.Conn) { sendPiece(t, to, sentryhost.ArriveEnd-1, nil) },
		"the end":                     func(t *testing.T, to net.Conn) { sendPiece(t, to, sentryhost.ArriveEnd, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newTestArrival(t, 3*sentryhost.PieceBytes)
			server, took := connectArrival(t, a)
			send(t, server)
			err := <-took
			if err == nil || errors.Is(err, errCut) {
				t.Fatalf("it is taken: %v", err)
			}
			read := make(chan error, 1)
			go func() { read <- a.pages.Await(t.Context(), 0, 1) }()
			a.pages.fail(err)
			select {
			case got := <-read:
				if !errors.Is(got, err) {
					t.Errorf("a read: %v", got)
				}
			case <-time.After(10 * time.Second):
				t.Error("a read still waits after the arrival failed")
			}
		})
	}
}

// What nothing needs ends at once, also while its server sends nothing.
func TestArrivalIsGivenUp(t *testing.T) {
	a := newTestArrival(t, 3*sentryhost.PieceBytes)
	h := &Host{arrivals: map[string]*arrival{"s": a}}
	_, took := connectArrival(t, a)
	a.users = 2 // it, and a boot
	h.unwant("s")
	if a.quit.Err() != nil {
		t.Error("it ended while a boot needs it")
	}
	if from, err := h.originOf(a); from != nil || err != nil {
		t.Errorf("another boot starts: %v", err)
	}
	h.leave(a)
	select {
	case err := <-took:
		if err == nil {
			t.Error("it is taken")
		}
	case <-time.After(10 * time.Second):
		t.Error("it is not given up")
	}
	h.unwant("another")
	if err := h.awaitArrival(t.Context(), "another"); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.awaitArrival(ended, "s"); !errors.Is(err, context.Canceled) {
		t.Errorf("awaitArrival: %v", err)
	}
}
