package envd

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/files"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

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
		return files.Failed(http.StatusUnauthorized, "access token present in header but does not match")
	}
	q := r.URL.Query()
	got := q.Get("signature")
	if got == "" {
		return files.Failed(http.StatusUnauthorized, "missing signature query parameter")
	}
	end := q.Get("signature_expiration")
	if !sameToken(got, Signature(q.Get("path"), operation, q.Get("username"), owner.AccessToken, end)) {
		return files.Failed(http.StatusUnauthorized, "invalid signature")
	}
	if end == "" {
		return nil
	}
	if unixEnd, err := strconv.ParseInt(end, 10, 64); err != nil || time.Now().Unix() > unixEnd {
		return files.Failed(http.StatusUnauthorized, "signature is already expired")
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
		return u, files.Failed(http.StatusUnauthorized, "error looking up user '%s': user: unknown user %s", string(unknown), string(unknown))
	case err != nil:
		return u, files.Failed(http.StatusUnauthorized, "%v", err)
	}
	return u, nil
}

// download answers GET /files.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	if err := s.downloadFile(w, r); err != nil {
		files.AnswerError(w, err)
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
		return files.Failed(http.StatusBadRequest, "%v", err)
	}
	f, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return send(w, r, f)
}

// send writes a file's content in an encoding that the client accepts.
func send(w http.ResponseWriter, r *http.Request, f *files.Opened) error {
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": f.Info.Name()}))
	encoding, ok := acceptedEncoding(r.Header.Get("Accept-Encoding"))
	if !ok {
		return files.Failed(http.StatusNotAcceptable, "no acceptable encoding: identity and gzip are available")
	}
	if encoding == "gzip" && r.Header.Get("Range") == "" {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Type", "application/octet-stream")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // fails only for invalid levels
		_, err := io.Copy(z, f.Content)
		if err = errors.Join(err, z.Close()); err != nil {
			panic(http.ErrAbortHandler) // the header was sent: abort visibly
		}
		return nil
	}
	f.Send(w, r)
	return nil
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
	done, err := s.uploadFiles(r)
	if err != nil {
		files.AnswerError(w, err)
		return
	}
	files.Reply(w, http.StatusOK, done)
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
			return nil, files.Failed(http.StatusBadRequest, "the body is not gzip")
		}
		defer z.Close()
		body = z
	default:
		return nil, files.Failed(http.StatusBadRequest, "the content encoding must be gzip or identity, not %.40q", encoding)
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
			return nil, files.Failed(http.StatusBadRequest, "the query parameter path is needed with application/octet-stream")
		}
		one, err := up.one(up.override, body)
		return []uploaded{one}, err
	}
	return nil, files.Failed(http.StatusBadRequest, "the content type must be multipart/form-data or application/octet-stream")
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
		return uploaded{}, files.Failed(http.StatusBadRequest, "%v", err)
	}
	if err := files.Write(path, body, up.user, up.metadata); err != nil {
		return uploaded{}, err
	}
	return uploaded{Name: filepath.Base(path), Path: path, Type: "file", Metadata: up.metadata}, nil
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
		files.Fail(w, http.StatusBadRequest, "source_paths and destination are needed")
		return
	}
	done, err := s.composeFiles(req)
	if err != nil {
		files.AnswerError(w, err)
		return
	}
	files.Reply(w, http.StatusOK, done)
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
			return uploaded{}, files.Failed(http.StatusBadRequest, "%v", err)
		}
		f, err := files.Open(path)
		if err != nil {
			return uploaded{}, err
		}
		defer f.Close()
		sources, paths = append(sources, f.Content), append(paths, path)
	}
	destination, err := resolve(req.Destination, u)
	if err != nil {
		return uploaded{}, files.Failed(http.StatusBadRequest, "%v", err)
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
