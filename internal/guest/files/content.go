package files

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// statusError is an error with its HTTP status.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

// Failed returns an error that AnswerError answers with the HTTP status code.
func Failed(code int, format string, args ...any) error {
	return &statusError{code, fmt.Sprintf(format, args...)}
}

// AnswerError answers with an error as envd does.
func AnswerError(w http.ResponseWriter, err error) {
	var s *statusError
	var coded *connect.Error
	switch {
	case errors.As(err, &s):
		Fail(w, s.code, s.message)
	case errors.As(err, &coded):
		Fail(w, codeStatuses[coded.Code()], coded.Message())
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		Fail(w, http.StatusInsufficientStorage, "not enough disk space available")
	case errors.Is(err, fs.ErrNotExist):
		Fail(w, http.StatusNotFound, err.Error())
	case errors.Is(err, fs.ErrPermission):
		Fail(w, http.StatusForbidden, err.Error())
	default:
		kind, text := server.RefusalOf(err)
		var p *fs.PathError
		if errors.As(err, &p) && text != "" {
			err = errors.New(p.Path + " " + text)
		}
		Fail(w, statuses[kind], err.Error())
	}
}

// statuses maps each refusal to an HTTP status.
var statuses = map[server.Refusal]int{
	server.RefusedInternal: http.StatusInternalServerError, server.RefusedAbsent: http.StatusNotFound, server.RefusedConflict: http.StatusConflict,
	server.RefusedForbidden: http.StatusForbidden, server.RefusedFull: http.StatusInsufficientStorage, server.RefusedInvalid: http.StatusBadRequest,
	server.RefusedBusy: http.StatusTooManyRequests,
}

// codeStatuses maps the codes of owner and Describe to HTTP statuses.
var codeStatuses = map[connect.Code]int{
	connect.CodeInvalidArgument: http.StatusBadRequest, connect.CodeNotFound: http.StatusNotFound, connect.CodeAlreadyExists: http.StatusConflict,
	connect.CodeFailedPrecondition: http.StatusConflict, connect.CodePermissionDenied: http.StatusForbidden,
	connect.CodeResourceExhausted: http.StatusTooManyRequests, connect.CodeInternal: http.StatusInternalServerError,
}

// Fail answers with envd's error body.
func Fail(w http.ResponseWriter, code int, message string) {
	Reply(w, code, map[string]any{"code": code, "message": message})
}

// Reply answers with body as JSON.
func Reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// Opened is a regular file that is open for reading.
type Opened struct {
	*os.File
	Info    fs.FileInfo
	Content io.Reader // the whole file; may be read once, instead of Send
	sized   bool
}

// Open opens a regular file for reading; it never blocks.
func Open(path string) (*Opened, error) {
	f, info, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Failed(http.StatusNotFound, "path '%s' does not exist", path)
	}
	if err != nil {
		return nil, err
	}
	o := &Opened{File: f, Info: info}
	if o.Content, o.sized, err = contentOf(f); err != nil {
		f.Close()
		return nil, err
	}
	return o, nil
}

// openRegular opens a regular file for reading; it never blocks.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	// Opening another kind of file may have side effects. The path may also change
	// later.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, nil, notRegular(path, info)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(path, info)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func notRegular(path string, info fs.FileInfo) error {
	return Failed(http.StatusBadRequest, "path '%s' is not a regular file: it is %s", path, server.KindOf(info.Mode()))
}

// contentOf returns the content of f. If the size is only known after reading, as
// for files of /proc, it is not sized: then ranges and conditions are not
// supported.
func contentOf(f *os.File) (content io.Reader, sized bool, err error) {
	size, unknown := f.Seek(0, io.SeekEnd)
	if unknown == nil {
		if _, err := f.Seek(0, io.SeekStart); err != nil || size > 0 {
			return f, true, err
		}
	}
	reader := bufio.NewReader(f)
	switch _, err := reader.Peek(1); {
	case errors.Is(err, io.EOF) && unknown == nil:
		return f, true, nil
	case err != nil && !errors.Is(err, io.EOF):
		return nil, false, Failed(http.StatusBadRequest, "path '%s' cannot be read", f.Name())
	}
	return reader, false, nil
}

// entityTag returns the tag of a file's content. It is weak as long as a second
// write could have left the same times (RFC 9110, section 8.8.1).
func entityTag(info fs.FileInfo, now time.Time) string {
	const settled = 2 * time.Second
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	changed := time.Unix(st.Ctim.Unix())
	tag := fmt.Sprintf(`"%x-%x-%x-%x"`, st.Ino, info.Size(), info.ModTime().UnixNano(), changed.UnixNano())
	if now.Sub(changed) < settled {
		return "W/" + tag
	}
	return tag
}

// Send answers with the file's content, or the part that r wants (RFC 9110, sections
// 13 and 14). Content whose size is not known is sent whole.
func (o *Opened) Send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	if !o.sized {
		if _, err := io.Copy(w, o.Content); err != nil {
			panic(http.ErrAbortHandler) // the header was sent: abort visibly
		}
		return
	}
	h.Set("ETag", entityTag(o.Info, time.Now()))
	if o.Info.Size() == 0 {
		h.Set("Content-Length", "0")
	}
	http.ServeContent(w, r, "", o.Info.ModTime(), o.File)
}

// Write makes all of body the content of a file, which then belongs to u. It creates
// the missing folders above it and replaces all metadata.
func Write(path string, body io.Reader, u server.User, metadata map[string]string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return Failed(http.StatusBadRequest, "path is a directory: %s", path)
	} else if err == nil && !info.Mode().IsRegular() { // opening a FIFO without a reader would not help
		return Failed(http.StatusBadRequest, "path is not a regular file: %s", path)
	}
	if err := makeDirsFor(filepath.Dir(path), u); err != nil {
		return err
	}
	return writeFile(path, body, u, metadata)
}

// writeFile replaces a file's content. An existing file keeps its mode; a new file
// that is incomplete is removed.
func writeFile(path string, body io.Reader, u server.User, metadata map[string]string) (err error) {
	_, statErr := os.Lstat(path)
	isNew := errors.Is(statErr, fs.ErrNotExist)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil && isNew {
			os.Remove(path)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		isNew = false
		return Failed(http.StatusBadRequest, "path is not a regular file: %s", path)
	}
	if err := f.Chown(int(u.UID), int(u.GID)); err != nil {
		return err
	}
	if err := copyInPieces(f, body); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return Failed(http.StatusBadRequest, "the body ended early")
		}
		return err
	}
	return writeMetadata(f, metadata)
}

// pieces are the buffers in which uploads are written. The cost of a write in the
// sentry hardly depends on its size: pieces of 32 KiB were six times slower than
// pieces of 1 MiB.
var pieces = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 1<<20) }}

// copyInPieces copies r to f in few, large pieces.
func copyInPieces(f *os.File, r io.Reader) error {
	w := pieces.Get().(*bufio.Writer)
	defer func() {
		w.Reset(nil)
		pieces.Put(w)
	}()
	// Hiding everything but Write and Read keeps io from choosing buffers of its own.
	w.Reset(struct{ io.Writer }{f})
	if _, err := w.ReadFrom(struct{ io.Reader }{r}); err != nil {
		return err
	}
	return w.Flush()
}

// Read answers GET guest.FilesPath?path=P with the content of a file.
func (s *Service) Read(w http.ResponseWriter, r *http.Request) {
	if err := s.read(w, r); err != nil {
		AnswerError(w, err)
	}
}

func (s *Service) read(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.Query().Get("path")
	if _, err := s.owner(path); err != nil {
		return err
	}
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	f.Send(w, r)
	return nil
}

// Write answers PUT guest.FilesPath?path=P, whose body becomes the content of the
// file, with the file's FileEntry.
func (s *Service) Write(w http.ResponseWriter, r *http.Request) {
	raw, err := s.write(r.URL.Query().Get("path"), r.Body)
	if err != nil {
		AnswerError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/proto")
	_, _ = w.Write(raw)
}

func (s *Service) write(path string, body io.Reader) ([]byte, error) {
	u, err := s.owner(path)
	if err != nil {
		return nil, err
	}
	if err := Write(path, body, u, nil); err != nil {
		return nil, err
	}
	e, err := s.entry(path)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(e)
}
