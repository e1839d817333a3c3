package envd

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// statusError is an error with its HTTP status.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

func failed(code int, format string, args ...any) error {
	return &statusError{code, fmt.Sprintf(format, args...)}
}

// answerError writes an error as envd does.
func answerError(w http.ResponseWriter, err error) {
	var s *statusError
	switch {
	case errors.As(err, &s):
		fail(w, s.code, s.message)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		fail(w, http.StatusInsufficientStorage, "not enough disk space available")
	case errors.Is(err, fs.ErrNotExist):
		fail(w, http.StatusNotFound, err.Error())
	case errors.Is(err, fs.ErrPermission):
		fail(w, http.StatusForbidden, err.Error())
	default:
		kind, text := server.RefusalOf(err)
		var p *fs.PathError
		if errors.As(err, &p) && text != "" {
			err = errors.New(p.Path + " " + text)
		}
		fail(w, statuses[kind], err.Error())
	}
}

// statuses maps each refusal to an HTTP status.
var statuses = map[server.Refusal]int{
	server.RefusedInternal: http.StatusInternalServerError, server.RefusedAbsent: http.StatusNotFound, server.RefusedConflict: http.StatusConflict,
	server.RefusedForbidden: http.StatusForbidden, server.RefusedFull: http.StatusInsufficientStorage, server.RefusedInvalid: http.StatusBadRequest,
	server.RefusedBusy: http.StatusTooManyRequests,
}

// authorize permits a request for a file's content: by the token, or by a signature
// over path, operation, user and expiry.
func (s *Server) authorize(r *http.Request, operation string) error {
	owner, _ := s.guest.Owner()
	if owner.AccessToken == "" {
		return nil
	}
	if got := r.Header.Get(tokenHeader); got != "" {
		if sameToken(got, owner.AccessToken) {
			return nil
		}
		return failed(http.StatusUnauthorized, "access token present in header but does not match")
	}
	q := r.URL.Query()
	got := q.Get("signature")
	if got == "" {
		return failed(http.StatusUnauthorized, "missing signature query parameter")
	}
	end := q.Get("signature_expiration")
	if !sameToken(got, Signature(q.Get("path"), operation, q.Get("username"), owner.AccessToken, end)) {
		return failed(http.StatusUnauthorized, "invalid signature")
	}
	if end == "" {
		return nil
	}
	if unixEnd, err := strconv.ParseInt(end, 10, 64); err != nil || time.Now().Unix() > unixEnd {
		return failed(http.StatusUnauthorized, "signature is already expired")
	}
	return nil
}

// Signature returns the signature of a link that permits one operation ("read" or
// "write") on one path. end is its expiry in Unix seconds; empty: never.
func Signature(path, operation, user, token, end string) string {
	raw := path + ":" + operation + ":" + user + ":" + token
	if end != "" {
		raw += ":" + end
	}
	sum := sha256.Sum256([]byte(raw))
	return "v1_" + strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "=")
}

// fileUser returns the user of a request for a file.
func (s *Server) fileUser(r *http.Request) (server.User, error) {
	return s.accountOf(r.URL.Query().Get("username"))
}

// accountOf is account for plain HTTP requests.
func (s *Server) accountOf(name string) (server.User, error) {
	u, err := account(s.guest, name)
	var unknown unknownUser
	switch {
	case errors.As(err, &unknown):
		return u, failed(http.StatusUnauthorized, "error looking up user '%s': user: unknown user %s", string(unknown), string(unknown))
	case err != nil:
		return u, failed(http.StatusUnauthorized, "%v", err)
	}
	return u, nil
}

// download answers GET /files.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	if err := s.downloadFile(w, r); err != nil {
		answerError(w, err)
	}
}

func (s *Server) downloadFile(w http.ResponseWriter, r *http.Request) error {
	if err := s.authorize(r, "read"); err != nil {
		return err
	}
	u, err := s.fileUser(r)
	if err != nil {
		return err
	}
	path, err := resolve(r.URL.Query().Get("path"), u)
	if err != nil {
		return failed(http.StatusBadRequest, "%v", err)
	}
	f, info, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return failed(http.StatusNotFound, "path '%s' does not exist", path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return send(w, r, f, info)
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
	return failed(http.StatusBadRequest, "path '%s' is not a regular file: it is %s", path, server.KindOf(info.Mode()))
}

// send writes a file's content in an encoding that the client accepts.
func send(w http.ResponseWriter, r *http.Request, f *os.File, info fs.FileInfo) error {
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": info.Name()}))
	encoding, ok := acceptedEncoding(r.Header.Get("Accept-Encoding"))
	if !ok {
		return failed(http.StatusNotAcceptable, "no acceptable encoding: identity and gzip are there")
	}
	content, sized, err := contentOf(f)
	if err != nil {
		return err
	}
	if encoding == "gzip" && r.Header.Get("Range") == "" {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Type", "application/octet-stream")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // fails only for invalid levels
		_, err := io.Copy(z, content)
		if err = errors.Join(err, z.Close()); err != nil {
			panic(http.ErrAbortHandler) // the header was sent: abort visibly
		}
		return nil
	}
	h.Set("Content-Type", "application/octet-stream")
	if !sized {
		if _, err := io.Copy(w, content); err != nil {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	h.Set("ETag", entityTag(info, time.Now()))
	if info.Size() == 0 {
		h.Set("Content-Length", "0")
	}
	http.ServeContent(w, r, "", info.ModTime(), f)
	return nil
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
		return nil, false, failed(http.StatusBadRequest, "path '%s' cannot be read", f.Name())
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

// acceptedEncoding chooses identity or gzip (RFC 9110, section 12.5.3); false when
// the client accepts neither. A client that also names other codings gets identity:
// its HTTP library only lists the codings that it can decode, and compression costs
// the Sandbox more than the link does.
func acceptedEncoding(header string) (string, bool) {
	if strings.TrimSpace(header) == "" {
		return "identity", true
	}
	weights := map[string]float64{}
	for part := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(part, ";")
		weight := 1.0
		if q, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			if v, err := strconv.ParseFloat(q, 64); err == nil {
				weight = v
			}
		}
		weights[strings.ToLower(strings.TrimSpace(name))] = weight
	}
	weight := func(name string, otherwise float64) float64 {
		if w, ok := weights[name]; ok {
			return w
		}
		if w, ok := weights["*"]; ok {
			return w
		}
		return otherwise
	}
	zip, plain := weight("gzip", 0), weight("identity", 0.001)
	listed := slices.ContainsFunc([]string{"deflate", "br", "zstd"}, func(name string) bool { _, ok := weights[name]; return ok })
	switch {
	case plain > 0 && listed:
		return "identity", true
	case zip > 0 && zip > plain:
		return "gzip", true
	case plain > 0:
		return "identity", true
	case zip > 0:
		return "gzip", true
	}
	return "", false
}

// uploaded is one file of an upload's answer.
type uploaded struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload answers POST /files.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	files, err := s.uploadFiles(r)
	if err != nil {
		answerError(w, err)
		return
	}
	reply(w, http.StatusOK, files)
}

func (s *Server) uploadFiles(r *http.Request) ([]uploaded, error) {
	if err := s.authorize(r, "write"); err != nil {
		return nil, err
	}
	u, err := s.fileUser(r)
	if err != nil {
		return nil, err
	}
	metadata, err := metadataOf(r.Header)
	if err != nil {
		return nil, err
	}
	body := io.Reader(r.Body)
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, failed(http.StatusBadRequest, "the body is not gzip")
		}
		defer z.Close()
		body = z
	default:
		return nil, failed(http.StatusBadRequest, "the content encoding must be gzip or identity, not %.40q", encoding)
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	up := uploader{user: u, metadata: metadata, override: r.URL.Query().Get("path")}
	switch kind {
	case "multipart/form-data":
		return up.parts(body, params["boundary"])
	case "application/octet-stream":
		if up.override == "" {
			return nil, failed(http.StatusBadRequest, "the query parameter path is needed with application/octet-stream")
		}
		one, err := up.one(up.override, body)
		return []uploaded{one}, err
	}
	return nil, failed(http.StatusBadRequest, "the content type must be multipart/form-data or application/octet-stream")
}

// uploader writes the files of one upload.
type uploader struct {
	user     server.User
	metadata map[string]string
	override string // path that replaces the part's own
}

// one writes one file from body.
func (up *uploader) one(asked string, body io.Reader) (uploaded, error) {
	path, err := resolve(asked, up.user)
	if err != nil {
		return uploaded{}, failed(http.StatusBadRequest, "%v", err)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return uploaded{}, failed(http.StatusBadRequest, "path is a directory: %s", path)
	} else if err == nil && !info.Mode().IsRegular() { // opening a FIFO without a reader would not help
		return uploaded{}, failed(http.StatusBadRequest, "path is not a regular file: %s", path)
	}
	if err := makeDirs(filepath.Dir(path), up.user); err != nil {
		return uploaded{}, err
	}
	if err := writeFile(path, body, up.user, up.metadata); err != nil {
		return uploaded{}, err
	}
	return uploaded{Name: filepath.Base(path), Path: path, Type: "file", Metadata: up.metadata}, nil
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
		return failed(http.StatusBadRequest, "path is not a regular file: %s", path)
	}
	if err := f.Chown(int(u.UID), int(u.GID)); err != nil {
		return err
	}
	if err := copyInPieces(f, body); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return failed(http.StatusBadRequest, "the body ended early")
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

// composeRequest joins files.
type composeRequest struct {
	SourcePaths []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose answers POST /files/compose: it joins files into one and deletes the
// sources.
func (s *Server) compose(w http.ResponseWriter, r *http.Request) {
	const maxBody = 1 << 20
	var req composeRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&req); err != nil || len(req.SourcePaths) == 0 || req.Destination == "" {
		fail(w, http.StatusBadRequest, "source_paths and destination are needed")
		return
	}
	done, err := s.composeFiles(req)
	if err != nil {
		answerError(w, err)
		return
	}
	reply(w, http.StatusOK, done)
}

func (s *Server) composeFiles(req composeRequest) (uploaded, error) {
	u, err := s.accountOf(req.Username)
	if err != nil {
		return uploaded{}, err
	}
	var sources []io.Reader
	var paths []string
	for _, asked := range req.SourcePaths {
		path, err := resolve(asked, u)
		if err != nil {
			return uploaded{}, failed(http.StatusBadRequest, "%v", err)
		}
		f, _, err := openRegular(path)
		if err != nil {
			return uploaded{}, err
		}
		defer f.Close()
		sources, paths = append(sources, f), append(paths, path)
	}
	destination, err := resolve(req.Destination, u)
	if err != nil {
		return uploaded{}, failed(http.StatusBadRequest, "%v", err)
	}
	// To a temporary file: the destination may be one of the sources.
	aside := destination + ".composing"
	up := uploader{user: u}
	if _, err := up.one(aside, io.MultiReader(sources...)); err != nil {
		return uploaded{}, err
	}
	if err := os.Rename(aside, destination); err != nil {
		os.Remove(aside)
		return uploaded{}, err
	}
	for _, p := range paths {
		if p != destination {
			os.Remove(p)
		}
	}
	return uploaded{Name: filepath.Base(destination), Path: destination, Type: "file"}, nil
}
