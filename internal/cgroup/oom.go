package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Pressure tells when a Group has used up its memory.
type Pressure struct {
	g    *Group
	file *os.File // v1: eventfd; v2: inotify on memory.events
	last int64    // v2: the highest count of "high" and "max" seen
}

// WatchMemory arms the Group to wait instead of killing when its memory is used
// up, and returns what tells of it.
//
// On v1 the kernel's own killer is switched off: a task that needs a page
// sleeps until the limit is raised or something is freed, and an eventfd fires.
// On v2 memory.high (set to high bytes) slows the Group down and
// memory.events counts; the hard limit stays the kernel's.
func (g *Group) WatchMemory(high int64) (*Pressure, error) {
	if g.h.v2 {
		return g.watchV2(high)
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
	if err := g.write("memory", "cgroup.event_control", fmt.Sprintf("%d %d", fd, control.Fd())); err != nil {
		event.Close()
		return nil, err
	}
	return &Pressure{g: g, file: event}, nil
}

func (g *Group) watchV2(high int64) (*Pressure, error) {
	if err := g.write("memory", "memory.high", fmt.Sprint(high)); err != nil {
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
	return &Pressure{g: g, file: os.NewFile(uintptr(fd), "memory.events")}, nil
}

// Wait blocks until memory is used up once more. After Close it returns
// os.ErrClosed, and after the Group's removal too.
func (p *Pressure) Wait() error {
	buf := make([]byte, 4096)
	for {
		if _, err := p.file.Read(buf); err != nil {
			return err
		}
		full, err := p.g.memoryFull(&p.last)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return os.ErrClosed
			}
			return err
		}
		if full {
			return nil
		}
	}
}

// Close ends Wait and frees the descriptor.
func (p *Pressure) Close() error { return p.file.Close() }

// Stuck reports whether tasks wait for memory right now.
func (g *Group) Stuck() bool {
	if g.h.v2 {
		return false
	}
	b, err := os.ReadFile(filepath.Join(g.dir("memory"), "memory.oom_control"))
	return err == nil && strings.Contains(string(b), "under_oom 1")
}

func (g *Group) memoryFull(last *int64) (bool, error) {
	if !g.h.v2 {
		// The event also fires when the Group is removed.
		_, err := os.Stat(g.dir("memory"))
		return err == nil, err
	}
	events, err := readStat(filepath.Join(g.dir("memory"), "memory.events"))
	if err != nil {
		return false, err
	}
	seen := events["high"] + events["max"]
	if seen <= *last {
		return false, nil
	}
	*last = seen
	// Page cache also drives a Group to memory.high; only memory that cannot
	// be dropped counts as full.
	stat, err := readStat(filepath.Join(g.dir("memory"), "memory.stat"))
	if err != nil {
		return false, err
	}
	high, err := readInt(filepath.Join(g.dir("memory"), "memory.high"))
	if err != nil {
		return false, nil // "max": no mark is set
	}
	return stat["anon"]+stat["shmem"] >= high-high/32, nil
}
