package server

import (
	"os"
	"testing"
	"time"
)

// tapped is a pipe with a tap.
func tapped(t *testing.T) (*Tap, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return NewTap(r, readSize), w
}

// draining is closed when Drained returns.
func draining(read, stop <-chan struct{}, taps ...*Tap) <-chan struct{} {
	done := make(chan struct{})
	go func() { Drained(read, stop, taps...); close(done) }()
	return done
}

func stillDraining(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
		t.Fatalf("it did not wait for %s", what)
	case <-time.After(5 * drainTime):
	}
}

// Output that lies in a pipe when its program has ended is waited for, however late
// its reader gets its turn, and until it was passed on, however long that takes; an
// empty pipe that something holds open is not.
func TestDrained(t *testing.T) {
	late, w := tapped(t)
	if _, err := w.WriteString("late"); err != nil {
		t.Fatal(err)
	}
	empty, _ := tapped(t)
	done := draining(nil, nil, empty, late)
	stillDraining(t, done, "what is in the pipe")
	taking, taken := make(chan string), make(chan struct{})
	go late.Run(func(b []byte) { taking <- string(b); <-taken })
	if got := <-taking; got != "late" {
		t.Errorf("passed on is %q", got)
	}
	stillDraining(t, done, "what its reader has not passed on")
	close(taken)
	<-done // although the pipes are open
}

// What something writes that a program left behind is not waited for, even if it
// never ceases.
func TestDrainedOfEndlessOutput(t *testing.T) {
	tap, w := tapped(t)
	go func() {
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}()
	flowing := make(chan struct{}, 1)
	go tap.Run(func([]byte) {
		select {
		case flowing <- struct{}{}:
		default:
		}
	})
	<-flowing
	Drained(nil, nil, tap)
}

func TestDrainedIsToldOfTheEnd(t *testing.T) {
	tap, w := tapped(t)
	if _, err := w.WriteString("more"); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	close(over)
	Drained(over, nil, tap)
	Drained(nil, over, tap)
}

// A tap reads a file whose reads wait, as a terminal's do, as well as another, and
// holds up nobody meanwhile.
func TestTapOfWhatBlocks(t *testing.T) {
	tap, w := tapped(t)
	tap.file.Fd() // which makes it wait
	came, over := make(chan string), make(chan struct{})
	go func() { tap.Run(func(b []byte) { came <- string(b) }); close(over) }()
	for _, text := range []string{"one", "two"} {
		Drained(nil, nil, tap)
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if got := <-came; got != text {
			t.Errorf("it read %q, want %q", got, text)
		}
	}
	w.Close()
	<-over
}
