package spool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// read reads all of a Spool through its Reader.
func read(t *testing.T, s *Spool) []byte {
	t.Helper()
	all, err := io.ReadAll(s.Reader())
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return all
}

// Written bytes are read back, from memory, from the file and across both. The folder
// never shows a file.
func TestSpool(t *testing.T) {
	dir := t.TempDir()
	b := NewBudget(dir, 8<<20, 4<<20)
	for _, piece := range []int{1, 1000, inMemory, inMemory + 1, 100_000} {
		s := b.New("a")
		var want []byte
		for n := 0; len(want) < 3*inMemory; n++ {
			p := bytes.Repeat([]byte{byte('a' + n%26)}, piece)
			want = append(want, p...)
			if n, err := s.Write(p); err != nil || n != len(p) {
				t.Fatalf("write: %d, %v", n, err)
			}
		}
		if s.Len() != len(want) || !bytes.Equal(read(t, &s), want) || s.String() != string(want) {
			t.Errorf("pieces of %d: %d bytes come back as others, want %d", piece, s.Len(), len(want))
		}
		part, err := io.ReadAll(s.Section(inMemory-10, 20))
		if err != nil || !bytes.Equal(part, want[inMemory-10:inMemory+10]) {
			t.Errorf("pieces of %d: a part is %q, %v", piece, part, err)
		}
		if len(s.head) > inMemory {
			t.Errorf("%d bytes are in memory", len(s.head))
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
			t.Errorf("the folder shows %v, %v", files, err)
		}
		for range 2 {
			s.Close()
		}
		if n := b.Used(); n != 0 {
			t.Errorf("%d bytes are taken at the end", n)
		}
	}
	var plain Spool
	plain.Write(make([]byte, 2*inMemory))
	if plain.Len() != 2*inMemory || plain.file != nil {
		t.Error("a Spool without a budget uses a file")
	}
}

// Each owner has a maximum share and a guaranteed minimum.
func TestBudget(t *testing.T) {
	b := NewBudget(t.TempDir(), 32<<20, 20<<20)
	fill := func(owner string) (*Spool, int) {
		s := b.New(owner)
		for {
			if _, err := s.Write(make([]byte, step)); errors.Is(err, ErrFull) {
				return &s, s.Len() >> 20
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	first, n := fill("a")
	if n != 20 {
		t.Errorf("the first got %d MiB", n)
	}
	if _, n := fill("b"); n != 12 {
		t.Errorf("the second got %d MiB", n)
	}
	if _, n := fill("c"); n != 8 {
		t.Errorf("the third got %d MiB", n)
	}
	before := first.Len()
	if _, err := first.Write(make([]byte, step)); !errors.Is(err, ErrFull) || first.Len() != before {
		t.Errorf("beyond its share: %v, and %d of %d bytes", err, first.Len(), before)
	}
	first.Close()
	if _, n := fill("d"); n != 12 {
		t.Errorf("the fourth got %d MiB", n)
	}
}

// A caller waits for room, for a bounded time.
func TestEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(t.TempDir(), 100<<20, 20<<20)
		if !b.take("a", 15<<20) {
			t.Fatal("no room")
		}
		if err := b.Enter(t.Context(), "b", 20<<20); err != nil {
			t.Errorf("another: %v", err)
		}
		began := time.Now()
		var e *sandbox.Error
		if err := b.Enter(t.Context(), "a", 10<<20); !errors.As(err, &e) || e.Code != sandbox.Exhausted || e.RetryAfter != retryAfter || time.Since(began) != patience {
			t.Errorf("without room: %v after %v", err, time.Since(began))
		}
		time.AfterFunc(time.Second, func() { b.giveBack("a", 10<<20) })
		began = time.Now()
		if err := b.Enter(t.Context(), "a", 10<<20); err != nil || time.Since(began) != time.Second {
			t.Errorf("with room later: %v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Enter(ctx, "a", 19<<20); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that cancels: %v", err)
		}
		if err := (*Budget)(nil).Enter(t.Context(), "a", 1<<40); err != nil {
			t.Errorf("no budget: %v", err)
		}
	})
}

func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(40<<20, 20<<20)
		a, endA := m.With(t.Context(), "a")
		again, endAgain := m.With(t.Context(), "a")
		b, endB := m.With(t.Context(), "b")
		defer endB()
		if err := HoldToTheEnd(a, 1<<40); err != nil { // capped at one owner's share
			t.Fatal(err)
		}
		if _, err := Hold(b, 20<<20); err != nil {
			t.Errorf("another owner: %v", err)
		}
		if _, err := Hold(again, Small); err != nil {
			t.Errorf("a little: %v", err)
		}
		began := time.Now()
		if _, err := Hold(again, Small+1); !errors.Is(err, sandbox.Exhausted) || time.Since(began) != patience {
			t.Errorf("more: %v after %v", err, time.Since(began))
		}
		time.AfterFunc(time.Second, endA)
		began = time.Now()
		release, err := Hold(again, 20<<20)
		if err != nil || time.Since(began) != time.Second {
			t.Errorf("after the other's end: %v after %v", err, time.Since(began))
		}
		release()
		release()
		g := Gather{Most: 20 << 20}
		for range 100 {
			if err := g.Add(again, Small/2); err != nil {
				t.Fatal(err)
			}
		}
		endAgain()
		if err := HoldToTheEnd(again, 1<<20); err != nil { // by a goroutine that outlives the request
			t.Error(err)
		}
		if len(m.owners) != 1 || m.owners["b"] == nil {
			t.Errorf("at the end there are %v", m.owners)
		}
		if _, err := Hold(t.Context(), 1<<40); err != nil {
			t.Errorf("without an owner: %v", err)
		}
	})
}
