package processes

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func newSpool(limit int64) *spool {
	b := &budget{limit: limit}
	s := &spool{budget: b}
	b.shrink = func() { s.drop(false) }
	return s
}

// pattern is n bytes that tell where in a stream they are.
func pattern(from int64, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte((from + int64(i)) * 7 >> 3)
	}
	return out
}

// joined is what both streams got, one after the other in order, and checks that
// offsets have no gap but before from.
func joined(t *testing.T, pieces []piece, from int64) (all []byte) {
	t.Helper()
	for _, p := range pieces {
		if p.offset != from {
			t.Fatalf("a piece begins at %d, want %d", p.offset, from)
		}
		all = append(all, p.data...)
		from += int64(len(p.data))
	}
	return all
}

// Whatever is written in whatever sizes is read as it was, from any byte.
func TestSpoolKeepsEverything(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := newSpool(maxBudget)
	defer s.close()
	var all []byte
	var odd []bool
	for len(all) < 3*segmentSize {
		n := 1 + random.IntN([]int{3, 500, 100_000}[random.IntN(3)])
		stderr := random.IntN(2) == 0
		data := pattern(int64(len(all)), n)
		s.append(stderr, data)
		all = append(all, data...)
		for range n {
			odd = append(odd, stderr)
		}
	}
	for range 200 {
		from := random.IntN(len(all) + 1)
		size := random.IntN(2 * segmentSize)
		pieces, next, err := s.read(int64(from), size)
		if err != nil {
			t.Fatal(err)
		}
		got := joined(t, pieces, int64(from))
		if want := all[from:min(from+size, len(all))]; !bytes.Equal(got, want) || next != int64(from+len(want)) {
			t.Fatalf("from %d, %d bytes: %d bytes to %d", from, size, len(got), next)
		}
		for _, p := range pieces {
			for i := range p.data {
				if odd[int(p.offset)+i] != p.stderr {
					t.Fatalf("byte %d is of the other stream", int(p.offset)+i)
				}
			}
		}
	}
	if start, end := s.bounds(); start != 0 || end != int64(len(all)) {
		t.Errorf("it keeps %d to %d of %d", start, end, len(all))
	}
}

func TestSpoolDropsTheOldest(t *testing.T) {
	s := newSpool(maxBudget)
	defer s.close()
	const size = spoolLimit + 3*segmentSize/2
	s.append(false, pattern(0, size))
	start, end := s.bounds()
	if end != size || start <= 0 || end-start > spoolLimit || start%segmentSize != 0 {
		t.Fatalf("it keeps %d to %d", start, end)
	}
	pieces, next, err := s.read(0, size)
	if err != nil || next != size || !bytes.Equal(joined(t, pieces, start), pattern(start, int(size-start))) {
		t.Errorf("%v, read to %d", err, next)
	}
	if used := s.budget.used.Load(); used != size-start {
		t.Errorf("%d bytes are counted, %d are kept", used, size-start)
	}
	s.close()
	s.append(false, []byte("late"))
	if used := s.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes are counted once it is closed", used)
	}
}

// A writer waits for those who follow, and no longer once they leave.
func TestSpoolWaitsForFollowers(t *testing.T) {
	s := newSpool(maxBudget)
	defer s.close()
	f := s.follow(0)
	const size = 2 * spoolLimit
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.append(true, pattern(0, size))
	}()
	var got int64
	for got < size/2+segmentSize {
		pieces, next, more, err := f.take(100_000)
		if err != nil {
			t.Fatal(err)
		}
		if data := joined(t, pieces, got); !bytes.Equal(data, pattern(got, len(data))) {
			t.Fatalf("what is read at %d is not what was written", got)
		}
		if got = next; more != nil {
			<-more
		}
	}
	f.leave()
	<-written
	if start, end := s.bounds(); end != size || start == 0 {
		t.Errorf("it keeps %d to %d", start, end)
	}
}

// All spools together keep to the budget.
func TestBudgetOfAll(t *testing.T) {
	r := &Registry{byID: map[string]*Process{}}
	const limit = 4 << 20
	r.budget.limit, r.budget.shrink = limit, r.shrink
	for i := range 3 {
		p := &Process{ID: fmt.Sprint(i), output: &spool{budget: &r.budget}, ended: make(chan struct{})}
		r.adopt(p)
		if i == 0 {
			p.at = time.Now()
			close(p.ended)
		}
		p.output.append(false, pattern(0, 3<<20))
		if used := r.budget.used.Load(); used > limit {
			t.Errorf("%d bytes are kept", used)
		}
	}
	all := r.All()
	if n := all[0].output.kept(); n != 0 {
		t.Errorf("what has ended keeps %d bytes", n)
	}
	if a, b := all[1].output.kept(), all[2].output.kept(); a+b > limit || a < 1<<20 || b < 1<<20 {
		t.Errorf("the others keep %d and %d bytes", a, b)
	}
	for _, p := range all {
		p.output.close()
	}
	if used := r.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes are counted at the end", used)
	}
}

func FuzzSpool(f *testing.F) {
	f.Add([]byte{1, 200, 3, 255, 0, 9}, int64(2), 100)
	f.Add([]byte("many small pieces"), int64(-3), 7)
	f.Add(bytes.Repeat([]byte{255}, 4000), int64(100), 1<<20) // more than is kept
	f.Fuzz(func(t *testing.T, sizes []byte, from int64, size int) {
		s := newSpool(maxBudget)
		defer s.close()
		var all []byte
		for i, n := range sizes {
			data := pattern(int64(len(all)), int(n)*(1+i%50))
			s.append(n%2 == 0, data)
			all = append(all, data...)
		}
		pieces, next, err := s.read(from, size)
		if err != nil {
			t.Fatal(err)
		}
		start, end := s.bounds()
		if end != int64(len(all)) || end-start > spoolLimit || start > max(0, end-spoolLimit+segmentSize) {
			t.Fatalf("it keeps %d to %d of %d bytes", start, end, len(all))
		}
		begin := min(max(from, start), end)
		got := joined(t, pieces, begin)
		if !bytes.Equal(got, all[begin:next]) || len(got) > max(size, 0) {
			t.Fatalf("read %d bytes from %d to %d", len(got), begin, next)
		}
	})
}
