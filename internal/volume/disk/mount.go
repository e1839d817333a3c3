package disk

import (
	"errors"
	"io"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// maxHeld is how many files of one Volume a Boot may have open.
const maxHeld = 16384

// mount is one Boot's use of a Volume.
type mount struct {
	v *Volume

	mu   sync.Mutex
	held map[uint64]int
}

func newMount(v *Volume) *mount { return &mount{v: v, held: map[uint64]int{}} }

// close releases all holds.
func (m *mount) close() {
	m.mu.Lock()
	held := m.held
	m.held = map[uint64]int{}
	m.mu.Unlock() // a Volume's mu is locked before m.mu
	for node, n := range held {
		_ = m.releaseHolds(node, n)
	}
}

// do runs a request. The answer's Data may be in buf.
func (m *mount) do(r *volume.Request, buf []byte) volume.Answer {
	a := volume.Answer{Tag: r.Tag}
	err := m.check(r)
	if err == nil {
		err = m.run(r, &a, buf)
	}
	if err != nil {
		a = volume.Answer{Tag: r.Tag, Err: errno(err)}
	}
	return a
}

// check returns an error for a request that is invalid for every content of the Volume.
func (m *mount) check(r *volume.Request) error {
	switch r.Op {
	case volume.OpLookup, volume.OpSymlink, volume.OpCreate, volume.OpMkdir, volume.OpUnlink, volume.OpRmdir, volume.OpLink:
		if err := checkName(r.Name); err != nil {
			return err
		}
	case volume.OpRename:
		if err := errors.Join(checkName(r.Name), checkName(string(r.Data))); err != nil {
			return err
		}
	}
	if r.Op == volume.OpSymlink && (len(r.Data) == 0 || len(r.Data) > volume.MaxTarget || slices.Contains(r.Data, 0)) {
		return unix.EINVAL
	}
	return nil
}

func (m *mount) run(r *volume.Request, a *volume.Answer, buf []byte) error {
	if r.Op == volume.OpWrite || r.Op == volume.OpAllocate || r.Op == volume.OpSetAttr && r.Set&volume.SetSize != 0 {
		defer m.v.leases.change(r.Node, m)()
	}
	switch r.Op {
	case volume.OpSetAttr, volume.OpSymlink, volume.OpCreate, volume.OpMkdir, volume.OpUnlink, volume.OpRmdir, volume.OpRename, volume.OpLink:
		done, err := m.v.changing()
		if err != nil {
			return err
		}
		defer done()
		return m.change(r, a)
	case volume.OpHold:
		return m.hold(r.Node)
	case volume.OpOpen:
		return m.open(r.Node, a, buf)
	case volume.OpRelease:
		m.v.leases.end(r.Node, int64(r.Other), m)
		return m.release(r.Node)
	}
	done, err := m.v.reading()
	if err != nil {
		return err
	}
	defer done()
	return m.use(r, a, buf)
}

// change runs requests that change entries or attributes.
func (m *mount) change(r *volume.Request, a *volume.Answer) (err error) {
	v := m.v
	switch r.Op {
	case volume.OpSetAttr:
		a.Attr, err = v.setAttr(r)
	case volume.OpSymlink:
		a.Attr, err = v.add(r.Node, r.Name, object{mode: unix.S_IFLNK | 0o777, uid: r.UID, gid: r.GID}, r.Data)
	case volume.OpCreate:
		a.Attr, err = m.create(r)
	case volume.OpMkdir:
		a.Attr, err = v.add(r.Node, r.Name, object{mode: unix.S_IFDIR | r.Mode&permissions, uid: r.UID, gid: r.GID}, nil)
	case volume.OpUnlink:
		err = v.unlink(r.Node, r.Name)
	case volume.OpRmdir:
		err = v.rmdir(r.Node, r.Name)
	case volume.OpRename:
		err = v.rename(r.Node, r.Name, r.Other, string(r.Data), r.Flags&volume.FlagExclusive != 0)
	case volume.OpLink:
		a.Attr, err = v.link(r.Other, r.Node, r.Name)
	}
	return err
}

// create makes a file, or returns the existing one.
func (m *mount) create(r *volume.Request) (volume.Attr, error) {
	a, err := m.v.add(r.Node, r.Name, object{mode: unix.S_IFREG | r.Mode&permissions, uid: r.UID, gid: r.GID}, nil)
	if errors.Is(err, unix.EEXIST) && r.Flags&volume.FlagExclusive == 0 {
		var e entry
		if e, err = m.v.entry(r.Node, r.Name); err == nil {
			if e.letter != letterFile {
				return a, unix.EEXIST
			}
			a, err = m.v.attr(e.node)
		}
	}
	if err == nil && r.Flags&volume.FlagHold != 0 {
		err = m.keep(a.Node)
	}
	return a, err
}

func (m *mount) hold(node uint64) error {
	done, err := m.v.reading()
	if err != nil {
		return err
	}
	defer done()
	if _, err := m.v.describe(node); err != nil {
		return err
	}
	return m.keep(node)
}

// open holds a file, and reads it if it fits into buf and gets a lease.
func (m *mount) open(node uint64, a *volume.Answer, buf []byte) error {
	done, err := m.v.reading()
	if err != nil {
		return err
	}
	defer done()
	o, err := m.v.describe(node)
	if err == nil {
		err = m.keep(node)
	}
	if err != nil || !o.isFile() || len(buf) == 0 {
		return err
	}
	if attr, err := m.v.attrOf(node, o); err != nil || attr.Size > int64(len(buf)) {
		return nil // it is open, and can be read later
	}
	id := m.v.leases.grant(node, m)
	if id == 0 {
		return nil
	}
	// Attributes read now hold; those read before the lease may be outdated.
	attr, err := m.v.attrOf(node, o)
	if err == nil && attr.Size <= int64(len(buf)) {
		read := volume.Request{Node: node, Size: uint32(attr.Size)}
		data, err := m.v.read(&read, buf)
		if err == nil && int64(len(data)) == attr.Size {
			a.Attr, a.Data, a.Count = attr, data, id
			return nil
		}
	}
	m.v.leases.end(node, id, m)
	return nil
}

// keep holds an existing object; the Volume's mu is held.
func (m *mount) keep(node uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held[node] == 0 && len(m.held) >= maxHeld {
		return unix.ENFILE
	}
	m.held[node]++
	m.v.hold(node, 1)
	return nil
}

func (m *mount) release(node uint64) error {
	m.mu.Lock()
	n := m.held[node]
	if n > 1 {
		m.held[node]--
	} else {
		delete(m.held, node)
	}
	m.mu.Unlock()
	if n == 0 {
		return nil // it was held before the Boot was saved, or this Node began
	}
	return m.releaseHolds(node, 1)
}

// releaseHolds releases n holds of an object, which is removed if it has no name.
func (m *mount) releaseHolds(node uint64, n int) error {
	done, err := m.v.changing()
	if err != nil {
		return err
	}
	defer done()
	if m.v.hold(node, -n) > 0 {
		return nil
	}
	o, err := m.v.describe(node)
	if err != nil || o.links > 0 {
		return err
	}
	return m.v.drop(node, o)
}

// use runs requests that change no entries.
func (m *mount) use(r *volume.Request, a *volume.Answer, buf []byte) (err error) {
	v := m.v
	switch r.Op {
	case volume.OpLookup:
		var e entry
		if e, err = v.entry(r.Node, r.Name); err == nil {
			a.Attr, err = v.attr(e.node)
		} else if errors.Is(err, unix.ENOENT) {
			_, stale := v.folder(r.Node)
			err = errors.Join(stale, err)
		}
	case volume.OpGetAttr:
		a.Attr, err = v.attr(r.Node)
	case volume.OpReadLink:
		a.Data, err = v.target(r.Node)
	case volume.OpRead:
		a.Data, err = v.read(r, buf)
	case volume.OpWrite:
		err = m.write(r, a)
	case volume.OpSync:
		err = v.sync(r.Node)
	case volume.OpList:
		err = v.listing(r, a, buf)
	case volume.OpStatFS:
		v.counts.Lock()
		a.Count, a.Free, a.Files = v.max, max(v.max-v.used, 0), maxObjects-v.objects
		v.counts.Unlock()
	case volume.OpAllocate:
		if err = v.truncate(r.Node, r.Offset, true); err == nil {
			a.Attr, err = v.attr(r.Node)
		}
	default:
		err = unix.ENOSYS
	}
	return err
}

func (m *mount) write(r *volume.Request, a *volume.Answer) error {
	o, err := m.v.describe(r.Node)
	switch {
	case err != nil:
		return err
	case !o.isFile():
		return unix.EINVAL
	}
	a.Count = int64(len(r.Data))
	_, err = m.v.writeAt(r.Node, r.Data, r.Offset, r.Flags&volume.FlagAppend != 0)
	return err
}

func (v *Volume) read(r *volume.Request, buf []byte) ([]byte, error) {
	if r.Offset < 0 {
		return nil, unix.EINVAL
	}
	f, err := v.openFile(r.Node, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := f.ReadAt(buf[:r.Size], r.Offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return buf[:n], err
}

// listing answers OpList.
func (v *Volume) listing(r *volume.Request, a *volume.Answer, buf []byte) error {
	if _, err := v.folder(r.Node); err != nil {
		return err
	}
	entries, more, err := v.list(r.Node, r.Name)
	if err != nil {
		return err
	}
	a.Data = buf[:0]
	for _, e := range entries {
		var fits bool
		if a.Data, fits = volume.AppendEntry(a.Data, e); !fits {
			more = true
			break
		}
	}
	if more {
		a.Count = 1
	}
	return nil
}
