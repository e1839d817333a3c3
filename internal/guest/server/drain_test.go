package server

import (
	"os"
	"testing"
	"time"
)

// Output that lies in a pipe when its program has ended is waited for, however late
// its reader gets its turn; an empty pipe that something holds open is not.
func TestDrained(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.WriteString("late"); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { Drained(nil, nil, r, nil); close(done) }()
	select {
	case <-done:
		t.Fatal("it did not wait for what is in the pipe")
	case <-time.After(5 * drainTime):
	}
	if _, err := r.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	<-done // although w is open
	over := make(chan struct{})
	close(over)
	w.WriteString("more")
	Drained(over, nil, r)
	Drained(nil, over, r)
	Drained(nil, nil, r) // what nobody reads is not waited for for ever
}
