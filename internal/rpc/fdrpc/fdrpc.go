// Package fdrpc carries calls between two processes of one host over a
// sequenced-packet Unix socket: JSON messages, with open files attached (SCM_RIGHTS,
// unix(7)). Calls on one connection run concurrently. Each side knows the other's
// user by SO_PEERCRED.
package fdrpc

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// maxMessage bounds one message; a longer one is refused by its sender.
	maxMessage = 1 << 20
	// maxFiles is the most files attached to one message.
	maxFiles = 8
	// socketBuffer must hold the longest message whole.
	socketBuffer = 4 << 20
)

// message is one message on the wire. A request has a Method; an answer has the
// request's ID; an event has ID 0 and a Method.
type message struct {
	ID     uint64          `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"`
	Error  *wireError      `json:"error,omitempty"`
}

type wireError struct {
	Code   sandbox.Code `json:"code"`
	Detail string       `json:"detail"`
	Cause  string       `json:"cause,omitempty"` // both ends are ours: for the other's log
	// Damaged means that the error wraps sandbox.ErrDamaged.
	Damaged bool `json:"damaged,omitempty"`
}

func toWire(err error) *wireError {
	var e *sandbox.Error
	if errors.As(err, &e) {
		w := &wireError{Code: e.Code, Detail: e.Detail, Damaged: errors.Is(err, sandbox.ErrDamaged)}
		if e.Cause != nil {
			w.Cause = e.Cause.Error()
		}
		return w
	}
	return &wireError{Code: sandbox.CodeOf(err), Detail: "the request failed", Cause: err.Error()}
}

func (w *wireError) err() error {
	e := &sandbox.Error{Code: w.Code, Detail: w.Detail}
	switch {
	case w.Damaged:
		e.Cause = fmt.Errorf("%w: %s", sandbox.ErrDamaged, strings.TrimPrefix(w.Cause, sandbox.ErrDamaged.Error()+": "))
	case w.Cause != "":
		e.Cause = errors.New(w.Cause)
	}
	return e
}

// send writes one message with files; it leaves files open. Concurrent sends
// need a lock of the caller's only when their order matters: the kernel keeps
// packets whole.
func send(c *net.UnixConn, m message, files []*os.File) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", m.Method, err)
	}
	if len(b) > maxMessage {
		return sandbox.Errorf(sandbox.TooLarge, "a message of %d bytes is longer than %d", len(b), maxMessage)
	}
	if len(files) > maxFiles {
		return fmt.Errorf("%d files beside one message", len(files))
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			if fds[i], err = descriptor(f); err != nil {
				return err
			}
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	runtime.KeepAlive(files)
	return err
}

// descriptor returns f's number without os.File.Fd, which would make the open file
// blocking for everyone who shares it.
func descriptor(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(n uintptr) { fd = int(n) })
	return fd, err
}

// receiver reads messages; it is for one goroutine.
type receiver struct {
	conn *net.UnixConn
	buf  []byte
	oob  []byte
}

func newReceiver(c *net.UnixConn) *receiver {
	return &receiver{conn: c, buf: make([]byte, 64<<10), oob: make([]byte, unix.CmsgSpace(maxFiles*4))}
}

// next returns the next message and its files, which the caller closes. An empty
// packet is the other side's end (io.EOF by the net package).
func (r *receiver) next() (message, []*os.File, error) {
	if err := r.grow(); err != nil {
		return message{}, nil, err
	}
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(r.buf, r.oob)
	if err != nil {
		return message{}, nil, err
	}
	files, err := parseRights(r.oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("a message was cut off: it is longer than this side accepts")
	}
	var m message
	if err == nil {
		err = json.Unmarshal(r.buf[:n], &m)
	}
	if err != nil {
		closeAll(files)
		return message{}, nil, err
	}
	return m, files, nil
}

// grow waits for the next packet and grows the buffer to its length, so that an idle
// connection holds little memory.
func (r *receiver) grow() error {
	raw, err := r.conn.SyscallConn()
	if err != nil {
		return err
	}
	var size int
	var peekErr error
	err = raw.Read(func(fd uintptr) bool {
		var probe [1]byte
		size, _, peekErr = unix.Recvfrom(int(fd), probe[:], unix.MSG_PEEK|unix.MSG_TRUNC)
		return peekErr != unix.EAGAIN
	})
	if err != nil {
		return err
	}
	if peekErr != nil && peekErr != unix.EINTR {
		return os.NewSyscallError("recvfrom", peekErr)
	}
	if size > maxMessage {
		return fmt.Errorf("a message of %d bytes is longer than %d", size, maxMessage)
	}
	if size > len(r.buf) {
		r.buf = make([]byte, size)
	}
	return nil
}

func parseRights(oob []byte) ([]*os.File, error) {
	controls, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, c := range controls {
		fds, err := unix.ParseUnixRights(&c)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// tune makes room for whole messages in the socket.
func tune(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		for _, o := range [][2]int{{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}, {unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}} {
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o[0], socketBuffer) != nil {
				// Without CAP_NET_ADMIN the kernel caps the size; the privileged
				// side sends the long messages.
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o[1], socketBuffer)
			}
		}
	})
}
