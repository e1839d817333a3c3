// Package cgroup puts processes into control groups with limits, on hosts with cgroup v1
// or v2. One Group is one directory per hierarchy below the parent "cloud-sandbox"; the
// caller chooses its name.
//
// The v1 interface is described in the kernel's
// Documentation/admin-guide/cgroup-v1, v2 in admin-guide/cgroup-v2.rst.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a Group. A zero field means no limit.
type Limits struct {
	CPUs        float64 // cores
	MemoryBytes int64
	Pids        int64 // host tasks
}

// period is the CPU bandwidth period. A short one keeps a throttled Sandbox
// answering: it waits at most this long for its next slice.
const period = 20 * time.Millisecond

// Hierarchy is this host's control groups below one parent.
type Hierarchy struct {
	v2     bool
	parent string            // name below each root, for example "cloud-sandbox"
	roots  map[string]string // v1: controller to mount point
	root   string            // v2: mount point
}

// v2Controllers are the controllers that groups of the unified hierarchy need.
var v2Controllers = []string{"memory", "cpu", "pids"}

// v1Controllers are the controllers that limit or measure something. Each further one
// costs every Boot a directory, and a move of its sentry that waits for all processors.
var v1Controllers = []string{"memory", "cpu", "cpuacct", "pids"}

// Detect finds the hierarchies of this host from /proc/self/mountinfo and makes the
// parent group. It prefers v1 controllers where they are mounted, because a hybrid
// host's v2 tree has none. The error says what is missing.
func Detect(parent string) (*Hierarchy, error) {
	mounts, err := usable("/")
	if err != nil {
		return nil, err
	}
	h := &Hierarchy{parent: parent, roots: mounts.v1, root: mounts.v2}
	if mounts.v1["memory"] == "" {
		h.v2 = true
		return h, h.prepareV2()
	}
	for _, dir := range h.parentDirs() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make the parent cgroup: %w", err)
		}
	}
	return h, nil
}

// Check returns the version of the cgroups that Detect uses, 1 or 2, without making
// anything. root is the folder of the host's /proc and /sys, usually "/". The error
// says what is missing.
func Check(root string) (version int, err error) {
	m, err := usable(root)
	switch {
	case err != nil:
		return 0, err
	case m.v1["memory"] == "":
		return 2, nil
	}
	return 1, nil
}

// usable returns the cgroup mounts, or an error unless groups can be made in them.
func usable(root string) (mounts, error) {
	m, err := cgroupMounts(root, "proc/self/mountinfo")
	if err != nil {
		return m, err
	}
	used := []string{m.v2}
	if m.v1["memory"] == "" {
		if m.v2 == "" {
			return m, errors.New("no cgroup filesystem with a memory controller is mounted: mount cgroup2 at /sys/fs/cgroup")
		}
		for _, c := range v2Controllers {
			if !slices.Contains(m.v2Has, c) {
				return m, fmt.Errorf("the cgroup controller %q is not available in %s: enable it in the kernel, or in cgroup.subtree_control of the group above", c, m.v2)
			}
		}
	} else {
		used = nil
		for _, c := range v1Controllers {
			if m.v1[c] == "" {
				return m, fmt.Errorf("the cgroup controller %q is not mounted: mount it below /sys/fs/cgroup", c)
			}
			used = append(used, m.v1[c])
		}
	}
	for _, dir := range used {
		if m.readOnly[dir] {
			return m, fmt.Errorf("%s is mounted read-only: mount it for writing; in a container, run that privileged and with --cgroupns=host", dir)
		}
	}
	return m, nil
}

// V2 reports whether the unified hierarchy is used.
func (h *Hierarchy) V2() bool { return h.v2 }

func (h *Hierarchy) prepareV2() error {
	dir := filepath.Join(h.root, h.parent)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the parent cgroup: %w", err)
	}
	for _, d := range []string{h.root, dir} {
		if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+memory +cpu +pids"), 0); err != nil {
			return fmt.Errorf("delegate cgroup controllers: %w", err)
		}
	}
	return nil
}

func (h *Hierarchy) parentDirs() []string {
	if h.v2 {
		return []string{filepath.Join(h.root, h.parent)}
	}
	var dirs []string
	seen := map[string]bool{}
	for _, c := range v1Controllers {
		if r := h.roots[c]; !seen[r] { // cpu and cpuacct are often mounted together
			seen[r] = true
			dirs = append(dirs, filepath.Join(r, h.parent))
		}
	}
	return dirs
}

// Names lists the existing Groups.
func (h *Hierarchy) Names() ([]string, error) {
	entries, err := os.ReadDir(h.parentDirs()[0])
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Remove deletes the parent group if it is empty.
func (h *Hierarchy) Remove() error {
	var errs []error
	for _, dir := range h.parentDirs() {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT && err != unix.EBUSY && err != unix.ENOTEMPTY {
			errs = append(errs, &os.PathError{Op: "rmdir", Path: dir, Err: err})
		}
	}
	return errors.Join(errs...)
}

// Group is one control group. Its zero value is not usable; Open makes one.
type Group struct {
	h    *Hierarchy
	name string

	memory sync.Mutex // held while the memory limit changes
}

// Open returns a Group without making it, for one that an earlier process made.
func (h *Hierarchy) Open(name string) *Group { return &Group{h: h, name: name} }

// Create makes a Group with limits. An existing one is reused.
func (h *Hierarchy) Create(name string, l Limits) (*Group, error) {
	g := h.Open(name)
	for _, dir := range g.dirs() {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			_ = g.Remove(0)
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
	}
	if err := g.SetLimits(l); err != nil {
		_ = g.Remove(0)
		return nil, err
	}
	return g, nil
}

func (g *Group) dirs() []string {
	dirs := g.h.parentDirs()
	for i := range dirs {
		dirs[i] = filepath.Join(dirs[i], g.name)
	}
	return dirs
}

func (g *Group) dir(controller string) string {
	if g.h.v2 {
		return filepath.Join(g.h.root, g.h.parent, g.name)
	}
	return filepath.Join(g.h.roots[controller], g.h.parent, g.name)
}

func (g *Group) write(controller, file, value string) error {
	if err := os.WriteFile(filepath.Join(g.dir(controller), file), []byte(value), 0); err != nil {
		return fmt.Errorf("set %s: %w", file, err)
	}
	return nil
}

// SetLimits writes every nonzero limit.
func (g *Group) SetLimits(l Limits) error {
	var errs []error
	if l.CPUs > 0 {
		quota := strconv.FormatInt(int64(l.CPUs*float64(period.Microseconds())), 10)
		us := strconv.FormatInt(period.Microseconds(), 10)
		if g.h.v2 {
			errs = append(errs, g.burst("cpu.max.burst", "0"), g.write("cpu", "cpu.max", quota+" "+us), g.burst("cpu.max.burst", quota))
		} else {
			errs = append(errs, g.burst("cpu.cfs_burst_us", "0"), g.write("cpu", "cpu.cfs_period_us", us),
				g.write("cpu", "cpu.cfs_quota_us", quota), g.burst("cpu.cfs_burst_us", quota))
		}
	}
	if l.MemoryBytes > 0 {
		errs = append(errs, g.SetMemory(l.MemoryBytes))
	}
	if l.Pids > 0 {
		errs = append(errs, g.write("pids", "pids.max", strconv.FormatInt(l.Pids, 10)))
	}
	return errors.Join(errs...)
}

// UnlimitCPU lifts the CPU limit, until SetLimits sets one.
func (g *Group) UnlimitCPU() error {
	if g.h.v2 {
		return g.write("cpu", "cpu.max", "max")
	}
	return g.write("cpu", "cpu.cfs_quota_us", "-1")
}

// burst lets a Group that was idle use up to another period's share at once: a short
// command on two cores is over before a limit of one core throttles it. The burst may not
// exceed the limit, so it is set to 0 first. A kernel before 5.14 has no such file.
func (g *Group) burst(file, micros string) error {
	if err := g.write("cpu", file, micros); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

// SetMemory sets the hard memory limit. Below the memory that is in use and cannot be
// reclaimed, v1 refuses (EBUSY) and v2 ends processes.
func (g *Group) SetMemory(bytes int64) error {
	g.memory.Lock()
	defer g.memory.Unlock()
	return g.setMemory(bytes)
}

func (g *Group) setMemory(bytes int64) error {
	file := "memory.limit_in_bytes"
	if g.h.v2 {
		file = "memory.max"
	}
	return g.write("memory", file, strconv.FormatInt(bytes, 10))
}

// Limit is the hard memory limit in bytes; 0 when it cannot be read.
func (g *Group) Limit() int64 {
	file := "memory.limit_in_bytes"
	if g.h.v2 {
		file = "memory.max"
	}
	n, _ := readInt(filepath.Join(g.dir("memory"), file))
	return n
}

// Yield gives the Group the lowest CPU priority, or the usual one if yield is false.
func (g *Group) Yield(yield bool) error {
	file, least, usual := "cpu.shares", "2", "1024"
	if g.h.v2 {
		file, least, usual = "cpu.weight", "1", "100"
	}
	if yield {
		return g.write("cpu", file, least)
	}
	return g.write("cpu", file, usual)
}

// Add moves processes, with all their threads, into the Group.
func (g *Group) Add(pids ...int) error {
	for _, dir := range g.dirs() {
		f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
		for _, pid := range pids {
			if _, err := f.WriteString(strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
				f.Close()
				return fmt.Errorf("join cgroup: %w", err)
			}
		}
		f.Close()
	}
	return nil
}

// Handle opens the Group's directory for CLONE_INTO_CGROUP; nil on v1, which lacks that.
func (g *Group) Handle() (*os.File, error) {
	if !g.h.v2 {
		return nil, nil
	}
	return os.Open(g.dir(""))
}

// Usage is the resource usage of a Group.
type Usage struct {
	MemoryBytes int64 // anonymous and shared memory, without page cache
	// AnonymousBytes is the anonymous part of MemoryBytes: the heaps of the processes,
	// without memory that they share by a file, as a sentry does with its guest.
	AnonymousBytes int64
	CPU            time.Duration
	Pids           int64
}

// Usage reads the Group's present usage.
func (g *Group) Usage() (Usage, error) {
	var u Usage
	stat, err := readStat(filepath.Join(g.dir("memory"), "memory.stat"))
	if err != nil {
		return u, err
	}
	if g.h.v2 {
		u.AnonymousBytes = stat["anon"]
		u.MemoryBytes = stat["anon"] + stat["shmem"]
		cpu, err := readStat(filepath.Join(g.dir("cpu"), "cpu.stat"))
		if err != nil {
			return u, err
		}
		u.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	} else {
		u.AnonymousBytes = stat["total_rss"]
		u.MemoryBytes = stat["total_rss"] + stat["total_shmem"]
		ns, err := readInt(filepath.Join(g.dir("cpuacct"), "cpuacct.usage"))
		if err != nil {
			return u, err
		}
		u.CPU = time.Duration(ns)
	}
	u.Pids, err = readInt(filepath.Join(g.dir("pids"), "pids.current"))
	return u, err
}

// MemoryCharged is all memory charged to the Group in bytes, page cache included.
func (g *Group) MemoryCharged() (int64, error) {
	if g.h.v2 {
		return readInt(filepath.Join(g.dir("memory"), "memory.current"))
	}
	return readInt(filepath.Join(g.dir("memory"), "memory.usage_in_bytes"))
}

// Outside returns the pids that are not in the Group: on v1, not in all of its
// controllers.
func (g *Group) Outside(pids []int) ([]int, error) {
	in := map[int]int{}
	dirs := g.dirs()
	for _, dir := range dirs {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return nil, err
		}
		for _, pid := range parsePids(b) {
			in[pid]++
		}
	}
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return in[pid] == len(dirs) }), nil
}

// Procs lists the processes in the Group: on v1, in any of its controllers, as a process
// whose move was interrupted is not in all of them.
func (g *Group) Procs() ([]int, error) {
	var pids []int
	for _, dir := range g.dirs() {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, os.ErrNotExist) {
			continue // partly removed
		}
		if err != nil {
			return nil, err
		}
		for _, pid := range parsePids(b) {
			if !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// parsePids reads a file of process IDs, a line each.
func parsePids(b []byte) (pids []int) {
	for line := range strings.Lines(string(b)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Kill sends SIGKILL to every process in the Group.
func (g *Group) Kill() {
	if g.h.v2 && g.write("", "cgroup.kill", "1") == nil {
		return
	}
	pids, _ := g.Procs()
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// Remove deletes the Group, waiting up to wait for its killed processes to be gone.
// Processes that are born meanwhile are killed too. A missing Group is a success.
func (g *Group) Remove(wait time.Duration) error {
	deadline := time.Now().Add(wait)
	pause := 500 * time.Microsecond
	for {
		var busy error
		for _, dir := range g.dirs() {
			if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
				busy = &os.PathError{Op: "rmdir", Path: dir, Err: err}
			}
		}
		if busy == nil || time.Now().After(deadline) {
			return busy
		}
		g.Kill()
		// The kernel has no event for "the last task's exit has been accounted", so poll
		// with backoff.
		time.Sleep(pause)
		pause = min(pause*2, 20*time.Millisecond)
	}
}

// OutOfMemory reports whether the kernel's OOM killer has killed a process of the Group.
func (g *Group) OutOfMemory() bool {
	file := "memory.oom_control"
	if g.h.v2 {
		file = "memory.events"
	}
	stat, err := readStat(filepath.Join(g.dir("memory"), file))
	return err == nil && stat["oom_kill"] > 0
}

func readInt(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

func readStat(path string) (map[string]int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	stat := map[string]int64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), " ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			stat[key] = n
		}
	}
	return stat, nil
}

type mounts struct {
	v1       map[string]string // by controller
	v2       string
	v2Has    []string // controllers
	readOnly map[string]bool
}

// cgroupMounts finds the mount points of the hierarchies. A v2 tree counts only when it
// has a memory controller. root is the host's root folder.
func cgroupMounts(root, mountinfo string) (mounts, error) {
	f, err := os.Open(filepath.Join(root, mountinfo))
	if err != nil {
		return mounts{}, err
	}
	defer f.Close()
	m := mounts{v1: map[string]string{}, readOnly: map[string]bool{}}
	for s := bufio.NewScanner(f); s.Scan(); {
		before, after, ok := strings.Cut(s.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 3 {
			continue
		}
		if strings.HasPrefix(right[0], "cgroup") {
			m.readOnly[left[4]] = slices.Contains(strings.Split(left[5], ","), "ro")
		}
		switch right[0] {
		case "cgroup2":
			b, _ := os.ReadFile(filepath.Join(root, left[4], "cgroup.controllers"))
			if has := strings.Fields(string(b)); slices.Contains(has, "memory") {
				m.v2, m.v2Has = left[4], has
			}
		case "cgroup":
			for o := range strings.SplitSeq(right[2], ",") {
				m.v1[o] = left[4]
			}
		}
	}
	return m, nil
}
