package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// maxJournals bounds the folders whose changes are recorded.
	maxJournals = 32
	// maxWatched bounds the folders below one of them.
	maxWatched = 8192
	// maxChanges bounds the recorded changes of one of them, and maxChangeBytes
	// their paths. An answer with all of them is one message.
	maxChanges     = 10_000
	maxChangeBytes = 2 << 20
	// journalIdle is how long a journal without users is kept.
	journalIdle = 10 * time.Minute
)

// journals are the folders whose changes are recorded.
type journals struct {
	idle time.Duration // 0: journalIdle

	mu   sync.Mutex
	byID map[journalKey]*journal
}

// journalKey identifies a journal: its folder, and the user whose rights it has.
type journalKey struct {
	uid       uint32
	root      string
	recursive bool
}

// change is one entry of a journal.
type change struct {
	kind guestv1.FileChangeType
	path string
}

// journal records the last changes below one folder. They are numbered; a cursor is
// the journal's name and the number of the last change that its holder knows.
type journal struct {
	key    journalKey
	user   server.User
	notify *fsnotify.Watcher
	ended  chan struct{} // closed when the reader has ended

	// Guarded by journals.mu.
	users int
	quit  *time.Timer // ends the journal; nil while it has users

	watched map[string]struct{} // folders; owned by the reader once it runs

	mu      sync.Mutex
	name    string // changes when changes were lost
	changes []change
	bytes   int           // of their paths
	last    int64         // number of the last change, 0: none yet
	told    int64         // highest number that was delivered
	more    chan struct{} // closed at the next change
	failed  error         // why no more changes will come
}

// open returns the journal for key, which the caller releases.
func (js *journals) open(key journalKey, u server.User) (*journal, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if j := js.byID[key]; j != nil && j.use() {
		return j, nil
	}
	if len(js.byID) >= maxJournals {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the changes of %d folders are remembered already, which is the most", maxJournals))
	}
	j := &journal{key: key, user: u, ended: make(chan struct{}), users: 1, watched: map[string]struct{}{}, name: newName(), more: make(chan struct{})}
	if err := j.begin(); err != nil {
		return nil, err
	}
	if js.byID == nil {
		js.byID = map[journalKey]*journal{}
	}
	js.byID[key] = j
	go j.read()
	return j, nil
}

func newName() string { return strings.ToLower(rand.Text()[:13]) }

// use counts one more user, unless the journal has failed.
func (j *journal) use() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return false
	}
	if j.quit != nil {
		j.quit.Stop()
		j.quit = nil
	}
	j.users++
	return true
}

// release gives a journal back. Without users it is kept for a while.
func (js *journals) release(j *journal) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j.users--
	if j.users > 0 {
		return
	}
	idle := js.idle
	if idle == 0 {
		idle = journalIdle
	}
	if j.failure() != nil {
		idle = 0
	}
	j.quit = time.AfterFunc(idle, func() { js.drop(j) })
}

// drop ends a journal that has no users.
func (js *journals) drop(j *journal) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if j.users > 0 {
		return
	}
	if js.byID[j.key] == j {
		delete(js.byID, j.key)
	}
	j.notify.Close()
	<-j.ended
}

// begin watches the folder, and with recursive everything below it.
func (j *journal) begin() error {
	info, err := os.Stat(j.key.root)
	if err != nil {
		return fileError(j.key.root, err)
	}
	if !info.IsDir() {
		return invalid("%s is not a directory", j.key.root)
	}
	if j.notify, err = fsnotify.NewWatcher(); err != nil {
		return connect.NewError(connect.CodeResourceExhausted, err)
	}
	if err := server.As(j.user, func() error { return j.add(j.key.root, nil) }); err != nil {
		j.notify.Close()
		return fileError(j.key.root, err)
	}
	return nil
}

// add watches a folder, and with recursive everything below it. It calls found,
// which may be nil, for the content of the folder: it may be older than the watch.
func (j *journal) add(dir string, found func(path string)) error {
	if !j.key.recursive {
		return j.notify.Add(dir)
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if path == dir && dir == j.key.root {
				return err
			}
			return nil // it vanished, or may not be read
		}
		if found != nil && path != dir {
			found(path)
		}
		if !e.IsDir() {
			return nil
		}
		if len(j.watched) >= maxWatched {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("there are more than %d folders below %s: watch a smaller one", maxWatched, j.key.root))
		}
		if err := j.notify.Add(path); err == nil {
			j.watched[path] = struct{}{}
		} else if path == j.key.root {
			return err
		}
		return nil
	})
}

// read records changes until the journal is dropped.
func (j *journal) read() {
	defer close(j.ended)
	for {
		select {
		case e, open := <-j.notify.Events:
			if !open {
				return
			}
			j.take(e)
		case err, open := <-j.notify.Errors:
			if !open {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				j.lose()
				j.leave(j.key.root)
				j.enter(j.key.root, nil) // also watches folders that were created meanwhile
			}
		}
	}
}

var kinds = []struct {
	op   fsnotify.Op
	kind guestv1.FileChangeType
}{
	{fsnotify.Create, guestv1.FileChangeType_FILE_CHANGE_TYPE_CREATED},
	{fsnotify.Write, guestv1.FileChangeType_FILE_CHANGE_TYPE_MODIFIED},
	{fsnotify.Chmod, guestv1.FileChangeType_FILE_CHANGE_TYPE_ATTRIBUTES},
	{fsnotify.Remove, guestv1.FileChangeType_FILE_CHANGE_TYPE_REMOVED},
	{fsnotify.Rename, guestv1.FileChangeType_FILE_CHANGE_TYPE_RENAMED},
}

// take records one of the system's events.
func (j *journal) take(e fsnotify.Event) {
	if e.Name == j.key.root {
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			j.fail(connect.NewError(connect.CodeNotFound, fmt.Errorf("%s does not exist any more", j.key.root)))
		}
		return
	}
	for _, k := range kinds {
		if e.Has(k.op) {
			j.append(k.kind, e.Name)
		}
	}
	if !j.key.recursive {
		return
	}
	if e.Has(fsnotify.Remove) {
		delete(j.watched, e.Name)
	}
	if e.Has(fsnotify.Rename) {
		j.leave(e.Name)
	}
	if !e.Has(fsnotify.Create) {
		return
	}
	if info, err := os.Lstat(e.Name); err != nil || !info.IsDir() {
		return
	}
	j.enter(e.Name, func(path string) { j.append(guestv1.FileChangeType_FILE_CHANGE_TYPE_CREATED, path) })
}

// enter is add, for use by the reader.
func (j *journal) enter(dir string, found func(path string)) {
	if err := server.As(j.user, func() error { return j.add(dir, found) }); err != nil {
		j.fail(fileError(dir, err))
	}
}

// leave ends the watch of a folder, and of all below it: events below a renamed
// folder would have its old name.
func (j *journal) leave(dir string) {
	if _, known := j.watched[dir]; !known {
		return
	}
	for path := range j.watched {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			_ = j.notify.Remove(path) // it may have vanished
			delete(j.watched, path)
		}
	}
}

// append records one change. An equal change right after it, before it was
// delivered, is merged with it.
func (j *journal) append(kind guestv1.FileChangeType, path string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := change{kind, path}
	if n := len(j.changes); n > 0 && j.changes[n-1] == c && j.last > j.told {
		return
	}
	for len(j.changes) > 0 && (len(j.changes) >= maxChanges || j.bytes+len(path) > maxChangeBytes) {
		j.forget(len(j.changes)/10 + 1)
	}
	j.changes = append(j.changes, c)
	j.bytes += len(path)
	j.last++
	j.wake()
}

// forget drops the oldest n changes. The lock is held.
func (j *journal) forget(n int) {
	for _, c := range j.changes[:n] {
		j.bytes -= len(c.path)
	}
	j.changes = append(j.changes[:0], j.changes[n:]...)
}

// wake wakes the waiters. The lock is held.
func (j *journal) wake() {
	close(j.more)
	j.more = make(chan struct{})
}

// lose drops all changes, because some were missed.
func (j *journal) lose() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.name, j.changes, j.bytes, j.last, j.told = newName(), nil, 0, 0, 0
	j.wake()
}

func (j *journal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		j.failed = err
		j.wake()
	}
}

func (j *journal) failure() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

// cursor returns the cursor after change number n. The lock is held.
func (j *journal) cursor(n int64) string { return j.name + "-" + strconv.FormatInt(n, 10) }

// news holds the changes that a holder of a cursor does not know yet.
type news struct {
	position *guestv1.WatchPosition
	changes  []*guestv1.FileChange
	more     <-chan struct{} // closed at the next change
	err      error           // no more changes will come
}

// since returns the changes since a cursor, at most limit of them. Its position has
// reset set when changes are missing.
func (j *journal) since(cursor string, limit int) news {
	j.mu.Lock()
	defer j.mu.Unlock()
	name, digits, _ := strings.Cut(cursor, "-")
	known, err := strconv.ParseInt(digits, 10, 64)
	forgotten := j.last - int64(len(j.changes))
	if name != j.name || err != nil || known < forgotten || known > j.last {
		j.told = j.last
		return news{position: &guestv1.WatchPosition{Cursor: j.cursor(j.last), Reset_: cursor != ""}, more: j.more, err: j.failed}
	}
	n := news{more: j.more, err: j.failed}
	for _, c := range j.changes[known-forgotten:] {
		if len(n.changes) == limit {
			break
		}
		known++
		n.changes = append(n.changes, &guestv1.FileChange{Type: c.kind, Path: valid(c.path), Cursor: j.cursor(known)})
	}
	j.told = max(j.told, known)
	n.position = &guestv1.WatchPosition{Cursor: j.cursor(known)}
	return n
}
