package doctor

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// This describes the current host. free returns an error if a start could not listen
// on an address.
func This(data, addr string, serverUID int, free func(addr string) error) Host {
	exe, _ := os.Executable()
	return Host{
		Root: "/", UID: os.Geteuid(), Arch: runtime.GOARCH, Data: data, ServerUID: serverUID, Running: config.Served(data),
		Addr: addr, Now: time.Now(), Synced: synced(), UserNS: makeUserNS, Disk: diskOf, Free: free, Released: config.ReleasedBase(exe), Program: exec.LookPath,
	}
}

// synced reports whether the kernel considers the clock synchronized. If the kernel
// cannot be asked, it returns true.
func synced() bool {
	state, err := unix.Adjtimex(&unix.Timex{})
	const unsynchronized = 5 // TIME_ERROR of adjtimex(2)
	return err != nil || state != unsynchronized
}

func diskOf(dir string) (Disk, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Disk{}, err
	}
	return Disk{
		Free: int64(st.Bavail) * st.Bsize, Total: int64(st.Blocks) * st.Bsize,
		ReadOnly: st.Flags&unix.ST_RDONLY != 0, Memory: st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC,
	}, nil
}

// makeUserNS runs this program's version check in a new user namespace.
func makeUserNS() error {
	cmd := exec.Command("/proc/self/exe", "--version")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = cmd.Wait() // its start is the answer
	return nil
}
