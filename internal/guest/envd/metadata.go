package envd

import (
	"bufio"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	metadataHeader = "X-Metadata-"
	metadataXattr  = "user.e2b."
	maxKey         = 246  // bytes
	maxMetadata    = 4096 // bytes, the xattr prefix of each key counted
)

// metadataOf reads the metadata headers of an upload.
func metadataOf(h http.Header) (map[string]string, error) {
	var out map[string]string
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok || len(values) == 0 {
			continue
		}
		key = strings.ToLower(key)
		total += len(metadataXattr) + len(key) + len(values[0])
		if key == "" || len(key) > maxKey || total > maxMetadata || !printable(key) || !printable(values[0]) {
			return nil, failed(http.StatusBadRequest, "metadata must be printable ASCII, a key at most %d bytes and all of it at most %d", maxKey, maxMetadata)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = values[0]
	}
	return out, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// writeMetadata replaces all metadata of a file.
func writeMetadata(f *os.File, metadata map[string]string) error {
	fd := int(f.Fd())
	for _, name := range xattrs(func(buf []byte) (int, error) { return unix.Flistxattr(fd, buf) }) {
		if key, ok := strings.CutPrefix(name, metadataXattr); ok && metadata[key] == "" {
			_ = unix.Fremovexattr(fd, name)
		}
	}
	for key, value := range metadata {
		if err := unix.Fsetxattr(fd, metadataXattr+key, []byte(value), 0); err != nil {
			return failed(http.StatusInternalServerError, "metadata cannot be kept: %v", err)
		}
	}
	return nil
}

// readMetadata returns a file's metadata; nil when it has none.
func readMetadata(path string) map[string]string {
	var out map[string]string
	for _, name := range xattrs(func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) }) {
		key, ok := strings.CutPrefix(name, metadataXattr)
		if !ok {
			continue
		}
		value := make([]byte, maxMetadata)
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

// formBuffer is how much of a form is read at a time, in bytes.
const formBuffer = 256 << 10

// parts writes the files of a form. The file name of each part is its path.
func (up *uploader) parts(body io.Reader, boundary string) ([]uploaded, error) {
	if boundary == "" {
		return nil, failed(http.StatusBadRequest, "the form has no boundary")
	}
	// The form reader reads 4 KiB at a time, and each read would be a call of the
	// sentry.
	form := multipart.NewReader(bufio.NewReaderSize(body, formBuffer), boundary)
	seen := map[string]bool{}
	done := []uploaded{}
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			return done, nil
		}
		if err != nil {
			return nil, failed(http.StatusBadRequest, "the form is damaged: %v", err)
		}
		if part.FormName() != "file" {
			continue
		}
		asked := up.override
		if asked == "" {
			asked = partPath(part)
		}
		path, err := resolve(asked, up.user)
		if err != nil {
			return nil, failed(http.StatusBadRequest, "%v", err)
		}
		if asked == "" || seen[path] {
			return nil, failed(http.StatusBadRequest, "each file of the form needs a path of its own, not %q", asked)
		}
		seen[path] = true
		one, err := up.one(asked, part)
		if err != nil {
			return nil, err
		}
		done = append(done, one)
	}
}

// partPath returns the part's file name with its folders, which Part.FileName would
// remove.
func partPath(p *multipart.Part) string {
	_, params, err := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}
