package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// From these limits on, a measurement counts as disturbed.
const (
	stealLimit  = 2.0 // percent of the time of all processors
	othersLimit = 5.0 // percent of the time of all processors
	writeLimit  = 2.0 // MB/s
)

// Disturbance is the use of this machine by others during a measurement.
type Disturbance struct {
	Seconds float64 `json:"seconds"` // length of the measurement
	// StealPercent of the time of all processors went to other machines of the
	// same host.
	StealPercent float64 `json:"steal_percent"`
	// BenchPercent of it went to the processes of the bench and of the server that it
	// measures. Ended processes and the measuring process itself are left out.
	BenchPercent float64 `json:"bench_percent"`
	// OthersPercent of it went to processes that are not part of the bench.
	OthersPercent float64 `json:"others_percent"`
	// OthersWrittenMB is the data that those processes wrote to files.
	OthersWrittenMB float64 `json:"others_written_mb"`
	// DiskWrittenMB is the data that reached the disks in this time, whichever process
	// wrote it and even if it was written earlier.
	DiskWrittenMB float64 `json:"disk_written_mb"`
}

// String lists the values above their limits; empty when none is.
func (d *Disturbance) String() string {
	if d == nil {
		return ""
	}
	var all []string
	if d.StealPercent >= stealLimit {
		all = append(all, fmt.Sprintf("steal %.0f %%", d.StealPercent))
	}
	if d.OthersPercent >= othersLimit {
		all = append(all, fmt.Sprintf("others' CPU %.0f %%", d.OthersPercent))
	}
	if d.Seconds > 0 && d.OthersWrittenMB/d.Seconds >= writeLimit {
		all = append(all, fmt.Sprintf("others' writes %.0f MB", d.OthersWrittenMB))
	}
	return strings.Join(all, ", ")
}

// Watch measures the use of this machine by others. Processes of the bench are this
// process, all processes whose program or command line contains one of its marks, and
// all their descendants.
type Watch struct {
	proc  string // /proc
	self  int
	marks []string
	began usage
}

// NewWatch begins to watch. marks identify bench processes that are not its
// descendants: paths that only the bench's own processes use, such as its scratch
// folder.
func NewWatch(marks ...string) (*Watch, error) {
	w := &Watch{proc: "/proc", self: os.Getpid(), marks: marks}
	return w, w.Begin()
}

// usage is the usage of a machine up to one moment.
type usage struct {
	at          time.Time
	all, steal  int64 // clock ticks of all processors, idle ones included
	diskSectors int64
	processes   map[int]process
}

// process is the usage of one process up to one moment.
type process struct {
	parent  int
	started int64 // clock ticks since the machine started: distinguishes reused numbers
	ticks   int64 // of processors, including children that ended
	written int64 // bytes
}

// Begin starts a new window.
func (w *Watch) Begin() (err error) {
	w.began, err = w.read()
	return err
}

// Since returns the Disturbance of the window so far.
func (w *Watch) Since() (*Disturbance, error) {
	now, err := w.read()
	if err != nil {
		return nil, err
	}
	d := &Disturbance{
		Seconds:       tenths(now.at.Sub(w.began.at).Seconds()),
		DiskWrittenMB: tenths(float64(now.diskSectors-w.began.diskSectors) * 512 / 1e6),
	}
	all := float64(now.all - w.began.all)
	if all <= 0 {
		return d, nil // shorter than a clock tick
	}
	d.StealPercent = tenths(100 * float64(now.steal-w.began.steal) / all)
	ticks, written, bench := int64(0), int64(0), int64(0)
	own := map[int]bool{}
	for pid, p := range now.processes {
		before := w.began.processes[pid]
		if before.started != p.started {
			before = process{}
		}
		if p.ticks == before.ticks && p.written == before.written {
			continue
		}
		if w.owns(pid, now.processes, own) {
			if pid != w.self && pid != kthreadd && p.parent != kthreadd {
				bench += p.ticks - before.ticks
			}
			continue
		}
		ticks += p.ticks - before.ticks
		written += p.written - before.written
	}
	// When a child ends, its parent inherits all its usage, also from before the window.
	for pid, p := range w.began.processes {
		if now.processes[pid].started == p.started {
			continue
		}
		heir, ok := p.parent, true
		for ok && heir > 1 && now.processes[heir].started != w.began.processes[heir].started {
			heir, ok = w.began.processes[heir].parent, w.began.processes[heir].parent != 0
		}
		if ok && heir > 1 && !w.owns(heir, now.processes, own) {
			ticks -= p.ticks
			written -= p.written
		}
	}
	d.BenchPercent = math.Round(100*100*float64(bench)/all) / 100
	d.OthersPercent = tenths(max(0, 100*float64(ticks)/all))
	d.OthersWrittenMB = tenths(max(0, float64(written)/1e6))
	return d, nil
}

func tenths(v float64) float64 { return math.Round(v*10) / 10 }

// kthreadd is the ancestor of all kernel threads, which work for others.
const kthreadd = 2

// owns reports whether a process is the kernel's or the bench's, and caches the
// result in known.
func (w *Watch) owns(pid int, all map[int]process, known map[int]bool) bool {
	if own, ok := known[pid]; ok {
		return own
	}
	known[pid] = pid == w.self || pid == kthreadd || w.marked(pid)
	if parent, ok := all[pid]; ok && !known[pid] && parent.parent > 1 {
		known[pid] = w.owns(parent.parent, all, known)
	}
	return known[pid]
}

func (w *Watch) marked(pid int) bool {
	dir := filepath.Join(w.proc, strconv.Itoa(pid))
	program, _ := os.Readlink(filepath.Join(dir, "exe")) // the process may have ended
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	return slices.ContainsFunc(w.marks, func(mark string) bool {
		return strings.Contains(program, mark) || bytes.Contains(line, []byte(mark))
	})
}

func (w *Watch) read() (usage, error) {
	u := usage{at: time.Now(), processes: map[int]process{}}
	b, err := os.ReadFile(filepath.Join(w.proc, "stat"))
	if err != nil {
		return u, err
	}
	total, _, _ := strings.Cut(string(b), "\n")
	for i, field := range strings.Fields(total) {
		ticks, _ := strconv.ParseInt(field, 10, 64) // the first is a name
		if i <= 8 {                                 // guests' time is part of user time
			u.all += ticks
		}
		if i == 8 {
			u.steal = ticks
		}
	}
	if u.diskSectors, err = w.sectors(); err != nil {
		return u, err
	}
	entries, err := os.ReadDir(w.proc)
	if err != nil {
		return u, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := w.process(pid); err == nil {
			u.processes[pid] = p
		} // else it has ended
	}
	return u, nil
}

// sectors is the number of sectors, of 512 bytes, written to disks. It counts no
// partitions, which are part of disks, and no devices on top of other disks, such as
// loop devices.
func (w *Watch) sectors() (total int64, err error) {
	b, err := os.ReadFile(filepath.Join(w.proc, "diskstats"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // some containers hide it
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 10 || strings.HasPrefix(f[2], "loop") || strings.HasPrefix(f[2], "ram") || strings.HasPrefix(f[2], "dm-") {
			continue
		}
		if _, err := os.Stat(filepath.Join("/sys/block", f[2])); err != nil {
			continue // a partition
		}
		n, err := strconv.ParseInt(f[9], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("diskstats: %w", err)
		}
		total += n
	}
	return total, err
}

// process reads /proc/PID/stat and io.
func (w *Watch) process(pid int) (p process, err error) {
	dir := filepath.Join(w.proc, strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, err
	}
	// The name may hold anything, also spaces and brackets.
	end := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[end+1:])) // f[0] is field 3, the state
	if end < 0 || len(f) < 20 {
		return p, fmt.Errorf("process %d: its stat has %d fields", pid, len(f))
	}
	number := func(field int) int64 {
		n, parseErr := strconv.ParseInt(f[field-3], 10, 64)
		err = errors.Join(err, parseErr)
		return n
	}
	p = process{parent: int(number(4)), started: number(22), ticks: number(14) + number(15)}
	if pid == 1 { // it inherits from bench processes whose parents have ended
		return p, err
	}
	p.ticks += number(16) + number(17)
	status, _ := os.ReadFile(filepath.Join(dir, "io")) // for root only
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			p.written, _ = strconv.ParseInt(strings.TrimSpace(value), 10, 64) // the kernel's number
		}
	}
	return p, err
}
