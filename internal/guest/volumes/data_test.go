package volumes

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

// open opens a file by its number.
func (k *kernel) open(node uint64, flags uint32) { k.must(opOpen, node, words(flags, 0)) }

func (k *kernel) release(node uint64) { k.must(opRelease, node, make([]byte, 24)) }

// read reads as gVisor does when it may be beyond the end: it asks for the length first.
func (k *kernel) read(node, offset uint64, size uint32) []byte {
	k.must(opGetAttr, node, append(words(attrOfHandle, 0), make([]byte, 8)...))
	return k.must(opRead, node, append(order.AppendUint64(order.AppendUint64(nil, 0), offset), words(size, 0, 0, 0, 0, 0)...))
}

// What one Boot has written, no other reads an older state of, though files come ahead
// when they are opened; nor does the Boot itself.
func TestReadsAreNeverOld(t *testing.T) {
	boots := mountedIn(t, 2)
	file := boots[0].create("f", unix.O_RDWR)
	number := func(n uint64) string { return string(order.AppendUint64(nil, n)) }
	boots[0].must(opWrite, file, write(0, 0, number(0)))
	var written atomic.Uint64
	var came atomic.Int64
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 6 {
		k := *boots[i%2]
		k.thread = uint32(10 + i)
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				k.open(file, unix.O_RDONLY)
				for range 3 {
					least := written.Load()
					if _, ok := k.mount.aheads.of(file); ok {
						came.Add(1)
					}
					got := k.read(file, 0, 8)
					if len(got) != 8 || order.Uint64(got) < least {
						t.Errorf("%d was written, then %x is read", least, got)
						return
					}
				}
				k.release(file)
			}
		})
	}
	writer := *boots[0]
	writers := []*kernel{boots[1], &writer}
	for i := range uint64(300) {
		writers[i%2].must(opWrite, file, write(0, 0, number(i+1)))
		written.Store(i + 1)
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
	}
	close(stop)
	readers.Wait()
	if came.Load() == 0 {
		t.Error("no file came ahead")
	}
}

// A file that came ahead is not used when it is too old, by either clock, and not when
// the Boot changed something while it came.
func TestAheads(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(s *aheads)
		want bool
	}{
		"at once":           {func(*aheads) {}, true},
		"late":              {func(s *aheads) { s.age(volume.LeaseTime, volume.LeaseTime) }, false},
		"in a restored one": {func(s *aheads) { s.age(0, time.Hour) }, false},
		"set back":          {func(s *aheads) { s.age(0, -time.Hour) }, false},
		"changed":           {func(s *aheads) { s.change(); s.changed() }, false},
		"given up":          {func(s *aheads) { s.drop(1) }, false},
		"another's":         {func(s *aheads) { s.drop(2) }, true},
	} {
		s := newAheads()
		s.expect(1)(5, volume.Attr{Node: 1}, []byte("data"))
		tt.do(s)
		if a, ok := s.of(1); ok != tt.want || ok && string(a.data) != "data" {
			t.Errorf("%s: %v, %+v", name, ok, a)
		}
	}
	s := newAheads()
	during := s.expect(1)
	s.change()
	after := s.expect(1)
	s.changed()
	during(5, volume.Attr{}, nil)
	after(6, volume.Attr{}, nil)
	if _, ok := s.of(1); ok {
		t.Error("it came while the boot changed something")
	}
	first, second := s.expect(1), s.expect(1)
	first(7, volume.Attr{}, nil)
	if got := s.drop(1); got != 0 {
		t.Errorf("the promise %d is given back, on which another opening may count", got)
	}
	second(8, volume.Attr{}, nil)
	if got := s.drop(1); got != 8 {
		t.Errorf("the promise %d is given back, want 8", got)
	}
}

// age makes what came older.
func (s *aheads) age(mono, wall time.Duration) {
	for node, a := range s.files {
		a.asked = a.asked.Add(-mono)
		a.askedWall = a.askedWall.Add(-wall)
		s.files[node] = a
	}
}

// Reads and writes of the kernel that go in pieces are whole, whatever connections
// break meanwhile; what is appended is there once.
func TestPieces(t *testing.T) {
	d, err := disk.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	v := sandbox.VolumeSpec{ID: sandbox.NewVolumeID(), Tenant: "t", MaxBytes: 64 << 20}
	if err := d.Create(v); err != nil {
		t.Fatal(err)
	}
	l := newLink([]string{v.ID})
	cut := func() <-chan time.Time { return time.After(time.Duration(rand.IntN(8000)) * time.Microsecond) }
	stop := connected(t, l, d.ForBoot(v.Tenant, []string{v.ID}), cut)
	defer stop()
	k := &kernel{t: t, asked: &asked{}, thread: 1}
	k.mount = newMount(l, 0, newAheads(), k.asked.reply)
	data := make([]byte, maxData)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	file, log := k.create("f", unix.O_RDWR), k.create("log", unix.O_RDWR)
	for i := range uint64(12) {
		size := maxData - int(i)*1000
		if n := order.Uint32(k.must(opWrite, file, write(i*maxData, 0, string(data[:size])))); int(n) != size {
			t.Fatalf("%d of %d bytes were written", n, size)
		}
		if got := k.read(file, i*maxData, maxData); !bytes.Equal(got, data[:size]) {
			t.Fatalf("round %d: %d bytes are read, not the %d that were written", i, len(got), size)
		}
		// All of a long append, as programs expect that look at no count.
		if n := order.Uint32(k.must(opWrite, log, write(0, unix.O_APPEND, string(data)))); n != maxData {
			t.Fatalf("%d bytes were appended", n)
		}
	}
	for i := range uint64(12) {
		if got := k.read(log, i*maxData, maxData); !bytes.Equal(got, data) {
			t.Errorf("%d bytes are read of what was appended", len(got))
		}
	}
	if got := k.read(log, 12*maxData, 10); len(got) != 0 {
		t.Error("something was appended twice")
	}
}

// What is asked while there is no Node ends after half a minute.
func TestNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink([]string{"v"})
		began := time.Now()
		early := make(chan time.Duration, 1)
		go func() {
			_, _ = l.ask(volume.Request{Op: volume.OpStatFS})
			early <- time.Since(began)
		}()
		time.Sleep(10 * time.Second)
		_, err := l.ask(volume.Request{Op: volume.OpStatFS})
		if took := time.Since(began); err != unix.EIO || took != askTime+10*time.Second {
			t.Errorf("it ends with %v after %v", err, took)
		}
		if took := <-early; took != askTime {
			t.Errorf("the one before ended after %v", took)
		}
		if len(l.pending) != 0 || l.expiring {
			t.Errorf("%d questions are left", len(l.pending))
		}
	})
}
