package builds

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
)

// SignatureName is the file in the folder of a build's programs that holds its Signed, as
// JSON.
const SignatureName = "build.json"

// Read makes the Manifest of the programs in a folder.
func Read(dir string) (Manifest, error) {
	var m Manifest
	named := sha256.New()
	for _, name := range payload.Names() {
		p, err := sumUp(dir, name, named)
		if errors.Is(err, fs.ErrNotExist) {
			return m, fmt.Errorf("%s holds no build of Cloud Sandbox: it has no %s", dir, name)
		}
		if err != nil {
			return m, err
		}
		m.Programs = append(m.Programs, p)
	}
	m.Build = buildOf(named)
	var err error
	if m.Arch, err = archOf(filepath.Join(dir, payload.Sentry)); err != nil {
		return m, fmt.Errorf("%s holds no build of Cloud Sandbox: %w", dir, err)
	}
	return m, m.check()
}

// buildOf returns the name of the build whose programs were hashed one after the other.
func buildOf(named hash.Hash) string {
	const digits = 16
	return hex.EncodeToString(named.Sum(nil))[:digits]
}

// sumUp describes a file of a folder. It writes the content to also, too.
func sumUp(dir, name string, also io.Writer) (Program, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Program{}, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return Program{}, errors.Join(err, fmt.Errorf("%s is not a file", f.Name()))
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(sum, also), io.LimitReader(f, maxProgram+1))
	return Program{Name: name, Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

// archOf returns the architecture of a program, as Go names it.
func archOf(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("%s is a program for %s", filepath.Base(path), f.Machine)
}

// HasSignature returns Conflict unless the folder of a build holds its signature by key.
// It does not read the programs.
func HasSignature(dir string, key installation.Key) error {
	_, err := manifestIn(dir, key)
	return err
}

func manifestIn(dir string, key installation.Key) (Manifest, error) {
	build := filepath.Base(dir)
	f, err := os.OpenFile(filepath.Join(dir, SignatureName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, refused(build, "it is not signed", err)
	}
	if err != nil {
		return Manifest{}, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, MaxSignature+1))
	if err != nil {
		return Manifest{}, err
	}
	return Open(raw, build, key)
}

// Verify returns Conflict unless the folder of a build holds exactly the programs that key
// has signed for this kind of machine. Only root, or this process's user, may be able
// to change them: so they stay verified.
func Verify(dir string, key installation.Key) error {
	m, err := manifestIn(dir, key)
	if err != nil {
		return err
	}
	return verify(dir, m)
}

func verify(dir string, m Manifest) error {
	if err := m.runsHere(); err != nil {
		return err
	}
	for _, name := range append([]string{"."}, m.names()...) {
		if err := onlyOurs(filepath.Join(dir, name)); err != nil {
			return untrusted(m.Build, "other users than root can change its programs here", "let only root write to lib/ in the data folder and to the folders above it", err)
		}
	}
	for _, p := range m.Programs {
		got, err := sumUp(dir, p.Name, io.Discard)
		if err == nil && got != p {
			err = fmt.Errorf("it is %+v, not %+v", got, p)
		}
		if err != nil {
			return untrusted(m.Build, "its "+p.Name+" here is not the signed one", "remove lib/"+m.Build+" in the data folder, and start again", err)
		}
	}
	return nil
}

// runsHere returns Conflict if the build is for another kind of machine.
func (m Manifest) runsHere() error {
	if m.Arch == runtime.GOARCH {
		return nil
	}
	return untrusted(m.Build, fmt.Sprintf("it is for %s, and this machine is %s", m.Arch, runtime.GOARCH), "use a node of that kind", nil)
}

// onlyOurs returns an error if another user than root and this process's own can change or
// replace a file. All links on the way count too. The path is absolute.
func onlyOurs(path string) error {
	const most = 40 // links, as in Linux
	const separator = string(filepath.Separator)
	at, left, links := separator, strings.Split(path, separator), 0
	if err := ours(at); err != nil {
		return err
	}
	for len(left) > 0 {
		next := filepath.Join(at, left[0]) // which may be at, or above it
		left = left[1:]
		if err := ours(next); err != nil {
			return err
		}
		to, err := os.Readlink(next)
		switch {
		case errors.Is(err, unix.EINVAL): // no link
			at = next
			continue
		case err != nil:
			return err
		case links == most:
			return &fs.PathError{Op: "readlink", Path: path, Err: unix.ELOOP}
		}
		links++
		left = append(strings.Split(to, separator), left...)
		if filepath.IsAbs(to) {
			at = separator
		}
	}
	return nil
}

func ours(path string) error {
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	kind := s.Mode & unix.S_IFMT
	shared := s.Mode&0o022 != 0 && kind != unix.S_IFLNK && (kind != unix.S_IFDIR || s.Mode&unix.S_ISVTX == 0)
	if s.Uid != 0 && int(s.Uid) != os.Geteuid() || shared {
		return fmt.Errorf("%s has the mode %#o and belongs to user %d", path, s.Mode&0o7777, s.Uid)
	}
	return nil
}

// Keep puts a signature, a Signed as JSON, beside the programs of a build, if key signed
// exactly these.
func Keep(dir string, raw []byte, key installation.Key) error {
	m, err := Open(raw, filepath.Base(dir), key)
	if err != nil {
		return err
	}
	if err := verify(dir, m); err != nil {
		return err
	}
	const readable = 0o644
	if err := durable.Write(filepath.Join(dir, SignatureName), raw, readable); err != nil {
		return fmt.Errorf("keep the signature of build %s: %w", m.Build, err)
	}
	return nil
}

// receiving begins the names of folders into which programs are received. Their makers hold
// locks on them.
const receiving = ".fetch-"

// Receive makes the folder of a build below lib from the content of all programs, one after
// the other, which end is to follow. raw is the Signed of m, as JSON, which the caller has
// opened. The folder appears whole or not at all. No file is executable before all are
// verified. Nothing is received of a build for another kind of machine.
func Receive(lib string, raw []byte, m Manifest, from io.Reader, end byte) error {
	if err := m.runsHere(); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(lib, receiving) // for its owner only
	if err != nil {
		return fmt.Errorf("receive a build: %w", err)
	}
	defer os.RemoveAll(tmp)
	lock, err := lockFolder(tmp)
	if err != nil {
		return fmt.Errorf("receive a build: %w", err)
	}
	defer lock.Close()
	for _, p := range m.Programs {
		if err := receive(tmp, m.Build, p, from); err != nil {
			return err
		}
	}
	var last [2]byte
	if n, err := io.ReadFull(from, last[:]); n != 1 || err != io.ErrUnexpectedEOF || last[0] != end {
		return damaged(m.Build, "its programs", fmt.Errorf("their end is %q, %w", last[:n], err))
	}
	const readable, runnable = 0o644, 0o755
	for _, p := range m.Programs {
		if err := os.Chmod(filepath.Join(tmp, p.Name), runnable); err != nil {
			return fmt.Errorf("receive a build: %w", err)
		}
	}
	err = durable.Write(filepath.Join(tmp, SignatureName), raw, readable)
	if err == nil {
		err = os.Chmod(tmp, runnable)
	}
	if err == nil {
		err = durable.Rename(tmp, filepath.Join(lib, m.Build))
	}
	if err != nil {
		return fmt.Errorf("receive a build: %w", err)
	}
	return nil
}

// receive writes one program, which must have the signed size and hash.
func receive(dir, build string, p Program, from io.Reader) error {
	const ours = 0o600
	f, err := os.OpenFile(filepath.Join(dir, p.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, ours)
	if err != nil {
		return fmt.Errorf("receive a build: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.CopyN(io.MultiWriter(f, sum), from, p.Bytes)
	switch {
	case err == io.EOF:
		return damaged(build, p.Name, fmt.Errorf("it ends after %d bytes", n))
	case err != nil:
		return fmt.Errorf("receive %s of build %s: %w", p.Name, build, err)
	case hex.EncodeToString(sum.Sum(nil)) != p.SHA256:
		return damaged(build, p.Name, errors.New("its hash differs"))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("receive %s of build %s: %w", p.Name, build, err)
	}
	return nil
}

// damaged is the Conflict of a copy whose content differs from the signed content.
func damaged(build, what string, cause error) error {
	return sandbox.Errorf(sandbox.Conflict, "the copy of build %.80s of Cloud Sandbox in the blob store is damaged or was changed: %s differs from its signature; upload it again with `cloud-sandbox cluster sign-build`", build, what).WithCause(cause)
}

// lockFolder locks a folder until the file is closed.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return f, nil
}

// RemoveUnfinished removes the folders that a crash of Receive left below lib.
func RemoveUnfinished(lib string) error {
	left, err := filepath.Glob(filepath.Join(lib, receiving+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range left {
		lock, err := lockFolder(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // in progress, or finished just now
		}
		if err == nil {
			err = os.RemoveAll(dir)
			lock.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Marshal returns a Signed as JSON.
func (s Signed) Marshal() ([]byte, error) {
	raw, err := json.Marshal(s)
	return append(raw, '\n'), err
}
