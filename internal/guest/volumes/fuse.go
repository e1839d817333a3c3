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

// The kernel's protocol is described in fuse(4) and in Linux's linux/fuse.h. These
// are the parts of version 7.31 that gVisor uses.
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

	// attrOfHandle requests attributes by an open file: gVisor does so when a read
	// may go beyond the end, and after an allocation.
	attrOfHandle = 1 << 0

	// openNoFlush says that a close sends no flush, which could be interrupted.
	openNoFlush = 1 << 5

	inHead  = 40
	outHead = 16
	page    = 4096
)

var order = binary.LittleEndian

// header is the header of each request of the kernel.
type header struct {
	op       uint32
	unique   uint64
	node     uint64
	uid, gid uint32
	thread   uint32
}

// mount is one mounted Volume.
type mount struct {
	number uint8
	link   *link
	reply  func(answer []byte) // to the kernel; it does not block

	aheads *aheads

	mu      sync.Mutex
	handle  uint64
	folders map[uint64]*folder // open folders, by handle
	fresh   map[uint32]fresh   // by the thread that sent the request
}

func newMount(l *link, number uint8, files *aheads, reply func([]byte)) *mount {
	return &mount{number: number, link: l, reply: reply, aheads: files, folders: map[uint64]*folder{}, fresh: map[uint32]fresh{}}
}

// fresh is an answer that a thread just got about a file: gVisor asks again at
// once.
type fresh struct {
	attr volume.Attr
	at   time.Time
}

const (
	// freshTime is the maximum age of an answer that is reused for the same
	// thread's next request.
	freshTime = 20 * time.Millisecond
	// folderNanos is how long the kernel may cache the attributes of a folder: on
	// the way to a file it asks about each folder. Names in a folder are looked up
	// each time.
	folderNanos = 50_000_000
	// maxFresh bounds the number of threads whose answers are kept.
	maxFresh = 64
)

// keepAttr stores the answer that a thread got.
func (m *mount) keepAttr(thread uint32, a volume.Attr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.fresh) >= maxFresh {
		clear(m.fresh)
	}
	m.fresh[thread] = fresh{a, time.Now()}
}

// toldJustNow returns the answer that a thread got about a file just before this
// request, if it is recent. Each answer is reused once.
func (m *mount) toldJustNow(h header) (volume.Attr, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.fresh[h.thread]
	delete(m.fresh, h.thread)
	return f.attr, ok && f.attr.Node == h.node && time.Since(f.at) < freshTime
}

// query is a request of the kernel in progress.
type query struct {
	m       *mount
	h       header
	out     []byte // the answer, after space for its header
	asks    bool   // it holds a slot of link.queries
	large   bool   // and a slot of link.large
	changes bool   // it may change the bytes of files
	buffer  []byte // a large buffer of the link that it holds
}

// take starts a request of the kernel. It is answered here, or when the Node has
// answered.
func (m *mount) take(in []byte) {
	if len(in) < inHead {
		return
	}
	h := header{
		op: order.Uint32(in[4:]), unique: order.Uint64(in[8:]), node: order.Uint64(in[16:]),
		uid: order.Uint32(in[24:]), gid: order.Uint32(in[28:]), thread: order.Uint32(in[32:]),
	}
	switch h.op {
	case opForget, opBatchForget, opInterrupt:
		return
	}
	q := &query{m: m, h: h, out: make([]byte, outHead, outHead+256)}
	if in = in[inHead:]; len(in) < shortest[h.op] {
		q.end(unix.EINVAL)
		return
	}
	q.do(in)
}

// end answers the kernel.
func (q *query) end(err syscall.Errno) {
	if err != 0 {
		q.out = q.out[:outHead]
	}
	order.PutUint32(q.out, uint32(len(q.out)))
	order.PutUint32(q.out[4:], uint32(-int32(err)))
	order.PutUint64(q.out[8:], q.h.unique)
	if q.changes {
		q.m.aheads.changed()
	}
	q.m.reply(q.out)
	if q.buffer != nil {
		select {
		case q.m.link.buffers <- q.buffer:
		default:
		}
	}
	if q.large {
		<-q.m.link.large
	}
	if q.asks {
		<-q.m.link.queries
	}
}

// place acquires the query's slots for requests to the Node.
func (q *query) place(large bool) {
	q.m.link.queries <- struct{}{}
	q.asks = true
	if large {
		q.m.link.large <- struct{}{}
		q.large = true
	}
}

// ask sends a request to the Node, and answers the kernel with the data that add
// then appends; nil: with none.
func (q *query) ask(r volume.Request, add func(a volume.Answer)) {
	q.place(false)
	q.start(r, add)
}

// start is ask for a query that has its slot.
func (q *query) start(r volume.Request, add func(a volume.Answer)) {
	r.Mount = q.m.number
	q.m.link.start(&question{request: r, done: func(a volume.Answer) {
		if a.Err == 0 && add != nil {
			add(a)
		}
		q.end(a.Err)
	}})
}

// later runs an operation that sends several requests to the Node.
func (q *query) later(do func() syscall.Errno) {
	q.place(false)
	go func() { q.end(do()) }()
}

// shortest is the minimum length of a request's body, up to its names, in bytes.
var shortest = map[uint32]int{
	opGetAttr: 16, opSetAttr: 88, opMknod: 16, opMkdir: 8, opRename: 8, opRename2: 16, opLink: 8, opOpen: 8, opRead: 40, opWrite: 40,
	opRelease: 24, opFsync: 16, opInit: 16, opOpenDir: 8, opReadDir: 40, opReleaseDir: 24, opCreate: 16, opFallocate: 32,
}

// do answers a request, or starts to.
func (q *query) do(in []byte) {
	m, h := q.m, q.h
	known, knows := m.toldJustNow(h)
	switch h.op {
	case opInit:
		q.init(in)
	case opDestroy, opFlush, opFsyncDir, opAccess:
		q.end(0)
	case opGetXattr, opSetXattr, opListXattr, opRemoveXattr:
		q.end(unix.ENOTSUP)
	case opOpenDir:
		q.openFolder()
	case opReadDir:
		handle, at, size := order.Uint64(in), order.Uint64(in[8:]), int(order.Uint32(in[16:]))
		q.later(func() syscall.Errno { return q.readFolder(handle, at, size) })
	case opReleaseDir:
		m.closeFolder(order.Uint64(in))
		q.end(0)
	case opLookup, opMknod, opMkdir, opSymlink, opLink, opCreate:
		q.entry(in)
	case opUnlink, opRmdir, opRename, opRename2:
		q.remove(in)
	case opGetAttr:
		if order.Uint32(in)&attrOfHandle != 0 && !knows {
			// The kernel will use the length alone.
			var a ahead
			a, knows = m.aheads.of(h.node)
			known = a.attr
		}
		if knows {
			q.out = appendAttrOut(q.out, known)
			q.end(0)
			return
		}
		q.attr(volume.Request{Op: volume.OpGetAttr, Node: h.node})
	case opSetAttr:
		r := setAttr(h.node, in)
		if knows && r.Set == volume.SetSize && r.Offset == 0 && known.Size == 0 {
			q.out = appendAttrOut(q.out, known) // of a file that was just made
			q.end(0)
			return
		}
		q.change()
		q.attr(r)
	default:
		q.file(in)
	}
}

// ask sends a request for this mount to the Node, and waits.
func (m *mount) ask(r volume.Request) (volume.Answer, syscall.Errno) {
	r.Mount = m.number
	return m.link.ask(r)
}

func (q *query) init(in []byte) {
	if order.Uint32(in) != protocolMajor {
		q.end(unix.EPROTO)
		return
	}
	out := order.AppendUint32(q.out, protocolMajor)
	out = order.AppendUint32(out, protocolMinor)
	out = order.AppendUint32(out, maxData) // readahead
	out = order.AppendUint32(out, initAsyncRead|initAtomicTrunc|initBigWrites|initMaxPages)
	out = order.AppendUint16(out, maxQueries) // in the background
	out = order.AppendUint16(out, maxQueries)
	out = order.AppendUint32(out, maxData) // a write
	out = order.AppendUint32(out, 1)       // precision of times in nanoseconds
	out = order.AppendUint16(out, maxData/page)
	q.out = append(out, make([]byte, 2+32)...)
	q.end(0)
}

// name cuts a name, which ends with NUL, from a request.
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

// entry handles the requests whose answer is a directory entry.
func (q *query) entry(in []byte) {
	h := q.h
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
			q.end(unix.EPERM) // no devices, pipes and sockets
			return
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
		q.end(err)
		return
	}
	if h.op == opSymlink {
		target, _, found := bytes.Cut(in, []byte{0})
		if !found || len(target) > volume.MaxTarget {
			q.end(unix.ENAMETOOLONG)
			return
		}
		r.Data = target
	}
	q.ask(r, func(a volume.Answer) {
		q.m.keepAttr(h.thread, a.Attr)
		q.out = appendEntry(q.out, a.Attr)
		if h.op == opCreate {
			q.out = appendOpen(q.out, a.Attr.Node)
		}
	})
}

// remove handles the requests that remove a directory entry.
func (q *query) remove(in []byte) {
	r, err := removal(q.h, in)
	if err != 0 {
		q.end(err)
		return
	}
	q.ask(r, nil)
}

func removal(h header, in []byte) (r volume.Request, err syscall.Errno) {
	r = volume.Request{Op: volume.OpUnlink, Node: h.node}
	switch h.op {
	case opRmdir:
		r.Op = volume.OpRmdir
	case opRename2:
		switch order.Uint32(in[8:]) {
		case 0:
		case unix.RENAME_NOREPLACE:
			r.Flags = volume.FlagExclusive
		default:
			return r, unix.EINVAL
		}
		fallthrough
	case opRename:
		r.Op, r.Other = volume.OpRename, order.Uint64(in)
		in = in[shortest[h.op]:]
	}
	if r.Name, in, err = name(in); err != 0 {
		return r, err
	}
	if r.Op == volume.OpRename {
		to, _, err := name(in)
		if err != 0 {
			return r, err
		}
		r.Data = []byte(to)
	}
	return r, 0
}

// attr sends a request whose answer is the attributes of a file.
func (q *query) attr(r volume.Request) {
	q.ask(r, func(a volume.Answer) { q.out = appendAttrOut(q.out, a.Attr) })
}

// appendAttrOut appends attributes and how long the kernel may cache them.
// Attributes of files are not cached: another Sandbox may change them.
func appendAttrOut(out []byte, a volume.Attr) []byte {
	valid := uint32(0)
	if a.Mode&unix.S_IFMT == unix.S_IFDIR {
		valid = folderNanos
	}
	out = order.AppendUint64(out, 0)
	out = order.AppendUint32(out, valid)
	return appendAttr(append(out, make([]byte, 4)...), a)
}

// setAttr decodes the attributes to change: valid, padding, fh, size, lock owner,
// times of access, modification and change, their nanoseconds, mode, padding,
// owners.
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
	// gVisor says "now" in the nanoseconds, and confuses the two bits.
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

// file handles the requests about one file.
func (q *query) file(in []byte) {
	node := q.h.node
	switch q.h.op {
	case opReadLink:
		q.ask(volume.Request{Op: volume.OpReadLink, Node: node}, func(a volume.Answer) { q.out = append(q.out, a.Data...) })
	case opOpen:
		q.open(order.Uint32(in))
	case opRelease:
		q.release()
	case opRead:
		q.read(int64(order.Uint64(in[8:])), int(min(order.Uint32(in[16:]), maxData)))
	case opWrite:
		q.write(in)
	case opFsync:
		q.ask(volume.Request{Op: volume.OpSync, Node: node}, nil)
	case opFallocate:
		offset, length := int64(order.Uint64(in[8:])), int64(order.Uint64(in[16:]))
		if order.Uint32(in[24:]) != 0 || offset < 0 || length <= 0 || offset+length < 0 {
			q.end(unix.EOPNOTSUPP) // no holes, and no allocation beyond the end
			return
		}
		q.change()
		q.ask(volume.Request{Op: volume.OpAllocate, Node: node, Offset: offset + length}, nil)
	case opStatFS:
		q.statFS()
	default:
		q.end(unix.ENOSYS)
	}
}

func (q *query) statFS() {
	q.ask(volume.Request{Op: volume.OpStatFS, Node: volume.RootNode}, func(a volume.Answer) {
		for _, v := range []int64{a.Count / page, a.Free / page, a.Free / page, a.Files, a.Files} {
			q.out = order.AppendUint64(q.out, uint64(v))
		}
		for _, v := range []uint32{page, volume.MaxName, page, 0} {
			q.out = order.AppendUint32(q.out, v)
		}
		q.out = append(q.out, make([]byte, 24)...)
	})
}

// appendEntry appends a directory entry. The kernel must not cache it.
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

// appendOpen appends the handle of a file, which is its node number: so a restored
// Boot has no other handles that a Node would have to know.
func appendOpen(out []byte, node uint64) []byte {
	out = order.AppendUint64(out, node)
	out = order.AppendUint32(out, openNoFlush)
	return append(out, make([]byte, 4)...)
}
