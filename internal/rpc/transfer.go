package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/cloud-sandbox/cloud-sandbox"
	nodev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Calls that carry many bytes one way are plain HTTP: a GET whose answer is the bytes,
// or a POST of the bytes whose answer is a message as JSON. A refusal is an answer with
// the error. An error after the first byte breaks the connection.
const (
	exportSavedPath     = "/cloudsandbox.node.v1.NodeService.ExportSaved"
	importSavedPath     = "/cloudsandbox.node.v1.NodeService.ImportSaved"
	exportBasePath      = "/cloudsandbox.node.v1.NodeService.ExportBase"
	keepBasePath        = "/cloudsandbox.node.v1.NodeService.KeepBase"
	exportChangesPath   = "/cloudsandbox.node.v1.NodeService.ExportChanges"
	importChangesPath   = "/cloudsandbox.node.v1.NodeService.ImportChanges"
	readVolumeFilePath  = "/cloudsandbox.node.v1.NodeService.ReadVolumeFile"
	writeVolumeFilePath = "/cloudsandbox.node.v1.NodeService.WriteVolumeFile"
	exportVolumePath    = "/cloudsandbox.node.v1.NodeService.ExportVolume"
	importVolumePath    = "/cloudsandbox.node.v1.NodeService.ImportVolume"
	exportSnapshotPath  = "/cloudsandbox.session.v1.SessionService.ExportSnapshot"
	importSnapshotPath  = "/cloudsandbox.session.v1.SessionService.ImportSnapshot"
	// maxTransferReply bounds the answer to a POST, in bytes.
	maxTransferReply = 1 << 20
)

// ExportSaved implements sandbox.Nodes.
func (n *Nodes) ExportSaved(ctx context.Context, node, snapshot string, image bool, w io.Writer) error {
	p, err := n.of(ctx, node)
	if err != nil {
		return err
	}
	return p.download(ctx, "", exportSavedPath, url.Values{"node": {node}, "snapshot": {snapshot}, "image": {strconv.FormatBool(image)}}, w)
}

// ImportSaved implements sandbox.Nodes.
func (n *Nodes) ImportSaved(ctx context.Context, node string, tenant sandbox.TenantID, snapshot, image string, r io.Reader) (sandbox.Saved, error) {
	p, err := n.of(ctx, node)
	if err != nil {
		return sandbox.Saved{}, err
	}
	reply := &nodev1.SaveResponse{}
	err = p.upload(ctx, tenant, importSavedPath, url.Values{"node": {node}, "snapshot": {snapshot}, "image": {image}}, r, reply)
	return toSaved(reply), err
}

// ExportBase implements sandbox.Nodes.
func (n *Nodes) ExportBase(ctx context.Context, node, snapshot string, w io.Writer) error {
	p, err := n.of(ctx, node)
	if err != nil {
		return err
	}
	return p.download(ctx, "", exportBasePath, url.Values{"node": {node}, "snapshot": {snapshot}}, w)
}

// KeepBase implements sandbox.Nodes.
func (n *Nodes) KeepBase(ctx context.Context, node, snapshot string, r io.Reader) error {
	p, err := n.of(ctx, node)
	if err != nil {
		return err
	}
	return p.upload(ctx, "", keepBasePath, url.Values{"node": {node}, "snapshot": {snapshot}}, r, &nodev1.KeepBaseResponse{})
}

// ExportChanges implements sandbox.Nodes.
func (n *Nodes) ExportChanges(ctx context.Context, node, snapshot, base string, w io.Writer) error {
	p, err := n.of(ctx, node)
	if err != nil {
		return err
	}
	return p.download(ctx, "", exportChangesPath, url.Values{"node": {node}, "snapshot": {snapshot}, "base": {base}}, w)
}

// ImportChanges implements sandbox.Nodes.
func (n *Nodes) ImportChanges(ctx context.Context, node string, tenant sandbox.TenantID, r sandbox.ChangesRequest, from io.Reader) (sandbox.Saved, error) {
	p, err := n.of(ctx, node)
	if err != nil {
		return sandbox.Saved{}, err
	}
	reply := &nodev1.SaveResponse{}
	query := url.Values{"node": {node}, "snapshot": {r.Snapshot}, "image": {r.Image}, "base": {r.Base}}
	err = p.upload(ctx, tenant, importChangesPath, query, from, reply)
	return toSaved(reply), err
}

// ExportSnapshot implements sandbox.Sandboxes.
func (s *Sandboxes) ExportSnapshot(ctx context.Context, tenant sandbox.TenantID, id string, image bool, file io.Writer) error {
	return s.toLeader(ctx, func(p *managerPeer) error {
		return p.download(ctx, tenant, exportSnapshotPath, url.Values{"id": {id}, "image": {strconv.FormatBool(image)}}, file)
	})
}

// ImportSnapshot implements sandbox.Sandboxes.
func (s *Sandboxes) ImportSnapshot(ctx context.Context, tenant sandbox.TenantID, req sandbox.ImportRequest, file io.Reader) (sandbox.Snapshot, error) {
	reply := &sessionv1.TakeSnapshotResponse{}
	body := &counted{Reader: file}
	err := s.toLeader(ctx, func(p *managerPeer) error {
		err := p.upload(ctx, tenant, importSnapshotPath, url.Values{"id": {req.ID}, "name": {req.Name}}, body, reply)
		if body.read {
			return sandbox.Begun(err) // the rest of the file is no file
		}
		return err
	})
	return toSnapshot(reply.GetSnapshot()), err
}

// counted records whether any byte of a Reader was read.
type counted struct {
	io.Reader
	read bool
}

func (c *counted) Read(p []byte) (int, error) {
	c.read = true
	return c.Reader.Read(p)
}

// transfers are the transfers of a Node.
func (s nodeServer) transfers() map[string]transfer {
	return map[string]transfer{
		"GET " + exportSavedPath: func(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
			return s.n.ExportSaved(ctx, q.Get("node"), q.Get("snapshot"), q.Get("image") == "true", to)
		},
		"POST " + importSavedPath: func(ctx context.Context, q url.Values, from io.Reader, to io.Writer) error {
			saved, err := s.n.ImportSaved(ctx, q.Get("node"), callerOf(ctx).Tenant, q.Get("snapshot"), q.Get("image"), from)
			return writeReply(to, fromSaved(saved), err)
		},
		"GET " + exportBasePath: func(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
			return s.n.ExportBase(ctx, q.Get("node"), q.Get("snapshot"), to)
		},
		"POST " + keepBasePath: func(ctx context.Context, q url.Values, from io.Reader, to io.Writer) error {
			return writeReply(to, &nodev1.KeepBaseResponse{}, s.n.KeepBase(ctx, q.Get("node"), q.Get("snapshot"), from))
		},
		"GET " + exportChangesPath: func(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
			return s.n.ExportChanges(ctx, q.Get("node"), q.Get("snapshot"), q.Get("base"), prompt{to})
		},
		"POST " + importChangesPath: func(ctx context.Context, q url.Values, from io.Reader, to io.Writer) error {
			r := sandbox.ChangesRequest{Snapshot: q.Get("snapshot"), Image: q.Get("image"), Base: q.Get("base")}
			saved, err := s.n.ImportChanges(ctx, q.Get("node"), callerOf(ctx).Tenant, r, from)
			return writeReply(to, fromSaved(saved), err)
		},
		"GET " + readVolumeFilePath:   s.readVolumeFile,
		"POST " + writeVolumeFilePath: s.writeVolumeFile,
		"GET " + exportVolumePath:     s.exportVolume,
		"POST " + importVolumePath:    s.importVolume,
	}
}

// transfers are the transfers of a session manager. Their Tenant is the caller's.
func (s sessionServer) transfers() map[string]transfer {
	return map[string]transfer{
		"GET " + exportSnapshotPath: func(ctx context.Context, q url.Values, _ io.Reader, to io.Writer) error {
			t, err := tenant(ctx)
			if err != nil {
				return err
			}
			return s.m.ExportSnapshot(ctx, t, q.Get("id"), q.Get("image") == "true", to)
		},
		"POST " + importSnapshotPath: func(ctx context.Context, q url.Values, from io.Reader, to io.Writer) error {
			t, err := tenant(ctx)
			if err != nil {
				return err
			}
			snap, err := s.m.ImportSnapshot(ctx, t, sandbox.ImportRequest{ID: q.Get("id"), Name: q.Get("name")}, from)
			return writeReply(to, &sessionv1.TakeSnapshotResponse{Snapshot: fromSnapshot(snap)}, err)
		},
	}
}

func writeReply(to io.Writer, reply proto.Message, err error) error {
	if err != nil {
		return err
	}
	raw, err := protojson.Marshal(reply)
	if err != nil {
		return err
	}
	_, err = to.Write(raw)
	return err
}

// A transfer handles a call that carries bytes from or to the caller in ctx.
type transfer func(ctx context.Context, query url.Values, from io.Reader, to io.Writer) error

// carries serves a transfer to authenticated callers only.
func (s *Server) carries(path string, do transfer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		ctx := forRequest(r.Context(), r.Header)
		out := &begun{Writer: w}
		_, procedure, _ := strings.Cut(path, " ")
		caller, err := s.caller(ctx, procedure, r.Header)
		if err == nil {
			if err = s.terms.admit(caller, r.Header); err == nil {
				err = do(withCaller(ctx, caller), r.URL.Query(), r.Body, out)
			}
		} else {
			s.Log.WarnContext(ctx, "refused a transfer without the right to it", telemetry.KeyMethod, path, telemetry.KeyError, err)
		}
		s.logCall(ctx, path, caller, codeOf(err), time.Since(began))
		switch {
		case err == nil:
		case out.written:
			panic(http.ErrAbortHandler) // the only way to signal an incomplete answer
		default:
			refuse(w, err)
		}
	})
}

// begun records whether an answer has begun.
type begun struct {
	io.Writer
	written bool
}

func (b *begun) Write(p []byte) (int, error) {
	b.written = true
	return b.Writer.Write(p)
}

// FlushError sends the bytes written so far, for an answer that comes bit by bit.
func (b *begun) FlushError() error {
	w, ok := b.Writer.(http.ResponseWriter)
	if !ok {
		return errors.ErrUnsupported
	}
	return http.NewResponseController(w).Flush()
}

// prompt sends each write at once: a few bytes may keep the other end busy for long.
type prompt struct{ io.Writer }

func (p prompt) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	if f, ok := p.Writer.(interface{ FlushError() error }); ok && err == nil {
		err = f.FlushError()
	}
	return n, err
}

// download writes the answer of a transfer to w and returns w's errors unchanged.
func (p *peer) download(ctx context.Context, tenant sandbox.TenantID, path string, query url.Values, w io.Writer) error {
	res, err := p.transfer(ctx, tenant, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body := &watched{Reader: res.Body}
	_, err = io.Copy(w, body)
	if body.err != nil {
		return p.broke(ctx, body.err)
	}
	return err
}

// upload sends r and decodes the answer. It returns r's errors unchanged. After its
// return nothing reads r.
func (p *peer) upload(ctx context.Context, tenant sandbox.TenantID, path string, query url.Values, r io.Reader, reply proto.Message) error {
	body := &watched{Reader: r}
	defer body.Close()
	res, err := p.transfer(ctx, tenant, http.MethodPost, path, query, body)
	if failed := body.stop(); failed != nil {
		if err == nil {
			res.Body.Close()
		}
		return failed
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxTransferReply))
	if err != nil {
		return p.broke(ctx, err)
	}
	if err := protojson.Unmarshal(raw, reply); err != nil {
		return p.broken(fmt.Errorf("an invalid answer: %w", err))
	}
	return nil
}

// errUnknownCall is the Cause of the error for a transfer that the other end, of an
// earlier version, does not know.
var errUnknownCall = errors.New("the other end does not know the call")

func (p *peer) transfer(ctx context.Context, tenant sandbox.TenantID, method, path string, query url.Values, body io.ReadCloser) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Body, req.ContentLength = body, -1
	}
	signed, err := p.sign(ctx, req.Header, tenant)
	if err != nil {
		return nil, err
	}
	res, err := p.http.Do(req.WithContext(signed))
	if err != nil {
		return nil, p.broke(ctx, err)
	}
	if res.StatusCode != http.StatusOK {
		err := refused(refusal(res))
		var told *sandbox.Error
		if errors.As(err, &told) {
			return nil, told
		}
		if res.StatusCode == http.StatusNotFound {
			err = errors.Join(errUnknownCall, err)
		}
		return nil, p.broken(err)
	}
	return res, nil
}

// broke is the error for a connection that ended too early.
func (p *peer) broke(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.broken(err)
}

// watched records the error of a Reader, and can stop its reading by others.
type watched struct {
	io.Reader

	mu      sync.Mutex // held while it is read
	stopped bool
	err     error // other than io.EOF
}

func (w *watched) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := w.Reader.Read(p)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// stop ends reading, once a read in progress has returned, and returns the error.
func (w *watched) stop() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	return w.err
}

// Close is stop for an http.Request.
func (w *watched) Close() error {
	_ = w.stop() // the reader has its error already
	return nil
}
