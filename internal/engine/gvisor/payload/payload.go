// Package payload carries the further binaries of the program: the sentry, the link shard
// and the Guest's image. A release build (tag payload) embeds them; a development build
// reads them from the folder of the executable.
package payload

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Names of the parts.
const (
	Sentry     = "gvisor_sentry" // the name that runsc looks for
	Link       = "link"
	GuestImage = "guest.erofs"
)

// names in the order of hashing.
var names = []string{Sentry, Link, GuestImage}

// Names returns the names of the parts, in the order in which a build is named after them.
func Names() []string { return slices.Clone(names) }

// Unpacked is the folder of one build's parts, as files that never change.
type Unpacked struct {
	Dir   string // holds all parts, under their names
	Build string // first 16 hex digits of the hash over all parts
}

// Path returns the path of a part.
func (u Unpacked) Path(name string) string { return filepath.Join(u.Dir, name) }

// Unpack puts the parts below dir, in a folder named after their hash, and returns it. An
// existing folder is reused: it was renamed into place whole. Safe for concurrent use by
// several processes.
func Unpack(dir string) (Unpacked, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Unpacked{}, fmt.Errorf("make the folder for binaries: %w", err)
	}
	tmp, err := os.MkdirTemp(dir, ".unpack-")
	if err != nil {
		return Unpacked{}, fmt.Errorf("unpack binaries: %w", err)
	}
	defer os.RemoveAll(tmp)
	hash := sha256.New()
	for _, name := range names {
		if err := unpack(name, tmp, hash); err != nil {
			return Unpacked{}, fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	u := Unpacked{Build: hex.EncodeToString(hash.Sum(nil))[:16]}
	u.Dir = filepath.Join(dir, u.Build)
	if _, err := os.Stat(u.Dir); err == nil {
		return u, nil
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return Unpacked{}, err
	}
	if err := os.Rename(tmp, u.Dir); err != nil && !errors.Is(err, fs.ErrExist) {
		if _, statErr := os.Stat(u.Dir); statErr != nil {
			return Unpacked{}, fmt.Errorf("unpack binaries: %w", err)
		}
	}
	return u, nil
}

func unpack(name, dir string, hash io.Writer) error {
	in, err := open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.MultiWriter(out, hash), in); err != nil {
		out.Close()
		return err
	}
	return errors.Join(out.Sync(), out.Close())
}

// open opens the content of a part.
func open(name string) (io.ReadCloser, error) {
	if f, err := embedded(name + ".zst"); err == nil {
		d, err := zstd.NewReader(f)
		if err != nil {
			f.Close()
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(filepath.Dir(exe), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this build of cloud-sandbox carries no %s and none lies beside it: build with `make build`", name)
	}
	return f, err
}
