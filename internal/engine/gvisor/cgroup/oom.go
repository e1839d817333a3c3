package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// cachePause is the pause between checks of a Group that is above its mark because of
// page cache which is being written and so cannot be dropped at once.
const cachePause = 50 * time.Millisecond

// Pressure reports that the memory of a Group has reached a mark.
type Pressure struct {
	g    *Group
	mark int64
	file *os.File // v1: eventfd; v2: inotify on memory.events
}

// WatchMemory returns a Pressure for mark bytes, page cache not counted. mark is below
// the hard limit; the memory between the two is a reserve for the work of freeing
// memory.
//
// On v1 an eventfd fires when usage crosses the mark, and when the hard limit is reached.
// The kernel's OOM killer is switched off there: a task that needs a page sleeps until
// memory is freed. On v2 memory.high (set to mark) slows the Group down and memory.events
// counts; the kernel enforces the hard limit.
func (g *Group) WatchMemory(mark int64) (*Pressure, error) {
	if g.h.v2 {
		return g.watchV2(mark)
	}
	dir := g.dir("memory")
	if err := g.write("memory", "memory.oom_control", "1"); err != nil {
		return nil, err
	}
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	defer control.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	event := os.NewFile(uintptr(fd), "oom")
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		event.Close()
		return nil, err
	}
	defer usage.Close()
	err = g.write("memory", "cgroup.event_control", fmt.Sprintf("%d %d", fd, control.Fd()))
	if err == nil {
		err = g.write("memory", "cgroup.event_control", fmt.Sprintf("%d %d %d", fd, usage.Fd(), mark))
	}
	if err != nil {
		event.Close()
		return nil, err
	}
	return &Pressure{g: g, mark: mark, file: event}, nil
}

func (g *Group) watchV2(mark int64) (*Pressure, error) {
	if err := g.write("memory", "memory.high", fmt.Sprint(mark)); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an inotify: %w", err)
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(g.dir("memory"), "memory.events"), unix.IN_MODIFY); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch memory.events: %w", err)
	}
	return &Pressure{g: g, mark: mark, file: os.NewFile(uintptr(fd), "memory.events")}, nil
}

// Wait blocks until memory has reached the mark once more. After Close or the removal of
// the Group it returns os.ErrClosed.
func (p *Pressure) Wait() error {
	buf := make([]byte, 4096)
	for {
		_, err := p.file.Read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		over, err := p.g.OverMark(p.mark)
		if err == nil && over < 0 {
			err = p.dropCache()
		}
		if err != nil {
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return os.ErrClosed
			}
			return err
		}
		if over >= 0 {
			return nil
		}
	}
}

// Look makes Wait check once, even if the mark is not crossed: page cache may be above it
// already. On v2 the kernel handles that.
func (p *Pressure) Look() error {
	if p.g.h.v2 {
		return nil
	}
	return p.file.SetReadDeadline(time.Now())
}

// dropCache drops page cache of a v1 Group that is above its mark because of it: usage
// crosses the mark only once, so a later growth of memory would not be noticed. On v2 the
// kernel does that at memory.high.
func (p *Pressure) dropCache() error {
	if p.g.h.v2 {
		return nil
	}
	charged, err := p.g.MemoryCharged()
	if err != nil {
		return err
	}
	next := time.Time{}
	if charged >= p.mark {
		if err := p.g.squeeze(p.mark - p.mark/8); err != nil {
			return err
		}
		next = time.Now().Add(cachePause)
	}
	return p.file.SetReadDeadline(next)
}

// squeeze has the kernel free memory of a v1 Group, down to bytes if possible: a limit
// that cannot be reached is refused, but only after the kernel has tried.
func (g *Group) squeeze(bytes int64) error {
	g.memory.Lock()
	defer g.memory.Unlock()
	limit := g.Limit()
	_ = g.setMemory(bytes)
	return g.setMemory(limit)
}

// Close ends Wait and frees the descriptor.
func (p *Pressure) Close() error { return p.file.Close() }

// OverMark is by how many bytes the Group's memory is above mark; negative below it. Page
// cache does not count, as the kernel drops it when it must. Kernel memory of the Group
// counts.
func (g *Group) OverMark(mark int64) (int64, error) {
	u, err := g.Usage()
	if err != nil {
		return 0, err
	}
	if g.h.v2 { // memory.high keeps a Group just below the mark, so nearly reached counts as reached
		return u.MemoryBytes + mark/32 - mark, nil
	}
	kernel, err := readInt(filepath.Join(g.dir("memory"), "memory.kmem.usage_in_bytes"))
	if errors.Is(err, os.ErrNotExist) { // not every kernel counts it
		err = nil
	}
	return u.MemoryBytes + kernel - mark, err
}
