package launch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// Light starts a role that needs no rights, in this process: it opens the role's files
// and listeners and, if run by root, then gives up all rights for good. Roles that start
// sandboxes use Run.
func Light(o Options) (Inherited, error) {
	layout := Layout{Root: o.Data}
	root := os.Geteuid() == 0
	if root {
		unix.Umask(0o022) // as in Run
		if err := layout.Doctor(o.Addr).Folder(); err != nil {
			return Inherited{}, err
		}
		if err := layout.Make(); err != nil {
			return Inherited{}, err
		}
	}
	locks, err := layout.LockRole(o.Role)
	if err != nil {
		return Inherited{}, err
	}
	files, err := Listen(o.Addr)
	if err != nil {
		closeAll(locks)
		return Inherited{}, err
	}
	defer closeAll(files)
	if root && o.Role == config.RoleGateway {
		// Without its rights the role cannot remove the address: the next server
		// overwrites it.
		if _, err := layout.writeAddress(files); err != nil {
			closeAll(locks)
			return Inherited{}, err
		}
	}
	in := Inherited{Locks: locks}
	for _, f := range files {
		l, err := net.FileListener(f)
		if err != nil {
			return in, fmt.Errorf("listen: %w", err)
		}
		in.Listeners = append(in.Listeners, l)
	}
	if root {
		return in, BecomeServer()
	}
	return in, nil
}

// BecomeServer gives up root for good: all threads of this process become the
// server's user. It does nothing for that user itself.
func BecomeServer() error {
	if os.Geteuid() == ServerUID {
		return nil
	}
	err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(ServerUID, ServerUID, ServerUID), syscall.Setresuid(ServerUID, ServerUID, ServerUID))
	if err == nil {
		// The server reads its own /proc files for its metrics.
		err = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}
	if err != nil {
		return fmt.Errorf("become user %d: %w", ServerUID, err)
	}
	return nil
}
