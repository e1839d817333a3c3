package server

import (
	"bytes"
	"context"
	"encoding/hex"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
)

const (
	// maxListeners bounds the list of listeners.
	maxListeners = 1024
	// maxDescriptors bounds how many open files are searched for the sockets'
	// processes: each costs a system call.
	maxDescriptors = 1 << 16
)

// listener is a listening TCP socket.
type listener struct {
	at    netip.AddrPort
	inode string // the kernel's number of the socket
	pid   int    // of a process that holds it; 0: not known
	name  string // of that process
}

// ListPorts lists the listening ports of the Sandbox.
func (c *Control) ListPorts(context.Context, *connect.Request[guestv1.ListPortsRequest]) (*connect.Response[guestv1.ListPortsResponse], error) {
	all, truncated, err := listeners("/proc")
	if err != nil {
		return nil, connectError(err)
	}
	out := &guestv1.ListPortsResponse{Truncated: truncated}
	for _, l := range all {
		out.Ports = append(out.Ports, &guestv1.ListeningPort{
			Port: uint32(l.at.Port()), Address: l.at.Addr().String(), Pid: int64(l.pid), Process: l.name,
		})
	}
	return connect.NewResponse(out), nil
}

// listeners reads the listening sockets and their processes from a proc filesystem.
// truncated says that more exist. A socket whose process is not found within
// maxDescriptors has none.
func listeners(proc string) (all []listener, truncated bool, err error) {
	for _, name := range []string{"tcp", "tcp6"} {
		b, err := readSmall(proc + "/net/" + name)
		if os.IsNotExist(err) {
			continue // a kernel without this family
		}
		if err != nil {
			return nil, false, err
		}
		for line := range bytes.Lines(b) {
			l, ok := parseListener(string(line))
			if !ok {
				continue
			}
			if len(all) == maxListeners {
				return nameListeners(proc, all), true, nil
			}
			all = append(all, l)
		}
	}
	return nameListeners(proc, all), false, nil
}

// parseListener reads a line of /proc/net/tcp (proc(5)); false for sockets that do
// not listen and for the head of the table.
func parseListener(line string) (listener, bool) {
	const local, state, inode, listens = 1, 3, 9, "0A"
	f := strings.Fields(line)
	if len(f) <= inode || f[state] != listens {
		return listener{}, false
	}
	at, ok := parseSocket(f[local])
	return listener{at: at, inode: f[inode]}, ok
}

// parseSocket reads an address as Linux prints it: hexadecimal words, each with
// its first byte last, a colon and the port.
func parseSocket(text string) (netip.AddrPort, bool) {
	address, number, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	port, wrong := strconv.ParseUint(number, 16, 16)
	if err != nil || wrong != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	a, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a, uint16(port)), ok
}

// nameListeners searches the open files of processes for the holders of the
// sockets.
func nameListeners(proc string, all []listener) []listener {
	s := search{proc: proc, unnamed: make(map[string][]*listener, len(all)), left: maxDescriptors}
	for i := range all {
		target := "socket:[" + all[i].inode + "]"
		s.unnamed[target] = append(s.unnamed[target], &all[i])
	}
	for owner, pids := range owners(proc) {
		asOwner(owner, func() { s.look(pids) })
	}
	return all
}

// search is for the processes that hold sockets.
type search struct {
	proc    string
	unnamed map[string][]*listener // by the link target of a descriptor
	left    int                    // how many descriptors may still be searched
}

// look searches the open files of these processes, in order.
func (s *search) look(pids []int) {
	for _, pid := range pids {
		if len(s.unnamed) == 0 || s.left <= 0 {
			return
		}
		dir := s.proc + "/" + strconv.Itoa(pid)
		fds := descriptors(dir+"/fd", s.left)
		s.left -= len(fds)
		for _, fd := range fds {
			target, err := os.Readlink(dir + "/fd/" + fd)
			if err != nil {
				continue // closed meanwhile
			}
			for _, l := range s.unnamed[target] {
				l.pid, l.name = pid, commandName(dir)
			}
			delete(s.unnamed, target)
		}
	}
}

// owner is the user and group of a process.
type owner struct{ uid, gid uint32 }

// owners lists the processes of a proc filesystem by owner, each list with the
// smallest number first: an inherited socket is reported for its first holder.
func owners(proc string) map[owner][]int {
	dir, err := os.Open(proc)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	out := map[owner][]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		var st unix.Stat_t
		if err == nil && unix.Stat(proc+"/"+name, &st) == nil {
			o := owner{st.Uid, st.Gid}
			out[o] = append(out[o], pid)
		}
	}
	for _, pids := range out {
		slices.Sort(pids)
	}
	return out
}

// asOwner calls f on a thread with o's real user and group. The kernel lets only o read
// the open files of its processes; other users need a capability that no process inside
// has. The thread stays root in all else.
func asOwner(o owner, f func()) {
	if os.Geteuid() != 0 || o.uid == 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // a thread that is not unlocked ends with this goroutine
		if setReal(o) == nil {
			f()
		}
		if setReal(owner{}) == nil {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}

// setReal sets the real user and group of this thread.
func setReal(o owner) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(o.gid), keep, keep); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(o.uid), keep, keep); errno != 0 {
		return errno
	}
	return nil
}

// descriptors lists up to limit open files of a process.
func descriptors(path string, limit int) []string {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(limit)
	return names
}

// commandName returns the name that a process gives itself; do not trust it.
func commandName(dir string) string {
	b, err := readSmall(dir + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "\uFFFD"))
}
