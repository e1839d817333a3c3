package envd

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/files"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// maxWatchers bounds the polled watchers of a Sandbox.
	maxWatchers = 256
	// maxPending bounds the events that wait for a poll; the oldest are dropped.
	maxPending = 10_000
)

// watchers is the part of the filesystem service that reports changes.
type watchers struct {
	guest *server.Guest

	mu   sync.Mutex
	byID map[string]*polled
}

func newWatchers(g *server.Guest) *watchers {
	return &watchers{guest: g, byID: map[string]*polled{}}
}

// watched is one watched folder.
type watched struct {
	notify    *fsnotify.Watcher
	root      string
	recursive bool
	entries   bool
	accounts  server.Accounts
}

// watchRequest is a request to watch a folder.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

// watch starts to watch a folder.
func (w *watchers) watch(h http.Header, r watchRequest) (*watched, error) {
	u, err := rpcAccount(w.guest, userOf(h))
	if err != nil {
		return nil, err
	}
	root, err := resolve(r.GetPath(), u)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, files.Refused(root, err)
	}
	if !info.IsDir() {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", root))
	}
	if !r.GetAllowNetworkMounts() && onVolume(root) {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s is on a network mount, where only changes of this sandbox are noticed: allow network mounts to watch it", root))
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, connect.NewError(connect.CodeResourceExhausted, err)
	}
	d := &watched{notify: notify, root: root, recursive: r.GetRecursive(), entries: r.GetIncludeEntry(), accounts: w.guest.Accounts}
	if err := d.add(root, func(string) {}); err != nil {
		notify.Close()
		return nil, files.Refused(root, err)
	}
	return d, nil
}

// onVolume reports whether a path is on a Volume, which others outside the Sandbox may
// change too.
func onVolume(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
}

// add watches a folder, and with recursive everything below it. It calls found for
// the content of a folder once the folder is watched.
func (d *watched) add(dir string, found func(path string)) error {
	if !d.recursive {
		return d.notify.Add(dir)
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path != dir {
			found(path)
		}
		if err != nil || !e.IsDir() {
			return nil // entries that vanish meanwhile are not watched
		}
		if err := d.notify.Add(path); err != nil && path == dir {
			return err
		}
		return nil
	})
}

var eventTypes = []struct {
	op   fsnotify.Op
	kind filesystem.EventType
}{
	{fsnotify.Create, filesystem.EventType_EVENT_TYPE_CREATE},
	{fsnotify.Write, filesystem.EventType_EVENT_TYPE_WRITE},
	{fsnotify.Remove, filesystem.EventType_EVENT_TYPE_REMOVE},
	{fsnotify.Rename, filesystem.EventType_EVENT_TYPE_RENAME},
	{fsnotify.Chmod, filesystem.EventType_EVENT_TYPE_CHMOD},
}

// events converts an event of the system, and watches new folders. Entries that
// were created in a new folder before it was watched are reported too; those
// created at that moment may be reported twice.
func (d *watched) events(e fsnotify.Event) []*filesystem.FilesystemEvent {
	out := d.eventsOf(e)
	if e.Has(fsnotify.Create) && d.recursive {
		if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
			_ = d.add(e.Name, func(path string) {
				out = append(out, d.eventsOf(fsnotify.Event{Name: path, Op: fsnotify.Create})...)
			})
		}
	}
	return out
}

func (d *watched) eventsOf(e fsnotify.Event) []*filesystem.FilesystemEvent {
	name, err := filepath.Rel(d.root, e.Name)
	if err != nil {
		return nil
	}
	var out []*filesystem.FilesystemEvent
	for _, t := range eventTypes {
		if !e.Has(t.op) {
			continue
		}
		event := &filesystem.FilesystemEvent{Name: name, Type: t.kind}
		if d.entries && (e.Has(fsnotify.Create) || e.Has(fsnotify.Write) || e.Has(fsnotify.Chmod)) {
			if entry, err := entryOf(e.Name, d.accounts); err == nil {
				event.Entry = entry
			}
		}
		out = append(out, event)
	}
	return out
}

// WatchDir streams the changes of a folder until the client leaves.
func (w *watchers) WatchDir(ctx context.Context, r *connect.Request[filesystem.WatchDirRequest], stream *connect.ServerStream[filesystem.WatchDirResponse]) error {
	d, err := w.watch(r.Header(), r.Msg)
	if err != nil {
		return err
	}
	defer d.notify.Close()
	if err := stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}}); err != nil {
		return err
	}
	every := keepaliveOf(r.Header())
	silence := time.NewTimer(every)
	defer silence.Stop()
	for {
		select {
		case e, open := <-d.notify.Events:
			if !open {
				return nil
			}
			for _, event := range d.events(e) {
				if err := stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{Filesystem: event}}); err != nil {
					return err
				}
			}
		case err := <-d.notify.Errors:
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("changes were lost: %w", err))
		case <-silence.C:
			if err := stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Keepalive{Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		silence.Reset(every)
	}
}

// polled is a watcher whose events are queued until they are fetched.
type polled struct {
	*watched
	done chan struct{} // closed when its reader has ended

	// mark is a file of ours that is watched too. The system reports changes in
	// order: when an event of mark is read, all earlier events have been read.
	mark   *os.File
	marked chan struct{}
	poll   sync.Mutex // held while waiting for the mark

	mu      sync.Mutex
	pending []*filesystem.FilesystemEvent
}

// catchUpTime bounds the wait for the mark, because the system drops events when
// too many are queued.
const catchUpTime = 2 * time.Second

// newPolled returns a watcher that queues the events of d. It takes d over.
func newPolled(d *watched) (*polled, error) {
	mark, err := makeMark()
	if err != nil {
		d.notify.Close()
		return nil, err
	}
	if err := d.notify.Add(mark.Name()); err != nil {
		d.notify.Close()
		mark.Close()
		os.Remove(mark.Name())
		return nil, err
	}
	p := &polled{watched: d, done: make(chan struct{}), mark: mark, marked: make(chan struct{}, 1)}
	go p.gather()
	return p, nil
}

// makeMark creates a file in a folder that is unlikely to be watched.
func makeMark() (*os.File, error) {
	f, err := os.CreateTemp("/dev/shm", ".watch-*")
	if err != nil {
		f, err = os.CreateTemp("", ".watch-*")
	}
	return f, err
}

// close ends the watcher.
func (p *polled) close() {
	p.notify.Close()
	<-p.done
	p.poll.Lock()
	defer p.poll.Unlock()
	p.mark.Close()
	os.Remove(p.mark.Name())
}

// catchUp returns once all earlier changes have been queued.
func (p *polled) catchUp(ctx context.Context) {
	p.poll.Lock()
	defer p.poll.Unlock()
	select {
	case <-p.marked: // of an earlier call that did not wait for it
	default:
	}
	if p.mark.Chmod(0o600) != nil { // a change that needs no disk space
		return // the watcher was closed
	}
	late := time.NewTimer(catchUpTime)
	defer late.Stop()
	select {
	case <-p.marked:
	case <-p.done:
	case <-late.C:
	case <-ctx.Done():
	}
}

func (p *polled) gather() {
	defer close(p.done)
	for {
		select {
		case e, open := <-p.notify.Events:
			if !open {
				return
			}
			if e.Name == p.mark.Name() {
				select {
				case p.marked <- struct{}{}:
				default:
				}
				continue
			}
			events := p.events(e)
			p.mu.Lock()
			p.pending = append(p.pending, events...)
			if over := len(p.pending) - maxPending; over > 0 {
				p.pending = p.pending[over:]
			}
			p.mu.Unlock()
		case _, open := <-p.notify.Errors:
			if !open {
				return
			}
		}
	}
}

// CreateWatcher starts to queue the changes of a folder.
func (w *watchers) CreateWatcher(_ context.Context, r *connect.Request[filesystem.CreateWatcherRequest]) (*connect.Response[filesystem.CreateWatcherResponse], error) {
	d, err := w.watch(r.Header(), r.Msg)
	if err != nil {
		return nil, err
	}
	p, err := newPolled(d)
	if err != nil {
		return nil, connect.NewError(connect.CodeResourceExhausted, err)
	}
	id := "w" + rand.Text()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.byID) >= maxWatchers {
		p.close()
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("there are %d watchers, which is the most", maxWatchers))
	}
	w.byID[id] = p
	return connect.NewResponse(&filesystem.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents returns the changes since the last call, up to now.
func (w *watchers) GetWatcherEvents(ctx context.Context, r *connect.Request[filesystem.GetWatcherEventsRequest]) (*connect.Response[filesystem.GetWatcherEventsResponse], error) {
	w.mu.Lock()
	p := w.byID[r.Msg.WatcherId]
	w.mu.Unlock()
	if p == nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %s not found", r.Msg.WatcherId))
	}
	p.catchUp(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.pending
	p.pending = nil
	return connect.NewResponse(&filesystem.GetWatcherEventsResponse{Events: events}), nil
}

// RemoveWatcher ends a watcher.
func (w *watchers) RemoveWatcher(_ context.Context, r *connect.Request[filesystem.RemoveWatcherRequest]) (*connect.Response[filesystem.RemoveWatcherResponse], error) {
	w.mu.Lock()
	p := w.byID[r.Msg.WatcherId]
	delete(w.byID, r.Msg.WatcherId)
	w.mu.Unlock()
	if p == nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %s not found", r.Msg.WatcherId))
	}
	p.close()
	return connect.NewResponse(&filesystem.RemoveWatcherResponse{}), nil
}
