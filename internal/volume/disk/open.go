package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// maxObjects is how many files and folders a Volume may have: counting them at first use
// takes memory for each.
const maxObjects = 500_000

// rootMode lets every user of a Sandbox use a fresh Volume: root, and its user, whose
// number depends on the Template.
const rootMode = unix.S_IFDIR | 0o777

// Volume is the files of one Volume. Its methods are safe for concurrent use.
type Volume struct {
	dir    string
	tenant sandbox.TenantID

	next atomic.Uint64 // less than the number of the next object

	// mu is held for reading while an object is used, and for writing while entries
	// and attributes change.
	mu   sync.RWMutex
	gone bool // deleted

	// growing locks are striped over the objects: one is held while an object's length
	// may change. They are taken after mu.
	growing [64]sync.Mutex

	leases leases

	counts  sync.Mutex // guards the fields below; taken last
	max     int64
	used    int64
	objects int64          // with the root
	held    map[uint64]int // holds of objects, which keep those without a name
}

// counting lets one Volume be recounted at a time: it takes memory for each file.
var counting = make(chan struct{}, 1)

// openVolume opens a Volume and recounts it.
func openVolume(dir string, s spec) (*Volume, error) {
	counting <- struct{}{}
	defer func() { <-counting }()
	v := &Volume{dir: dir, tenant: s.Tenant, max: s.MaxBytes, held: map[uint64]int{}}
	// Numbers start at the clock, so that the numbers of removed objects are not reused.
	// If the clock was set back, fresh tries the next number.
	v.next.Store(uint64(time.Now().UnixNano()))
	if err := v.recount(); err != nil {
		return nil, err
	}
	return v, nil
}

// makeRoot makes the root folder of a fresh Volume.
func (v *Volume) makeRoot() error {
	if err := os.Mkdir(v.path(volume.RootNode), 0o700); err != nil {
		return err
	}
	return v.note(volume.RootNode, object{mode: rootMode, links: 1, parent: volume.RootNode})
}

// found is an object's link count and parent from the entries.
type found struct {
	links  uint32
	parent uint64
}

// recount reads all entries and makes the objects consistent with them.
func (v *Volume) recount() error {
	if err := v.dropAside(); err != nil {
		return err
	}
	named := map[uint64]found{volume.RootNode: {links: 1, parent: volume.RootNode}}
	folders := []uint64{volume.RootNode}
	for len(folders) > 0 {
		folder := folders[len(folders)-1]
		folders = folders[:len(folders)-1]
		more, err := v.readEntries(folder, named)
		if err != nil {
			return err
		}
		folders = append(folders, more...)
	}
	return v.settle(named)
}

// dropAside removes entries whose replacement of others a crash interrupted.
func (v *Volume) dropAside() error {
	left, err := os.ReadDir(filepath.Join(v.dir, asideName))
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.Remove(filepath.Join(v.dir, asideName, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// readEntries adds a folder's entries to named, and returns its subfolders. It removes
// dangling entries and second names of folders.
func (v *Volume) readEntries(folder uint64, named map[uint64]found) (folders []uint64, err error) {
	f, err := os.Open(v.path(folder))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		e, err := v.entry(folder, name)
		if err == nil {
			_, err = v.describe(e.node)
		}
		seen, twice := named[e.node]
		if err != nil || twice && e.letter == letterFolder {
			if err := os.Remove(v.entryPath(folder, name)); err != nil {
				return nil, err
			}
			continue
		}
		named[e.node] = found{links: seen.links + 1, parent: folder}
		if e.letter == letterFolder {
			folders = append(folders, e.node)
		}
	}
	return folders, nil
}

// settle removes objects without a name, repairs the attributes of the others, and counts
// them.
func (v *Volume) settle(named map[uint64]found) error {
	dir, err := os.Open(filepath.Join(v.dir, objectsName))
	if err != nil {
		return err
	}
	defer dir.Close()
	const some = 4096
	for {
		names, err := dir.Readdirnames(some)
		if len(names) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := v.settleOne(name, named); err != nil {
				return fmt.Errorf("object %.64q: %w", name, err)
			}
		}
	}
}

func (v *Volume) settleOne(name string, named map[uint64]found) error {
	node, err := strconv.ParseUint(name, 10, 64)
	is, wanted := named[node]
	if err != nil || !wanted {
		return os.RemoveAll(filepath.Join(v.dir, objectsName, name))
	}
	o, err := v.describe(node)
	if err != nil {
		return err
	}
	if o.links != is.links || o.isFolder() && o.parent != is.parent {
		o.links = is.links
		if o.isFolder() {
			o.parent = is.parent
		}
		if err := v.note(node, o); err != nil {
			return err
		}
	}
	size, err := v.sizeOf(node, o)
	if err != nil {
		return err
	}
	v.objects++
	v.used += charge(o.links, size)
	return nil
}

// end makes all later requests fail.
func (v *Volume) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gone = true
}

// reading begins the use of objects, which done ends; ESTALE if the Volume was deleted.
func (v *Volume) reading() (done func(), err error) {
	v.mu.RLock()
	if v.gone {
		v.mu.RUnlock()
		return nil, unix.ESTALE
	}
	return v.mu.RUnlock, nil
}

// changing begins a change of entries, as reading does.
func (v *Volume) changing() (done func(), err error) {
	v.mu.Lock()
	if v.gone {
		v.mu.Unlock()
		return nil, unix.ESTALE
	}
	return v.mu.Unlock, nil
}

func (v *Volume) setMax(n int64) {
	v.counts.Lock()
	defer v.counts.Unlock()
	v.max = n
}

func (v *Volume) use() sandbox.VolumeUse {
	v.counts.Lock()
	defer v.counts.Unlock()
	return sandbox.VolumeUse{Bytes: v.used, Files: v.objects - 1}
}

// take takes bytes and objects from the quota; ENOSPC if it is exceeded. Negative amounts
// give back, which always succeeds.
func (v *Volume) take(bytes, objects int64) error {
	v.counts.Lock()
	defer v.counts.Unlock()
	if bytes > 0 && v.used+bytes > v.max || objects > 0 && v.objects+objects > maxObjects {
		return unix.ENOSPC
	}
	v.used += bytes
	v.objects += objects
	return nil
}

// giveBack returns bytes and objects that take took.
func (v *Volume) giveBack(bytes, objects int64) { _ = v.take(-bytes, -objects) }

// holds reports whether an object is held.
func (v *Volume) holds(node uint64) bool {
	v.counts.Lock()
	defer v.counts.Unlock()
	return v.held[node] > 0
}

// hold adds holds to an object, which keep it without a name, and returns its number of
// holds. The caller holds mu.
func (v *Volume) hold(node uint64, by int) (left int) {
	v.counts.Lock()
	defer v.counts.Unlock()
	v.held[node] += by
	if left = v.held[node]; left <= 0 {
		delete(v.held, node)
	}
	return left
}

// fresh makes an object without a name and takes its cost. The caller names or drops it.
func (v *Volume) fresh(o object) (node uint64, err error) {
	if err := v.take(charge(0, 0), 1); err != nil {
		return 0, err
	}
	for {
		node = v.next.Add(1)
		if o.isFolder() {
			err = unix.Mkdir(v.path(node), 0o700)
		} else {
			var fd int
			if fd, err = unix.Open(v.path(node), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600); err == nil {
				err = unix.Close(fd)
			}
		}
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err == nil {
		if err = v.note(node, o); err == nil {
			return node, nil
		}
		_ = os.Remove(v.path(node))
	}
	v.giveBack(charge(0, 0), 1)
	return 0, err
}

// drop removes an object without names and holds, and gives back its cost.
func (v *Volume) drop(node uint64, o object) error {
	size, err := v.sizeOf(node, o)
	if err != nil {
		return err
	}
	if err := os.Remove(v.path(node)); err != nil {
		return err
	}
	v.giveBack(charge(0, size), 1)
	return nil
}
