package volumes

import (
	"bytes"
	"encoding/binary"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// The kernel's protocol is described in fuse(4) and in Linux's linux/fuse.h; this
// is what gVisor speaks of it, version 7.31.
const (
	opLookup      = 1
	opForget      = 2
	opGetAttr     = 3
	opSetAttr     = 4
	opReadLink    = 5
	opSymlink     = 6
	opMknod       = 8
	opMkdir       = 9
	opUnlink      = 10
	opRmdir       = 11
	opRename      = 12
	opLink        = 13
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatFS      = 17
	opRelease     = 18
	opFsync       = 20
	opSetXattr    = 21
	opGetXattr    = 22
	opListXattr   = 23
	opRemoveXattr = 24
	opFlush       = 25
	opInit        = 26
	opOpenDir     = 27
	opReadDir     = 28
	opReleaseDir  = 29
	opFsyncDir    = 30
	opAccess      = 34
	opCreate      = 35
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
	opFallocate   = 43
	opRename2     = 45
)

const (
	protocolMajor = 7
	protocolMinor = 31

	initAsyncRead   = 1 << 0
	initAtomicTrunc = 1 << 3
	initBigWrites   = 1 << 5
	initMaxPages    = 1 << 22

	// openNoFlush has a close not wait for an answer, which could be interrupted.
	openNoFlush = 1 << 5

	inHead  = 40
	outHead = 16
	page    = 4096
)

var order = binary.LittleEndian

// header begins each request of the kernel.
type header struct {
	op       uint32
	unique   uint64
	node     uint64
	uid, gid uint32
	thread   uint32
}

// mount is one mounted Volume.
type mount struct {
	fd     int // /dev/fuse
	number uint8
	link   *link

	mu      sync.Mutex
	handle  uint64
	folders map[uint64]*folder // that are open, by handle
	fresh   map[uint32]fresh   // by the thread that asked

	background chan volume.Request // of which nobody awaits the end
}

// fresh is what a thread was told of a file just now: gVisor asks again at once.
type fresh struct {
	attr volume.Attr
	at   time.Time
}

const (
	// freshTime is how old an answer to the same thread's next question may be.
	freshTime = 20 * time.Millisecond
	// folderNanos is how long the kernel may go on with what it knows of a folder: on
	// the way to a file it asks about each. What is in it is asked for each time.
	folderNanos = 50_000_000
	// maxFresh bounds how many threads' answers are kept.
	maxFresh = 64
	// maxBackground is how many requests may be under way that nobody waits for.
	maxBackground = 128
)

// told keeps what a thread was told.
func (m *mount) told(thread uint32, a volume.Attr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.fresh) >= maxFresh {
		clear(m.fresh)
	}
	m.fresh[thread] = fresh{a, time.Now()}
}

// toldJustNow returns what a thread was told of a file by the answer before this
// question, if that is not long ago. It is told so once.
func (m *mount) toldJustNow(h header) (volume.Attr, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.fresh[h.thread]
	delete(m.fresh, h.thread)
	return f.attr, ok && f.attr.Node == h.node && time.Since(f.at) < freshTime
}

// later sends requests that nobody waits for.
func (m *mount) later() {
	for r := range m.background {
		_, _ = m.ask(r)
	}
}

// answer carries a request of the kernel out and returns what to write; false when
// nothing is.
func (m *mount) answer(in []byte) ([]byte, bool) {
	if len(in) < inHead {
		return nil, false
	}
	h := header{
		op: order.Uint32(in[4:]), unique: order.Uint64(in[8:]), node: order.Uint64(in[16:]),
		uid: order.Uint32(in[24:]), gid: order.Uint32(in[28:]), thread: order.Uint32(in[32:]),
	}
	switch h.op {
	case opForget, opBatchForget, opInterrupt:
		return nil, false
	}
	out := make([]byte, outHead, outHead+256)
	out, err := m.do(h, in[inHead:], out)
	if err != 0 {
		out = out[:outHead]
	}
	order.PutUint32(out, uint32(len(out)))
	order.PutUint32(out[4:], uint32(-int32(err)))
	order.PutUint64(out[8:], h.unique)
	return out, true
}

// shortest is how long the body of a request is at least, up to its names.
var shortest = map[uint32]int{
	opGetAttr: 16, opSetAttr: 88, opMknod: 16, opMkdir: 8, opRename: 8, opRename2: 16, opLink: 8, opOpen: 8, opRead: 40, opWrite: 40,
	opRelease: 24, opFsync: 16, opInit: 16, opOpenDir: 8, opReadDir: 40, opReleaseDir: 24, opCreate: 16, opFallocate: 32,
}

// do appends the answer to a request to out.
func (m *mount) do(h header, in, out []byte) ([]byte, syscall.Errno) {
	if len(in) < shortest[h.op] {
		return out, unix.EINVAL
	}
	known, knows := m.toldJustNow(h)
	switch h.op {
	case opInit:
		return m.init(in, out)
	case opDestroy, opFlush, opFsyncDir, opAccess:
		return out, 0
	case opGetXattr, opSetXattr, opListXattr, opRemoveXattr:
		return out, unix.ENOTSUP
	case opOpenDir:
		return m.openFolder(h, out)
	case opReadDir:
		return m.readFolder(h, in, out)
	case opReleaseDir:
		m.closeFolder(order.Uint64(in))
		return out, 0
	case opLookup, opMknod, opMkdir, opSymlink, opLink, opCreate:
		return m.entry(h, in, out)
	case opUnlink, opRmdir, opRename, opRename2:
		return out, m.remove(h, in)
	case opGetAttr:
		if knows {
			return appendAttrOut(out, known), 0
		}
		return m.attr(volume.Request{Op: volume.OpGetAttr, Node: h.node}, out)
	case opSetAttr:
		r := setAttr(h.node, in)
		if knows && r.Set == volume.SetSize && r.Offset == 0 && known.Size == 0 {
			return appendAttrOut(out, known), 0 // of a file that was just made
		}
		return m.attr(r, out)
	}
	return m.file(h, in, out)
}

// ask asks the Node about this mount.
func (m *mount) ask(r volume.Request) (volume.Answer, syscall.Errno) {
	r.Mount = m.number
	return m.link.ask(r)
}

func (m *mount) init(in, out []byte) ([]byte, syscall.Errno) {
	if order.Uint32(in) != protocolMajor {
		return out, unix.EPROTO
	}
	out = order.AppendUint32(out, protocolMajor)
	out = order.AppendUint32(out, protocolMinor)
	out = order.AppendUint32(out, volume.MaxData) // readahead
	out = order.AppendUint32(out, initAsyncRead|initAtomicTrunc|initBigWrites|initMaxPages)
	out = order.AppendUint16(out, readers) // in the background
	out = order.AppendUint16(out, readers)
	out = order.AppendUint32(out, volume.MaxData) // a write
	out = order.AppendUint32(out, 1)              // nanoseconds that times are exact to
	out = order.AppendUint16(out, volume.MaxData/page)
	return append(out, make([]byte, 2+32)...), 0
}

// name cuts a name from a request, which ends with NUL.
func name(in []byte) (string, []byte, syscall.Errno) {
	before, after, found := bytes.Cut(in, []byte{0})
	switch {
	case !found || len(before) == 0:
		return "", nil, unix.EINVAL
	case len(before) > volume.MaxName:
		return "", nil, unix.ENAMETOOLONG
	}
	return string(before), after, 0
}

// entry does what ends with a file under a name.
func (m *mount) entry(h header, in, out []byte) ([]byte, syscall.Errno) {
	r := volume.Request{Node: h.node, UID: h.uid, GID: h.gid}
	switch h.op {
	case opLookup:
		r.Op = volume.OpLookup
	case opSymlink:
		r.Op = volume.OpSymlink
	case opMkdir:
		r.Op, r.Mode, in = volume.OpMkdir, order.Uint32(in)&^order.Uint32(in[4:]), in[8:]
	case opLink:
		r.Op, r.Other, in = volume.OpLink, order.Uint64(in), in[8:]
	case opMknod:
		mode := order.Uint32(in)
		if kind := mode & unix.S_IFMT; kind != unix.S_IFREG && kind != 0 {
			return out, unix.EPERM // no devices, pipes and sockets
		}
		r.Op, r.Flags, r.Mode, in = volume.OpCreate, volume.FlagExclusive, mode&^order.Uint32(in[8:]), in[16:]
	case opCreate:
		r.Op, r.Flags, r.Mode = volume.OpCreate, volume.FlagHold, order.Uint32(in[4:])&^order.Uint32(in[8:])
		if order.Uint32(in)&unix.O_EXCL != 0 {
			r.Flags |= volume.FlagExclusive
		}
		in = in[16:]
	}
	var err syscall.Errno
	if r.Name, in, err = name(in); err != 0 {
		return out, err
	}
	if h.op == opSymlink {
		target, _, found := bytes.Cut(in, []byte{0})
		if !found || len(target) > volume.MaxTarget {
			return out, unix.ENAMETOOLONG
		}
		r.Data = target
	}
	a, err := m.ask(r)
	if err != 0 {
		return out, err
	}
	m.told(h.thread, a.Attr)
	out = appendEntry(out, a.Attr)
	if h.op == opCreate {
		out = appendOpen(out, a.Attr.Node)
	}
	return out, 0
}

// remove does what ends without one.
func (m *mount) remove(h header, in []byte) (err syscall.Errno) {
	r := volume.Request{Op: volume.OpUnlink, Node: h.node}
	switch h.op {
	case opRmdir:
		r.Op = volume.OpRmdir
	case opRename2:
		switch order.Uint32(in[8:]) {
		case 0:
		case unix.RENAME_NOREPLACE:
			r.Flags = volume.FlagExclusive
		default:
			return unix.EINVAL
		}
		fallthrough
	case opRename:
		r.Op, r.Other = volume.OpRename, order.Uint64(in)
		in = in[shortest[h.op]:]
	}
	if r.Name, in, err = name(in); err != 0 {
		return err
	}
	if r.Op == volume.OpRename {
		to, _, err := name(in)
		if err != 0 {
			return err
		}
		r.Data = []byte(to)
	}
	_, err = m.ask(r)
	return err
}

// attr does what ends with the attributes of a file.
func (m *mount) attr(r volume.Request, out []byte) ([]byte, syscall.Errno) {
	a, err := m.ask(r)
	if err != 0 {
		return out, err
	}
	return appendAttrOut(out, a.Attr), 0
}

// appendAttrOut appends attributes and how long they hold. Those of files hold for
// no time: another Sandbox may change them.
func appendAttrOut(out []byte, a volume.Attr) []byte {
	valid := uint32(0)
	if a.Mode&unix.S_IFMT == unix.S_IFDIR {
		valid = folderNanos
	}
	out = order.AppendUint64(out, 0)
	out = order.AppendUint32(out, valid)
	return appendAttr(append(out, make([]byte, 4)...), a)
}

// setAttr reads what is to be changed: valid, padding, fh, size, lock owner,
// times of access, modification and change, their nanoseconds, mode, padding, owners.
func setAttr(node uint64, in []byte) volume.Request {
	const (
		mode, uid, gid, size, accessed, modified, accessedNow, modifiedNow = 1, 2, 4, 8, 16, 32, 128, 256
	)
	valid := order.Uint32(in)
	r := volume.Request{
		Op: volume.OpSetAttr, Node: node, Offset: int64(order.Uint64(in[16:])), Mode: order.Uint32(in[68:]),
		UID: order.Uint32(in[76:]), GID: order.Uint32(in[80:]),
	}
	for _, bit := range []struct{ theirs, ours uint32 }{
		{mode, volume.SetMode},
		{uid, volume.SetUID},
		{gid, volume.SetGID},
		{size, volume.SetSize},
		{accessed, volume.SetAccessed},
		{modified, volume.SetModified},
	} {
		if valid&bit.theirs != 0 {
			r.Set |= bit.ours
		}
	}
	// gVisor says "now" in the nanoseconds, and takes the one bit for the other.
	accessedNanos, modifiedNanos := order.Uint32(in[56:]), order.Uint32(in[60:])
	if valid&accessed != 0 && (accessedNanos == unix.UTIME_NOW || valid&accessedNow != 0 && valid&modified == 0) {
		r.Set |= volume.SetAccessedNow
	}
	if valid&modified != 0 && (modifiedNanos == unix.UTIME_NOW || valid&modifiedNow != 0) {
		r.Set |= volume.SetModifiedNow
	}
	r.Accessed = int64(order.Uint64(in[32:]))*1e9 + int64(accessedNanos)
	r.Modified = int64(order.Uint64(in[40:]))*1e9 + int64(modifiedNanos)
	return r
}

// file does what is about one file.
func (m *mount) file(h header, in, out []byte) ([]byte, syscall.Errno) {
	switch h.op {
	case opReadLink:
		a, err := m.ask(volume.Request{Op: volume.OpReadLink, Node: h.node})
		return append(out, a.Data...), err
	case opOpen:
		if order.Uint32(in)&unix.O_TRUNC != 0 {
			if _, err := m.ask(volume.Request{Op: volume.OpSetAttr, Node: h.node, Set: volume.SetSize}); err != 0 {
				return out, err
			}
		}
		_, err := m.ask(volume.Request{Op: volume.OpHold, Node: h.node})
		return appendOpen(out, h.node), err
	case opRelease:
		m.background <- volume.Request{Op: volume.OpRelease, Node: h.node}
		return out, 0
	case opRead:
		size := min(order.Uint32(in[16:]), volume.MaxData)
		a, err := m.ask(volume.Request{Op: volume.OpRead, Node: h.node, Offset: int64(order.Uint64(in[8:])), Size: size})
		return append(out, a.Data...), err
	case opWrite:
		return m.write(h, in, out)
	case opFsync:
		_, err := m.ask(volume.Request{Op: volume.OpSync, Node: h.node})
		return out, err
	case opFallocate:
		offset, length := int64(order.Uint64(in[8:])), int64(order.Uint64(in[16:]))
		if order.Uint32(in[24:]) != 0 || offset < 0 || length <= 0 || offset+length < 0 {
			return out, unix.EOPNOTSUPP // no holes, and nothing beyond the end
		}
		_, err := m.ask(volume.Request{Op: volume.OpAllocate, Node: h.node, Offset: offset + length})
		return out, err
	case opStatFS:
		return m.statFS(out)
	}
	return out, unix.ENOSYS
}

func (m *mount) write(h header, in, out []byte) ([]byte, syscall.Errno) {
	data := in[40:]
	if uint64(len(data)) < uint64(order.Uint32(in[16:])) || len(data) > volume.MaxData {
		return out, unix.EINVAL
	}
	r := volume.Request{Op: volume.OpWrite, Node: h.node, Offset: int64(order.Uint64(in[8:])), Data: data[:order.Uint32(in[16:])]}
	if order.Uint32(in[32:])&unix.O_APPEND != 0 {
		r.Flags = volume.FlagAppend // the kernel's idea of the end is its own
	}
	a, err := m.ask(r)
	out = order.AppendUint32(out, uint32(a.Count))
	return append(out, make([]byte, 4)...), err
}

func (m *mount) statFS(out []byte) ([]byte, syscall.Errno) {
	a, err := m.ask(volume.Request{Op: volume.OpStatFS, Node: volume.RootNode})
	for _, v := range []int64{a.Count / page, a.Free / page, a.Free / page, a.Files, a.Files} {
		out = order.AppendUint64(out, uint64(v))
	}
	for _, v := range []uint32{page, volume.MaxName, page, 0} {
		out = order.AppendUint32(out, v)
	}
	return append(out, make([]byte, 24)...), err
}

// appendEntry appends what a name stands for. It holds for no time, as appendAttr.
func appendEntry(out []byte, a volume.Attr) []byte {
	out = order.AppendUint64(out, a.Node)
	return appendAttr(append(out, make([]byte, 32)...), a)
}

func appendAttr(out []byte, a volume.Attr) []byte {
	for _, v := range []uint64{
		a.Node, uint64(a.Size), uint64(a.Blocks),
		uint64(a.Accessed / 1e9), uint64(a.Modified / 1e9), uint64(a.Changed / 1e9),
	} {
		out = order.AppendUint64(out, v)
	}
	for _, v := range []uint32{
		uint32(a.Accessed % 1e9), uint32(a.Modified % 1e9), uint32(a.Changed % 1e9),
		a.Mode, a.Links, a.UID, a.GID, 0, page, 0,
	} {
		out = order.AppendUint32(out, v)
	}
	return out
}

// appendOpen appends the handle of a file, which is its number: a Boot that was
// saved has nothing else that a Node would have to know.
func appendOpen(out []byte, node uint64) []byte {
	out = order.AppendUint64(out, node)
	out = order.AppendUint32(out, openNoFlush)
	return append(out, make([]byte, 4)...)
}
