package files

import (
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The metadata that E2B's clients give files are extended attributes.
const (
	MetadataPrefix = "user.e2b."
	MaxMetadata    = 4096 // bytes, the prefix of each key counted
)

// writeMetadata replaces all metadata of a file.
func writeMetadata(f *os.File, metadata map[string]string) error {
	fd := int(f.Fd())
	for _, name := range xattrs(func(buf []byte) (int, error) { return unix.Flistxattr(fd, buf) }) {
		if key, ok := strings.CutPrefix(name, MetadataPrefix); ok && metadata[key] == "" {
			_ = unix.Fremovexattr(fd, name)
		}
	}
	for key, value := range metadata {
		if err := unix.Fsetxattr(fd, MetadataPrefix+key, []byte(value), 0); err != nil {
			return Failed(http.StatusInternalServerError, "metadata cannot be kept: %v", err)
		}
	}
	return nil
}

// ReadMetadata returns a file's metadata; nil when it has none.
func ReadMetadata(path string) map[string]string {
	var out map[string]string
	for _, name := range xattrs(func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) }) {
		key, ok := strings.CutPrefix(name, MetadataPrefix)
		if !ok {
			continue
		}
		value := make([]byte, MaxMetadata)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = string(value[:n])
	}
	return out
}

// xattrs splits a list of names.
func xattrs(list func([]byte) (int, error)) []string {
	n, err := list(nil)
	if err != nil || n == 0 {
		return nil
	}
	buf := make([]byte, n)
	if n, err = list(buf); err != nil {
		return nil
	}
	return strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00")
}
