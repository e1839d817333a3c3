package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
	runscboot "gvisor.dev/gvisor/runsc/boot"
)

const (
	// waitDialTimeout bounds the connect to a sentry, to wait for the end of its Guest.
	waitDialTimeout = 10 * time.Second
	// waitAnswerTimeout bounds the wait for the answer of a sentry that has ended.
	waitAnswerTimeout = 10 * time.Second
	// maxWaitAnswer bounds the answer, in bytes.
	maxWaitAnswer = 4 << 10
)

// guestWait is a sentry's answer to a wait for the end of its Guest. A sentry whose Guest
// has ended answers before it ends itself, and a sentry that dies before its Guest does
// not answer. So it distinguishes guest_exit from engine_lost for any exit status of the
// Guest, and also if the sentry is not our child.
type guestWait struct {
	conn   net.Conn
	heard  chan struct{} // closed after the answer or the end of the connection
	status unix.WaitStatus
	err    error // why status is not known; set, like status, before heard is closed
}

// startGuestWait asks the sentry of b, which has a Guest, to answer when the Guest ends. It
// costs no thread.
func (h *Host) startGuestWait(b *boot) error {
	conn, err := net.DialTimeout("unix", b.record.Socket, waitDialTimeout)
	if err != nil {
		return fmt.Errorf("reach the sentry: %w", err)
	}
	call, err := json.Marshal(map[string]any{"method": runscboot.ContMgrWait, "arg": b.record.name()})
	if err == nil {
		_, err = conn.Write(call)
	}
	if err != nil {
		conn.Close()
		return fmt.Errorf("ask the sentry for the end of its guest: %w", err)
	}
	w := &guestWait{conn: conn, heard: make(chan struct{})}
	b.guestWait.Store(w)
	h.wg.Go(func() {
		defer close(w.heard)
		defer conn.Close()
		w.status, w.err = readGuestEnd(conn)
	})
	return nil
}

// readGuestEnd reads the answer that a sentry gives when its Guest ends.
func readGuestEnd(from io.Reader) (unix.WaitStatus, error) {
	var answer struct {
		Success bool
		Err     string
		Result  *uint32
	}
	if err := json.NewDecoder(io.LimitReader(from, maxWaitAnswer)).Decode(&answer); err != nil {
		return 0, err
	}
	if !answer.Success || answer.Result == nil {
		return 0, errors.New("the sentry does not know: " + answer.Err)
	}
	return unix.WaitStatus(*answer.Result), nil
}

// guestEnded returns how the Guest ended in a sentry that is gone; false if the sentry
// ended first, or it is not known.
func (b *boot) guestEnded() (how string, ok bool) {
	w := b.guestWait.Load()
	if w == nil {
		return "", false
	}
	_ = w.conn.SetReadDeadline(time.Now().Add(waitAnswerTimeout)) // fails when the connection is closed already
	<-w.heard
	if w.err != nil {
		return "", false
	}
	return howEnded(w.status, true), true
}
