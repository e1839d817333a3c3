package volumes

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

// kernel asks a mount as gVisor does.
type kernel struct {
	t      *testing.T
	mount  *mount
	asked  *asked
	thread uint32
}

// asked is what has no answer yet.
type asked struct {
	unique  atomic.Uint64
	answers sync.Map // of channels, by unique number
}

// reply is where a mount writes its answers to.
func (a *asked) reply(b []byte) {
	if to, ok := a.answers.LoadAndDelete(order.Uint64(b[8:])); ok {
		to.(chan []byte) <- bytes.Clone(b)
	}
}

// pair returns both ends of a connection.
func pair(t *testing.T) (guest *net.TCPConn, node net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	node, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn), node
}

// mounted returns a mount of an empty Volume, served by a Node's disk.
func mounted(t *testing.T) *kernel {
	t.Helper()
	return mountedIn(t, 1)[0]
}

// mountedIn returns mounts of one empty Volume in so many Boots.
func mountedIn(t *testing.T, boots int) (all []*kernel) {
	t.Helper()
	d, err := disk.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	v := sandbox.VolumeSpec{ID: sandbox.NewVolumeID(), Tenant: "t", MaxBytes: 8 << 20}
	if err := d.Create(v); err != nil {
		t.Fatal(err)
	}
	for range boots {
		l := newLink([]string{v.ID})
		stop := connected(t, l, d.ForBoot(v.Tenant, []string{v.ID}), nil)
		k := &kernel{t: t, asked: &asked{}, thread: 1}
		k.mount = newMount(l, 0, newAheads(), k.asked.reply)
		t.Cleanup(stop)
		all = append(all, k)
	}
	return all
}

// connected connects a link to a Node's end of it, again and again. Each connection is
// cut when cut says so; nil: never.
func connected(t *testing.T, l *link, boot volume.Server, cut func() <-chan time.Time) (stop func()) {
	t.Helper()
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer boot.Close()
		for {
			ours, theirs := pair(t)
			served, used := make(chan error, 1), make(chan error, 1)
			go func() { served <- boot.Serve(t.Context(), theirs) }()
			go func() { used <- l.use(ours) }()
			var now <-chan time.Time
			if cut != nil {
				now = cut()
			}
			last := false
			select {
			case <-now:
			case <-stopped:
				last = true
			}
			theirs.Close()
			<-used
			<-served
			if last {
				return
			}
		}
	}()
	return func() {
		close(stopped)
		<-ended
	}
}

// ask sends a request and returns the body of the answer.
func (k *kernel) ask(op uint32, node uint64, body []byte) ([]byte, unix.Errno) {
	k.t.Helper()
	unique := k.asked.unique.Add(2)
	answer := make(chan []byte, 1)
	k.asked.answers.Store(unique, answer)
	in := order.AppendUint32(nil, uint32(inHead+len(body)))
	in = order.AppendUint32(in, op)
	in = order.AppendUint64(in, unique)
	in = order.AppendUint64(in, node)
	for _, v := range []uint32{1000, 1001, k.thread, 0} {
		in = order.AppendUint32(in, v)
	}
	k.mount.take(append(in, body...))
	var out []byte
	select {
	case out = <-answer:
	case <-time.After(10 * time.Second):
		k.t.Errorf("operation %d has no answer", op)
		return nil, unix.EIO
	}
	if int(order.Uint32(out)) != len(out) || order.Uint64(out[8:]) != unique {
		k.t.Errorf("operation %d: the answer of %d bytes says %d, for %d", op, len(out), order.Uint32(out), order.Uint64(out[8:]))
	}
	return out[outHead:], unix.Errno(-int32(order.Uint32(out[4:])))
}

func (k *kernel) must(op uint32, node uint64, body []byte) []byte {
	k.t.Helper()
	out, err := k.ask(op, node, body)
	if err != 0 {
		k.t.Fatalf("operation %d: %v", op, err)
	}
	return out
}

// words are 32 bits each.
func words(v ...uint32) (b []byte) {
	for _, w := range v {
		b = order.AppendUint32(b, w)
	}
	return b
}

// create makes a file and returns its number.
func (k *kernel) create(name string, flags uint32) uint64 {
	k.t.Helper()
	return order.Uint64(k.must(opCreate, 1, append(words(flags, unix.S_IFREG|0o666, 0o22, 0), name+"\x00"...)))
}

// write is fh, offset, size, flags, lock owner, flags of the file, padding.
func write(offset uint64, flags uint32, data string) []byte {
	b := order.AppendUint64(order.AppendUint64(nil, 0), offset)
	b = append(b, words(uint32(len(data)), 0, 0, 0, flags, 0)...)
	return append(b, data...)
}

// The offsets of an answer's attributes, after those of a name or none.
const (
	attrAt, entryAt               = 16, 40
	sizeAt, mtimeAt               = 8, 32
	modeAt, linksAt, uidAt, gidAt = 60, 64, 68, 72
)

func TestFileOfTheKernel(t *testing.T) {
	k := mounted(t)
	init := k.must(opInit, 0, words(7, 31, 131072, 1<<22))
	if major, most, pages := order.Uint32(init), order.Uint32(init[20:]), order.Uint16(init[28:]); major != 7 || most != maxData || int(pages)*page != maxData || len(init) != 64 {
		t.Errorf("init says %d, %d bytes, %d pages in %d bytes", major, most, pages, len(init))
	}
	out := k.must(opCreate, 1, append(words(unix.O_RDWR|unix.O_EXCL, unix.S_IFREG|0o666, 0o22, 0), "f\x00"...))
	file := order.Uint64(out)
	a := out[entryAt:]
	if order.Uint32(a[modeAt:]) != unix.S_IFREG|0o644 || order.Uint32(a[uidAt:]) != 1000 || order.Uint32(a[gidAt:]) != 1001 || order.Uint32(a[linksAt:]) != 1 {
		t.Errorf("the file is made as %x", a)
	}
	if open := out[128:]; order.Uint64(open) != file || order.Uint32(open[8:])&openNoFlush == 0 || len(open) != 16 {
		t.Errorf("it is opened as %x", open)
	}
	if _, err := k.ask(opCreate, 1, append(words(unix.O_RDWR|unix.O_EXCL, 0o666, 0, 0), "f\x00"...)); err != unix.EEXIST {
		t.Errorf("made once more: %v", err)
	}
	k.must(opWrite, file, write(0, 0, "hello"))
	k.must(opWrite, file, write(0, unix.O_APPEND, " world")) // the kernel's offset is old
	read := append(order.AppendUint64(order.AppendUint64(nil, 0), 0), words(4096, 0, 0, 0, 0, 0)...)
	if got := string(k.must(opRead, file, read)); got != "hello world" {
		t.Errorf("the file has %q", got)
	}
	a = k.must(opGetAttr, file, make([]byte, 16))[attrAt:]
	if order.Uint64(a[sizeAt:]) != 11 {
		t.Errorf("its length is %d", order.Uint64(a[sizeAt:]))
	}
	set := make([]byte, 88)
	order.PutUint32(set, 32|128) // as gVisor says touch -m: the bit of the other, and "now" in the nanoseconds
	order.PutUint32(set[60:], unix.UTIME_NOW)
	before := time.Now().Unix()
	a = k.must(opSetAttr, file, set)[attrAt:]
	if got := int64(order.Uint64(a[mtimeAt:])); got < before || got > time.Now().Unix() {
		t.Errorf("touched at %d, not %d", got, before)
	}
	k.must(opRename2, 1, append(append(order.AppendUint64(nil, 1), words(unix.RENAME_NOREPLACE, 0)...), "f\x00g\x00"...))
	if _, err := k.ask(opRename2, 1, append(append(order.AppendUint64(nil, 1), words(unix.RENAME_EXCHANGE, 0)...), "g\x00h\x00"...)); err != unix.EINVAL {
		t.Errorf("an exchange: %v", err)
	}
	k.must(opUnlink, 1, []byte("g\x00"))
	if got := string(k.must(opRead, file, read)); got != "hello world" {
		t.Errorf("without a name the open file has %q", got)
	}
	k.must(opRelease, file, make([]byte, 24))
	if _, err := k.ask(opMknod, 1, append(words(unix.S_IFCHR|0o666, 0x103, 0, 0), "null\x00"...)); err != unix.EPERM {
		t.Errorf("a device: %v", err)
	}
	stat := k.must(opStatFS, 1, nil)
	if len(stat) != 80 || order.Uint64(stat)*page != 8<<20 {
		t.Errorf("statfs says %x", stat)
	}
}

// A thread is told once what it was told before, and asks for the truth then.
func TestFresh(t *testing.T) {
	k := mounted(t)
	file := k.create("f", unix.O_RDWR)
	size := func() uint64 { return order.Uint64(k.must(opGetAttr, file, make([]byte, 16))[attrAt+sizeAt:]) }
	other := *k
	other.thread = 2
	k.must(opLookup, 1, []byte("f\x00"))
	other.must(opWrite, file, write(0, 0, "x"))
	_ = size() // what the look-up said, or the truth when it is late
	if got := size(); got != 1 {
		t.Errorf("the second question is answered with %d bytes", got)
	}
	k.must(opLookup, 1, []byte("f\x00"))
	other.must(opWrite, file, write(1, 0, "x"))
	k.must(opStatFS, 1, nil)
	if got := size(); got != 2 {
		t.Errorf("a question after another is answered with %d bytes", got)
	}
}

// A listing comes in pages; one from the beginning shows what is new.
func TestListingOfTheKernel(t *testing.T) {
	k := mounted(t)
	const count = 300
	for i := range count {
		k.create(fmt.Sprintf("file-%03d", i), unix.O_RDWR)
	}
	handle := order.Uint64(k.must(opOpenDir, 1, make([]byte, 8)))
	list := func() (names []string) {
		for at := uint64(0); ; {
			in := append(order.AppendUint64(order.AppendUint64(nil, handle), at), words(4096, 0, 0, 0, 0, 0)...)
			out := k.must(opReadDir, 1, in)
			if len(out) == 0 {
				return names
			}
			for len(out) > 0 {
				n := int(order.Uint32(out[16:]))
				at = order.Uint64(out[8:])
				names = append(names, string(out[direntHead:direntHead+n]))
				out = out[(direntHead+n+7)&^7:]
			}
		}
	}
	if names := list(); len(names) != count+2 || names[0] != "." || names[2] != "file-000" || names[count+1] != "file-299" {
		t.Errorf("%d names: %v", len(names), names)
	}
	k.must(opUnlink, 1, []byte("file-000\x00"))
	if names := list(); len(names) != count+1 || names[2] != "file-001" {
		t.Errorf("%d names then", len(names))
	}
	k.must(opReleaseDir, 1, append(order.AppendUint64(nil, handle), make([]byte, 16)...))
}

// What the kernel never says ends no server.
func TestOddRequests(t *testing.T) {
	k := mounted(t)
	for op := range uint32(60) {
		if op == opForget || op == opInterrupt || op == opBatchForget {
			continue
		}
		for _, body := range [][]byte{nil, make([]byte, 7), bytes.Repeat([]byte{0xff}, 40), bytes.Repeat([]byte{'n'}, 300), make([]byte, 200)} {
			_, _ = k.ask(op, 1, body)
		}
	}
	k.mount.reply = func([]byte) { t.Error("half a header was answered") }
	k.mount.take([]byte("short"))
}

// A request whose connection broke is sent again over the next.
func TestLinkRepeats(t *testing.T) {
	l := newLink([]string{"v1", "v2"})
	answered := make(chan volume.Answer, 1)
	go func() {
		a, _ := l.ask(volume.Request{Op: volume.OpMkdir, Name: "d"})
		answered <- a
	}()
	node := func() (net.Conn, *bufio.Reader, volume.Request) {
		theirs, ours := pair(t)
		go func() { _ = l.use(theirs) }()
		r := bufio.NewReader(ours)
		next := func() volume.Request {
			frame, err := volume.ReadFrame(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			req, err := volume.DecodeRequest(frame)
			if err != nil {
				t.Fatal(err)
			}
			return req
		}
		if hello := next(); hello.Op != volume.OpHello || hello.Size != volume.Version || string(hello.Data) != "v1 v2" {
			t.Fatalf("the hello is %+v", hello)
		}
		if _, err := ours.Write(volume.AppendAnswer(nil, &volume.Answer{})); err != nil {
			t.Fatal(err)
		}
		return ours, r, next()
	}
	conn, _, first := node()
	conn.Close()
	conn, _, second := node()
	defer conn.Close()
	if first.Tag != second.Tag || first.Name != "d" || second.Name != "d" {
		t.Errorf("%+v was sent again as %+v", first, second)
	}
	if _, err := conn.Write(volume.AppendAnswer(nil, &volume.Answer{Tag: second.Tag, Count: 5})); err != nil {
		t.Fatal(err)
	}
	if a := <-answered; a.Count != 5 {
		t.Errorf("the answer is %+v", a)
	}
}
