package server

import (
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

const (
	// proofTime is how long unchanged files count as verified: starts within it do not read
	// them again.
	proofTime = 10 * time.Second
	// clockTick is the longest time in which a file system gives two changes of a
	// file the same time: a tick of the slowest clock that Linux is built with.
	clockTick = 10 * time.Millisecond
)

// mark identifies a file and its last change. The time of the last change (ctime) cannot
// be set, not even by root.
type mark struct {
	dev, inode uint64
	size       int64
	changed    unix.Timespec
}

// proof is the verification of a saved state. All starts from it share the proof while
// it is in progress and for proofTime after it: of ten forks one reads the files.
type proof struct {
	listed []sentryhost.SavedFile
	marks  []mark
	over   chan struct{} // closed once err is set
	err    error
	until  time.Time // guarded by Host.mu: zero while the verification is in progress
}

// whole compares the files of a state with its manifest in the background, unless that
// was just done. wait returns the outcome. The files stay open until then.
func (h *Host) whole(m *sentryhost.Manifest, files []*os.File) (wait func() error) {
	p := &proof{listed: m.Files, over: make(chan struct{})}
	began := time.Now()
	if p.marks = marksOf(files, began); p.marks == nil {
		go func() { p.err = verify(m, files); close(p.over) }()
		return p.wait
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if earlier := h.proofs[m.Name]; earlier.holds(p, began) {
		return earlier.wait
	}
	for name, old := range h.proofs {
		if !old.until.IsZero() && began.After(old.until) {
			delete(h.proofs, name)
		}
	}
	h.proofs[m.Name] = p
	go func() {
		err := verify(m, files)
		unchanged := slices.Equal(marksOf(files, began), p.marks)
		h.mu.Lock()
		if p.until = time.Now().Add(proofTime); (err != nil || !unchanged) && h.proofs[m.Name] == p {
			delete(h.proofs, m.Name)
		}
		h.mu.Unlock()
		p.err = err
		close(p.over)
	}()
	return p.wait
}

func (p *proof) wait() error {
	<-p.over
	return p.err
}

// holds reports whether p, which may be nil, is valid and covers the files of want. The
// caller holds Host.mu.
func (p *proof) holds(want *proof, now time.Time) bool {
	return p != nil && (p.until.IsZero() || now.Before(p.until)) &&
		slices.Equal(p.listed, want.listed) && slices.Equal(p.marks, want.marks)
}

// marksOf returns the marks of files; nil when a file changed just before now: a later
// change could then have the same time.
func marksOf(files []*os.File, now time.Time) []mark {
	marks := make([]mark, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return nil
		}
		var st unix.Stat_t
		if raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }) != nil || err != nil {
			return nil
		}
		if now.Sub(time.Unix(st.Ctim.Unix())) < 2*clockTick {
			return nil
		}
		marks[i] = mark{st.Dev, st.Ino, st.Size, st.Ctim}
	}
	return marks
}
