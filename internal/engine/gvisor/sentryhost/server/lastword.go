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
	// wordDial bounds the connect to a sentry that is asked for the end of its Guest.
	wordDial = 10 * time.Second
	// wordTime is how long what a sentry said before it ended may still be on its way.
	wordTime = 10 * time.Second
	// maxWord bounds the answer, in bytes.
	maxWord = 4 << 10
)

// lastWord is the answer of a sentry that was asked to tell when the Guest ends. A
// sentry whose Guest has ended gives it before it ends itself, and one that dies
// before its Guest gives none: so it tells guest_exit from engine_lost, whatever the
// exit status of the Guest is, and also where the sentry is not our child.
type lastWord struct {
	conn   net.Conn
	heard  chan struct{} // closed once there is an answer or the connection has ended
	status unix.WaitStatus
	err    error // why there is no status; set, as status, before heard is closed
}

// askLastWord has the sentry of b, in which a Guest is, tell when that ends. It costs
// no thread.
func (h *Host) askLastWord(b *boot) error {
	conn, err := net.DialTimeout("unix", b.record.Socket, wordDial)
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
	w := &lastWord{conn: conn, heard: make(chan struct{})}
	b.word.Store(w)
	h.wg.Go(func() {
		defer close(w.heard)
		defer conn.Close()
		w.status, w.err = readWord(conn)
	})
	return nil
}

// readWord reads the answer that comes with the end of a Guest.
func readWord(from io.Reader) (unix.WaitStatus, error) {
	var answer struct {
		Success bool
		Err     string
		Result  *uint32
	}
	if err := json.NewDecoder(io.LimitReader(from, maxWord)).Decode(&answer); err != nil {
		return 0, err
	}
	if !answer.Success || answer.Result == nil {
		return 0, errors.New("the sentry does not know: " + answer.Err)
	}
	return unix.WaitStatus(*answer.Result), nil
}

// guestEnded returns how the Guest ended in a sentry that is gone; false if the sentry
// ended before it, or nobody knows.
func (b *boot) guestEnded() (how string, ok bool) {
	w := b.word.Load()
	if w == nil {
		return "", false
	}
	_ = w.conn.SetReadDeadline(time.Now().Add(wordTime)) // fails when all is heard
	<-w.heard
	if w.err != nil {
		return "", false
	}
	return howEnded(w.status, true), true
}
