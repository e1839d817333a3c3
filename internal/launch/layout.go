// Package launch is the privileged start of the server: it lays out the data
// folder, keeps the sentry host running, opens the listener, and runs the
// server itself as a user without rights. It parses no request.
package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Users of the parts. They need no entry in /etc/passwd; systemd units may use
// the same numbers.
const (
	ServerUID = 61740
	LinkUID   = 61741
)

// Layout is the data folder. Root owns all but Server.
type Layout struct{ Root string }

func (l Layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.Root}, parts...)...)
}

// Binaries is where payloads are unpacked.
func (l Layout) Binaries() string { return l.path("lib") }

// Templates is the Template store.
func (l Layout) Templates() string { return l.path("templates") }

// Images is where the sentry host finds root filesystems.
func (l Layout) Images() string { return l.path("templates", "images") }

// Upper is where upper layers are made; the files there have no names.
func (l Layout) Upper() string { return l.path("upper") }

// Host is the folder of the sentry host of one build.
func (l Layout) Host(build string) string { return l.path("hosts", build) }

// Group is the parent cgroup of the sentry host of one build. A sentry host ends
// what it does not know in its parent, so those of other data folders and other
// builds must not be there.
func (l Layout) Group(build string) string {
	sum := sha256.Sum256([]byte(l.Host(build)))
	return "cloud-sandbox-" + hex.EncodeToString(sum[:4])
}

// HostSocket is where the sentry host of one build listens.
func (l Layout) HostSocket(build string) string { return l.path("run", "sentry-host-"+build+".sock") }

// Server is the server's own folder: its database, journals and secrets.
func (l Layout) Server() string { return l.path("server") }

// Logs is where detached processes write.
func (l Layout) Logs() string { return l.path("log") }

// Make makes what is missing and gives the server its folder.
func (l Layout) Make() error {
	for dir, mode := range map[string]os.FileMode{
		l.Root: 0o755, l.path("run"): 0o755, l.path("hosts"): 0o711, l.Upper(): 0o700,
		l.Templates(): 0o755, l.Logs(): 0o750, l.Server(): 0o700,
	} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("make the data folder: %w", err)
		}
	}
	if err := os.Chown(l.Server(), ServerUID, ServerUID); err != nil {
		return fmt.Errorf("give the server its folder: %w", err)
	}
	return l.checkSpace()
}

// checkReachable makes sure that the server's user can enter every folder on the
// way to the data folder.
func (l Layout) checkReachable() error {
	const others = 0o001
	for dir := l.Root; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("look at the data folder: %w", err)
		}
		if info.Mode().Perm()&others == 0 {
			return fmt.Errorf("the server runs as user %d, which may not enter %s: choose a data folder elsewhere with --data, or run `chmod o+x %s`", ServerUID, dir, dir)
		}
	}
	return nil
}

// minFree is the least free space to start with: a Template and some Sandboxes.
const minFree = 2 << 30

func (l Layout) checkSpace() error {
	var st unix.Statfs_t
	if err := unix.Statfs(l.Root, &st); err != nil {
		return fmt.Errorf("look at the data folder's disk: %w", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < minFree {
		return fmt.Errorf("%s has %d MiB free and the server needs %d MiB to start: free some space or choose another folder with --data", l.Root, free>>20, minFree>>20)
	}
	return nil
}

// ErrInUse says that another server has the data folder.
var ErrInUse = errors.New("another cloud-sandbox server uses this data folder")

// lockWait is how long Lock waits for a server that is just ending.
const lockWait = 2 * time.Second

// Lock takes the data folder for this server, or returns ErrInUse. The lock
// ends with the last process that holds the file.
func (l Layout) Lock() (*os.File, error) {
	f, err := os.OpenFile(l.path("lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	deadline := time.Now().Add(lockWait)
	for err = tryLock(f); err == unix.EWOULDBLOCK && time.Now().Before(deadline); err = tryLock(f) {
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, fmt.Errorf("%w: %s; stop it first, or choose another with --data", ErrInUse, l.Root)
		}
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	return f, nil
}

func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
