package latefile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slow is content of which nothing has arrived until come is closed.
type slow struct {
	all  []byte
	come chan struct{}
	mu   sync.Mutex
	asks int // calls of Await
	err  error
}

func (s *slow) Await(ctx context.Context, off, n int64) error {
	if n <= 0 || off < 0 || off+n > int64(len(s.all)) {
		panic("a wait beyond the end")
	}
	s.mu.Lock()
	s.asks++
	s.mu.Unlock()
	select {
	case <-s.come:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.err
}

func (s *slow) ReadAt(p []byte, off int64) (int, error) { return bytes.NewReader(s.all).ReadAt(p, off) }

// asked waits until n reads have begun.
func (s *slow) asked(t *testing.T, n int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		got := s.asks
		s.mu.Unlock()
		if got >= n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d reads began, want %d", got, n)
		}
	}
}

// serve serves content of size bytes until the test ends.
func serve(t *testing.T, size int) (*File, *slow) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root mounts files of FUSE")
	}
	s := &slow{all: make([]byte, size), come: make(chan struct{})}
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(s.all)
	f, err := New(s, int64(size))
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.Close()
		f.Wait()
	})
	return f, s
}

func open(t *testing.T, f *File) *os.File {
	t.Helper()
	in, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	return in
}

func TestReadsWait(t *testing.T) {
	f, s := serve(t, 5<<20+123)
	in := open(t, f)
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(io.NewSectionReader(in, 0, 1<<40))
		got <- b
	}()
	s.asked(t, 1)
	select {
	case <-got:
		t.Fatal("a read did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	close(s.come)
	if b := <-got; !bytes.Equal(b, s.all) {
		t.Errorf("read %d other bytes", len(b))
	}
}

// Reads at and beyond the end, which the kernel does not bound, find nothing.
func TestReadsBeyondTheEnd(t *testing.T) {
	f, s := serve(t, 3<<20/2+5)
	in := open(t, f)
	close(s.come)
	for _, off := range []int64{int64(len(s.all)), int64(len(s.all)) + 1, 5<<20 + 7, 1 << 62} {
		if n, err := in.ReadAt(make([]byte, 4096), off); n != 0 || err != io.EOF {
			t.Errorf("at %d: %d, %v", off, n, err)
		}
	}
	if n, err := in.ReadAt(make([]byte, 4096), int64(len(s.all))-1); n != 1 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

// Reads of any size at any place have the right bytes, also into pieces of memory as a
// sentry reads.
func TestReadsAnywhere(t *testing.T) {
	f, s := serve(t, 7<<20+1)
	close(s.come)
	in := open(t, f)
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 2))
			for range 200 {
				off, n := r.IntN(len(s.all)), 1+r.IntN(3<<20)
				pages := [][]byte{make([]byte, n/2), make([]byte, n-n/2)}
				got, err := unix.Preadv(int(in.Fd()), pages, int64(off))
				want := s.all[off:min(off+n, len(s.all))]
				if all := bytes.Join(pages, nil); err != nil || got != len(want) || !bytes.Equal(all[:got], want) {
					t.Errorf("read of %d at %d: %d, %v", n, off, got, err)
				}
			}
		})
	}
	wg.Wait()
	if info, err := in.Stat(); err != nil || info.Size() != int64(len(s.all)) {
		t.Errorf("%v, %v", info, err)
	}
}

func TestFailedReads(t *testing.T) {
	f, s := serve(t, 1<<20)
	s.err = errors.New("it never arrives")
	close(s.come)
	if _, err := open(t, f).ReadAt(make([]byte, 10), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("read: %v", err)
	}
}

// A process that is killed while it waits ends at once.
func TestKilledReader(t *testing.T) {
	f, s := serve(t, 1<<20)
	cmd := exec.Command("cat")
	cmd.Stdin = open(t, f)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.asked(t, 1)
	_ = cmd.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		close(s.come)
		t.Fatal("it does not end")
	}
}

// The file is served until the last process that has it open closes it.
func TestEndsWithItsReaders(t *testing.T) {
	f, s := serve(t, 1<<20)
	in, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Open(); err == nil {
		t.Error("it is opened after Close")
	}
	ended := make(chan struct{})
	go func() {
		f.Wait()
		close(ended)
	}()
	close(s.come)
	if n, err := in.ReadAt(make([]byte, 4096), 0); n != 4096 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	select {
	case <-ended:
		t.Error("it ended while it was open")
	default:
	}
	in.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}

// gVisor knows the file by the type of its file system.
func TestIsOfFUSE(t *testing.T) {
	f, _ := serve(t, 1)
	fd, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(fd.Fd()), &st); err != nil || st.Type != unix.FUSE_SUPER_MAGIC {
		t.Errorf("the file system is of type %#x, %v", st.Type, err)
	}
}
