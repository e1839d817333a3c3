package gatewaytest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// home is the default working directory of the guest.
const home = "/workspace"

// files are the files of a guest, in memory. There are no links and no owners.
type files struct {
	sync.Mutex
	all     map[string]*file // by absolute, clean path
	writes  int              // makes the tag of each content unique
	changes []execution.FileChange
	changed chan struct{} // closed and replaced with each change

	// Events are forwarded by a Watch like real events; nil ends the Watch.
	Events chan *execution.WatchEvent
}

type file struct {
	folder   bool
	data     []byte
	mode     uint32
	modified time.Time
	tag      string
}

func newFiles() *files {
	f := &files{all: map[string]*file{}, changed: make(chan struct{}), Events: make(chan *execution.WatchEvent)}
	for _, p := range []string{"/", home, "/tmp"} {
		f.all[p] = newFolder()
	}
	return f
}

func newFolder() *file { return &file{folder: true, mode: 0o755, modified: time.Now()} }

// Has reports whether there is a file or a folder.
func (f *files) Has(p string) bool {
	f.Lock()
	defer f.Unlock()
	return f.all[path.Clean(p)] != nil
}

var (
	errNoFile    = sandbox.Errorf(sandbox.NotFound, "there is no such file")
	errNoFolder  = sandbox.Errorf(sandbox.Invalid, "not a directory")
	errIsFolder  = sandbox.Errorf(sandbox.Invalid, "it is a directory")
	errFileThere = sandbox.Errorf(sandbox.Conflict, "it exists")
)

// checkUser returns Invalid for a user other than user and root.
func checkUser(name string) error {
	if !slices.Contains([]string{"", "user", "root"}, name) {
		return sandbox.Errorf(sandbox.Invalid, "there is no user %s", name)
	}
	return nil
}

// checkFolder returns Invalid for a working directory that does not exist. The caller
// holds the lock, as for all unexported methods.
func (f *files) checkFolder(p string) error {
	if at := f.all[p]; at == nil || !at.folder {
		return sandbox.Errorf(sandbox.Invalid, "the working directory %q does not exist", p)
	}
	return nil
}

func (f *files) entry(p string) (execution.Entry, error) {
	at := f.all[p]
	if at == nil {
		return execution.Entry{}, errNoFile
	}
	e := execution.Entry{Name: path.Base(p), Path: p, Type: "file", Size: int64(len(at.data)), Mode: at.mode, Owner: "user", Group: "user", ModifiedAt: at.modified}
	if at.folder {
		e.Type = "directory"
	}
	return e, nil
}

// below returns the paths below a folder, sorted.
func (f *files) below(p string) []string {
	prefix := strings.TrimSuffix(p, "/") + "/"
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.all)), func(name string) bool { return name == p || !strings.HasPrefix(name, prefix) })
}

// tree returns p and the paths below it.
func (f *files) tree(p string) []string { return append([]string{p}, f.below(p)...) }

// change records a change and wakes the watchers.
func (f *files) change(kind execution.ChangeType, p string) {
	f.changes = append(f.changes, execution.FileChange{Type: kind, Path: p, Cursor: cursor(len(f.changes) + 1)})
	close(f.changed)
	f.changed = make(chan struct{})
}

// makeFolders makes a folder and the missing ones above it.
func (f *files) makeFolders(p string) error {
	if at := f.all[p]; at != nil {
		if !at.folder {
			return errNoFolder
		}
		return nil
	}
	if err := f.makeFolders(path.Dir(p)); err != nil {
		return err
	}
	f.all[p] = newFolder()
	f.change(execution.FileCreated, p)
	return nil
}

// put writes a file.
func (f *files) put(p string, data []byte) error {
	at := f.all[p]
	if at != nil && at.folder {
		return errIsFolder
	}
	if err := f.makeFolders(path.Dir(p)); err != nil {
		return err
	}
	kind := execution.FileModified
	if at == nil {
		at, kind = &file{mode: 0o644}, execution.FileCreated
		f.all[p] = at
	}
	f.writes++
	at.data, at.modified, at.tag = data, time.Now(), fmt.Sprintf(`"1-2-3-%d"`, f.writes)
	f.change(kind, p)
	return nil
}

// HugeSize is the size of the file /dev/huge in bytes.
const HugeSize = 256 << 20

// Zeros reads as zeros without end.
type Zeros struct{}

func (Zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// ReadFile also serves /dev/huge, and /broken, whose end is missing.
func (f *files) ReadFile(ctx context.Context, p string, opts execution.ReadOptions) (*execution.FileBody, error) {
	switch p {
	case "/dev/huge":
		return &execution.FileBody{Body: io.NopCloser(Zeros{}), Size: HugeSize}, nil
	case "/broken":
		return &execution.FileBody{Body: io.NopCloser(strings.NewReader("half")), Size: 8}, nil
	}
	f.Lock()
	defer f.Unlock()
	at := f.all[p]
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case at == nil:
		return nil, errNoFile
	case at.folder:
		return nil, errIsFolder
	}
	return serve(at, opts)
}

// serve reads a file as an HTTP server does.
func serve(at *file, opts execution.ReadOptions) (*execution.FileBody, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for name, value := range map[string]string{
		"Range": opts.Range, "If-Range": opts.IfRange, "If-Match": opts.IfMatch, "If-None-Match": opts.IfNoneMatch,
		"If-Modified-Since": opts.IfModifiedSince, "If-Unmodified-Since": opts.IfUnmodifiedSince,
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	w.Header().Set("Etag", at.tag)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", at.modified, bytes.NewReader(at.data))
	body := &execution.FileBody{Body: http.NoBody, ModifiedAt: at.modified, ETag: at.tag}
	switch w.Code {
	case http.StatusOK:
		body.Outcome = execution.ReadWhole
	case http.StatusPartialContent:
		body.Outcome, body.Total = execution.ReadPart, int64(len(at.data))
		if _, err := fmt.Sscanf(w.Header().Get("Content-Range"), "bytes %d-", &body.Start); err != nil {
			return nil, err
		}
	case http.StatusNotModified:
		body.Outcome = execution.ReadNotModified
		return body, nil
	case http.StatusPreconditionFailed:
		body.Outcome = execution.ReadPrecondition
		return body, nil
	default:
		body.Outcome, body.Total = execution.ReadOutOfRange, int64(len(at.data))
		return body, nil
	}
	body.Body, body.Size = io.NopCloser(w.Body), int64(w.Body.Len())
	return body, nil
}

// WriteFile also accepts the device /dev/null, and reports a full disk for /early.
func (f *files) WriteFile(ctx context.Context, p string, body io.Reader, _ int64) (execution.Entry, error) {
	switch p {
	case "/dev/null":
		n, err := io.Copy(io.Discard, body)
		return execution.Entry{Name: "null", Path: p, Type: "other", Size: n}, err
	case "/early": // answers before it reads the body, and then reads it
		go io.Copy(io.Discard, body)
		return execution.Entry{}, sandbox.Errorf(sandbox.TooLarge, "the disk is full")
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return execution.Entry{}, sandbox.Errorf(sandbox.Unavailable, "the upload broke").WithCause(err)
	}
	f.Lock()
	defer f.Unlock()
	if err := cmp.Or(ctx.Err(), f.put(p, data)); err != nil {
		return execution.Entry{}, err
	}
	return f.entry(p)
}

func (f *files) List(ctx context.Context, p string, depth int) (entries []execution.Entry, truncated bool, err error) {
	f.Lock()
	defer f.Unlock()
	at := f.all[p]
	switch {
	case ctx.Err() != nil:
		return nil, false, ctx.Err()
	case at == nil:
		return nil, false, errNoFile
	case !at.folder:
		return nil, false, errNoFolder
	}
	for _, name := range f.below(p) {
		if strings.Count(strings.TrimPrefix(name[len(p):], "/"), "/") < depth {
			e, _ := f.entry(name)
			entries = append(entries, e)
		}
	}
	return entries, false, nil
}

func (f *files) Stat(ctx context.Context, p string) (execution.Entry, error) {
	f.Lock()
	defer f.Unlock()
	if ctx.Err() != nil {
		return execution.Entry{}, ctx.Err()
	}
	return f.entry(p)
}

func (f *files) MakeDir(ctx context.Context, p string) (execution.Entry, error) {
	f.Lock()
	defer f.Unlock()
	at := f.all[p]
	switch {
	case ctx.Err() != nil:
		return execution.Entry{}, ctx.Err()
	case at != nil && at.folder:
		return execution.Entry{}, errFileThere
	}
	if err := f.makeFolders(p); err != nil {
		return execution.Entry{}, err
	}
	return f.entry(p)
}

func (f *files) Move(ctx context.Context, source, destination string) (execution.Entry, error) {
	f.Lock()
	defer f.Unlock()
	to := f.all[destination]
	switch {
	case ctx.Err() != nil:
		return execution.Entry{}, ctx.Err()
	case f.all[source] == nil:
		return execution.Entry{}, errNoFile
	case strings.HasPrefix(destination, source+"/"):
		return execution.Entry{}, sandbox.Errorf(sandbox.Invalid, "it cannot be moved into itself")
	case to != nil && to.folder:
		return execution.Entry{}, errIsFolder
	}
	if err := f.makeFolders(path.Dir(destination)); err != nil {
		return execution.Entry{}, err
	}
	for _, name := range f.tree(source) {
		f.all[destination+name[len(source):]] = f.all[name]
		delete(f.all, name)
	}
	f.change(execution.FileRenamed, source)
	f.change(execution.FileCreated, destination)
	return f.entry(destination)
}

func (f *files) Remove(ctx context.Context, p string) error {
	f.Lock()
	defer f.Unlock()
	if ctx.Err() != nil || f.all[p] == nil {
		return ctx.Err()
	}
	for _, name := range f.tree(p) {
		delete(f.all, name)
		f.change(execution.FileRemoved, name)
	}
	return nil
}

// cursor is the position after n changes.
func cursor(n int) string { return "c-" + strconv.Itoa(n) }

// since returns the changes that a request asks for, and the position after all of them.
func (f *files) since(req execution.WatchRequest) (execution.WatchPosition, []execution.FileChange, error) {
	at := f.all[req.Path]
	switch {
	case at == nil:
		return execution.WatchPosition{}, nil, sandbox.Errorf(sandbox.NotFound, "%s does not exist", req.Path)
	case !at.folder:
		return execution.WatchPosition{}, nil, errNoFolder
	}
	now := execution.WatchPosition{Cursor: cursor(len(f.changes))}
	if req.Since == "" {
		return now, nil, nil
	}
	n, err := strconv.Atoi(strings.TrimPrefix(req.Since, "c-"))
	if err != nil || n < 0 || n > len(f.changes) {
		now.Reset = true
		return now, nil, nil
	}
	return now, f.selected(req, f.changes[n:]), nil
}

// selected returns the changes below the path of a request.
func (f *files) selected(req execution.WatchRequest, changes []execution.FileChange) (all []execution.FileChange) {
	for _, c := range changes {
		if path.Dir(c.Path) == req.Path || req.Recursive && strings.HasPrefix(c.Path, strings.TrimSuffix(req.Path, "/")+"/") {
			all = append(all, c)
		}
	}
	return all
}

func (f *files) Changes(ctx context.Context, req execution.WatchRequest) (execution.WatchPosition, []execution.FileChange, error) {
	f.Lock()
	defer f.Unlock()
	if ctx.Err() != nil {
		return execution.WatchPosition{}, nil, ctx.Err()
	}
	return f.since(req)
}

func (f *files) Watch(ctx context.Context, req execution.WatchRequest, handle func(execution.WatchEvent) error) error {
	f.Lock()
	at, changes, err := f.since(req)
	seen := len(f.changes)
	f.Unlock()
	if err := cmp.Or(ctx.Err(), err); err != nil {
		return err
	}
	if err := handle(execution.WatchEvent{Position: &at}); err != nil {
		return err
	}
	for {
		for _, c := range changes {
			if err := handle(execution.WatchEvent{Change: &c}); err != nil {
				return err
			}
		}
		f.Lock()
		changes, seen = f.selected(req, f.changes[seen:]), len(f.changes)
		changed, gone := f.changed, f.all[req.Path] == nil
		f.Unlock()
		switch {
		case len(changes) > 0:
			continue
		case gone:
			return errGone
		}
		select {
		case <-changed:
		case e := <-f.Events:
			if e == nil {
				return errGone
			}
			if err := handle(*e); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errGone = sandbox.Errorf(sandbox.NotFound, "it is not there any more")

// CreatedEvent reports a new file.
var CreatedEvent = &execution.WatchEvent{Change: &execution.FileChange{Type: execution.FileCreated, Path: "/workspace/a", Cursor: "c-1"}}
