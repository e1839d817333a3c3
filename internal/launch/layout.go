// Package launch is the privileged start of the server: it makes the data folder, keeps
// the sentry host running, opens the listener, and runs the server itself as a user
// without rights. It parses no request.
package launch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// Users of the parts. They need no entry in /etc/passwd; systemd units may use
// the same numbers.
const (
	ServerUID = 61740
	LinkUID   = 61741
)

// Layout is the data folder. Root owns all but Server and Volumes.
type Layout struct {
	Root string

	signature func(ctx context.Context, build string) ([]byte, error) // Options.Signature
}

func (l Layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.Root}, parts...)...)
}

// Binaries is the folder of unpacked payloads.
func (l Layout) Binaries() string { return l.path("lib") }

// Templates is the Template store.
func (l Layout) Templates() string { return l.path("templates") }

// Images is the folder of the sentry host's root filesystems.
func (l Layout) Images() string { return l.path("templates", "images") }

// Upper is the folder of upper layers; the files there have no names.
func (l Layout) Upper() string { return l.path("upper") }

// Saved is the folder of this build's saved states.
func (l Layout) Saved() string { return l.path("saved") }

// SavedEarlier is the folder of saved states for the sentry host of an earlier build that
// runs beside ours.
func (l Layout) SavedEarlier(build string) string { return sentryhost.EarlierSaved(l.Saved(), build) }

// Host is the folder of the sentry host of one build.
func (l Layout) Host(build string) string { return l.path("hosts", build) }

// Group is the parent cgroup of the sentry host of one build. A sentry host kills unknown
// groups in its parent, so other data folders and builds need other parents.
func (l Layout) Group(build string) string {
	sum := sha256.Sum256([]byte(l.Host(build)))
	return "cloud-sandbox-" + hex.EncodeToString(sum[:4])
}

// HostSocket is where the sentry host of one build listens.
func (l Layout) HostSocket(build string) string { return l.path("run", "sentry-host-"+build+".sock") }

// NeedSocket is where the server connects to request the sentry host of an earlier build,
// for as long as the connection is open.
func (l Layout) NeedSocket(build string) string { return l.path("run", "sentry-host-"+build+".need") }

// BuilderSocket is where the builder of Templates listens. Its folder is root's, so
// the listener is root.
func (l Layout) BuilderSocket() string { return l.path("run", "builder.sock") }

// Server is the server's own folder: its database, journals and secrets.
func (l Layout) Server() string { return l.path("server") }

// Node is the Node's own folder, with its journal of Boots.
func (l Layout) Node() string { return filepath.Join(l.Server(), "node") }

// Volumes is where the Node keeps Tenants' Volumes.
func (l Layout) Volumes() string { return l.path("volumes") }

// Sockets is where roles listen for each other: in the server's own folder, which no
// other user may enter.
func (l Layout) Sockets() string { return filepath.Join(l.Server(), "run") }

// Socket is where a role listens for the others.
func (l Layout) Socket(role string) string { return filepath.Join(l.Sockets(), role+".sock") }

// Identity is the folder of a role's certificate in a cluster.
func (l Layout) Identity(role string) string { return l.path("cluster", role) }

// Logs is where detached processes write.
func (l Layout) Logs() string { return l.path("log") }

// Make makes missing folders and gives the server its own.
func (l Layout) Make() error {
	for _, f := range []struct {
		dir  string
		mode os.FileMode
	}{
		{l.Root, 0o755}, // before its subfolders, which have other modes
		{l.path("run"), 0o755},
		{l.path("hosts"), 0o711},
		{l.Upper(), 0o700},
		{l.Saved(), 0o700},
		{l.Templates(), 0o755},
		{l.Binaries(), 0o755},
		{l.Logs(), 0o750},
		{l.Server(), 0o700},
		{l.Sockets(), 0o700},
		{l.Volumes(), 0o700},
	} {
		if err := makeFolder(f.dir, f.mode); err != nil {
			return fmt.Errorf("make the data folder: %w", err)
		}
	}
	for _, dir := range []string{l.Server(), l.Sockets(), l.Volumes()} {
		if err := os.Chown(dir, ServerUID, ServerUID); err != nil {
			return fmt.Errorf("give the server its folders: %w", err)
		}
	}
	return nil
}

// makeFolder makes a folder with a mode, regardless of the umask, and its parents so
// that all users may enter them. An existing folder stays as it is.
func makeFolder(dir string, mode os.FileMode) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := makeFolder(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chmod(dir, mode)
}

// ErrInUse says that another server uses the data folder.
var ErrInUse = errors.New("another cloud-sandbox server uses this data folder")

// lockWait is how long Lock waits for a stopping server.
const lockWait = 2 * time.Second

// Lock takes the data folder for a server with all roles, or returns ErrInUse. The lock
// ends with the last process that holds the file.
func (l Layout) Lock() (*os.File, error) {
	f, err := lock(l.path(config.LockFile), unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w: %s; stop it first, or choose another with --data", ErrInUse, l.Root)
	}
	return f, err
}

// LockRole takes one role of the data folder for this process, beside processes with
// other roles, or returns ErrInUse. The locks end with the last process that holds the
// files.
func (l Layout) LockRole(role string) ([]*os.File, error) {
	shared, err := lock(l.path(config.LockFile), unix.LOCK_SH)
	if err == nil {
		var own *os.File
		if own, err = lock(filepath.Join(l.Sockets(), role+".lock"), unix.LOCK_EX); err == nil {
			return []*os.File{shared, own}, nil
		}
		shared.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another %s uses the data folder %s: stop it first, or choose another with --data", role, l.Root)
		}
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("%w: %s; stop it first, or choose another with --data", ErrInUse, l.Root)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("the %s cannot use the data folder %s: start it as root, or as user %d once a start as root has made the folder: %w", role, l.Root, ServerUID, err)
	}
	return nil, err
}

// lock locks a file, which it makes; EWOULDBLOCK if another process holds it.
func lock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	_ = f.Chmod(0o644) // undoes the umask, for a server that root did not start; only the owner can
	deadline := time.Now().Add(lockWait)
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK || time.Now().After(deadline) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	return f, nil
}
