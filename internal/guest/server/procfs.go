package server

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// task is a process as /proc shows it.
type task struct {
	pid, ppid, session int
	start              int64 // when it started, in clock ticks
}

// readSmall reads a file of at most 1 MiB with four system calls. os.ReadFile
// makes ten, and each costs tens of microseconds here.
func readSmall(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	const most = 1 << 20
	buf := make([]byte, 0, 4096)
	for len(buf) < most {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return buf, nil
		default:
			buf = buf[:len(buf)+n]
		}
	}
	return nil, &os.PathError{Op: "read", Path: path, Err: unix.EFBIG}
}

// volumeServer is the PID of the process that serves Volumes, which tasks leaves
// out; 0: none.
var volumeServer atomic.Int64

// tasks lists every process except the Guest itself and the volume server, which
// the others need until they have ended.
func tasks() []task {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	self := os.Getpid()
	var out []task
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self || pid == 1 || pid == int(volumeServer.Load()) {
			continue
		}
		if t, ok := readTask(pid); ok {
			out = append(out, t)
		}
	}
	return out
}

// readTask parses /proc/PID/stat (proc(5)): after the command's closing bracket
// come state, ppid, pgrp and session.
func readTask(pid int) (task, bool) {
	b, err := readSmall("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return task{}, false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const startTime = 19 // field 22, counted from field 3
	if len(f) <= startTime {
		return task{}, false
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	start, err3 := strconv.ParseInt(string(f[startTime]), 10, 64)
	return task{pid: pid, ppid: ppid, session: session, start: start}, err1 == nil && err2 == nil && err3 == nil
}

// rss is the resident memory of a process in bytes, by /proc/PID/statm.
func rss(pid int) int64 {
	b, err := readSmall("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// unmarked reports whether a process carries no run's mark at all: its environment
// was wiped.
func unmarked(pid int) bool {
	b, err := readSmall("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && !bytes.Contains(append([]byte{0}, b...), []byte("\x00"+runMark+"="))
}

// marked reports whether a process was started with this variable in its
// environment. A program may have changed the environment that /proc shows; the
// mark is one of three ways to find a run's processes.
func marked(pid int, variable string) bool {
	b, err := readSmall("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(append([]byte{0}, append(b, 0)...), []byte("\x00"+variable+"\x00"))
}

// family finds the processes of a run: its session, the descendants of known
// processes, and all that carry its mark, even after they have left both.
func family(r *run, known map[int]bool) []int {
	// Until its exec, the process of another run has the Guest's environment, without a
	// mark. ForkExec holds this lock until then.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	leader, mark, since := r.leader, r.mark, r.start
	all := tasks()
	var found []int
	for _, t := range all {
		if t.pid == leader || t.session == leader || known[t.pid] || marked(t.pid, mark) {
			known[t.pid] = true
		}
		// A process that left the session, lost its parent and wiped its
		// environment is recognized by its start time: no other process of that
		// time has no mark.
		if t.ppid == os.Getpid() && t.pid != leader && t.start >= since && unmarked(t.pid) {
			known[t.pid] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for _, t := range all {
			if !known[t.pid] && known[t.ppid] {
				known[t.pid] = true
				changed = true
			}
		}
	}
	for _, t := range all {
		if known[t.pid] {
			found = append(found, t.pid)
		}
	}
	return found
}

// killFamily ends a run's processes for good. It is done when two scans in a row
// have found nothing alive: a child that is born between a scan and a kill is in
// neither, and a fork bomb grows again from one process. known are processes that
// belonged to the run before; killFamily adds to it.
func killFamily(r *run, known map[int]bool) {
	leader := r.leader
	const rounds = 200
	clean := 0
	for range rounds {
		_ = unix.Kill(-leader, unix.SIGKILL)
		pids := family(r, known)
		if onlyDead(pids) {
			if clean++; clean == 2 {
				return
			}
			continue
		}
		clean = 0
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// onlyDead reports whether all of these are zombies that wait to be reaped.
func onlyDead(pids []int) bool {
	for _, pid := range pids {
		b, err := readSmall("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(f) > 0 && f[0][0] != 'Z' && f[0][0] != 'X' {
			return false
		}
	}
	return true
}

// bombSize is the number of processes of one run above which they are not sent
// SIGTERM: a fork bomb answers with more of itself.
const bombSize = 100

// askFamily sends SIGTERM to a run's processes and returns them: processes that
// lose their parent by it can only be found now. The leader's group is stopped
// meanwhile. A fork bomb gets no SIGTERM: askFamily has killed it when it returns
// false.
func askFamily(r *run) (known map[int]bool, asked bool) {
	leader := r.leader
	_ = unix.Kill(-leader, unix.SIGSTOP)
	known = map[int]bool{}
	pids := family(r, known)
	if len(pids) > bombSize {
		killFamily(r, known)
		return known, false
	}
	_ = unix.Kill(-leader, unix.SIGTERM)
	_ = unix.Kill(-leader, unix.SIGCONT)
	for _, pid := range pids {
		if group, err := unix.Getpgid(pid); err == nil && group != leader {
			_ = unix.Kill(pid, unix.SIGTERM)
		}
	}
	return known, true
}

// crowded reports whether a user is close to its limit of processes and threads.
func crowded(uid uint32, limit int64) bool {
	if limit <= 0 {
		return false
	}
	var count int64
	for _, t := range tasks() {
		dir := "/proc/" + strconv.Itoa(t.pid)
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil || st.Uid != uid {
			continue
		}
		threads, _ := os.ReadDir(dir + "/task")
		count += int64(max(len(threads), 1))
	}
	return count*10 >= limit*9
}
