package envd

import (
	"bufio"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/files"
)

const (
	metadataHeader = "X-Metadata-"
	maxKey         = 246 // bytes
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
		total += len(files.MetadataPrefix) + len(key) + len(values[0])
		if key == "" || len(key) > maxKey || total > files.MaxMetadata || !printable(key) || !printable(values[0]) {
			return nil, files.Failed(http.StatusBadRequest, "metadata must be printable ASCII, a key at most %d bytes and all of it at most %d", maxKey, files.MaxMetadata)
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

// formBuffer is how much of a form is read at a time, in bytes.
const formBuffer = 256 << 10

// parts writes the files of a form. The file name of each part is its path.
func (up *uploader) parts(body io.Reader, boundary string) ([]uploaded, error) {
	if boundary == "" {
		return nil, files.Failed(http.StatusBadRequest, "the form has no boundary")
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
			return nil, files.Failed(http.StatusBadRequest, "the form is damaged: %v", err)
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
			return nil, files.Failed(http.StatusBadRequest, "%v", err)
		}
		if asked == "" || seen[path] {
			return nil, files.Failed(http.StatusBadRequest, "each file of the form needs a path of its own, not %q", asked)
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
