// Package latefile serves a file whose content arrives while it is read: each read waits
// for its bytes. The file is one of FUSE, so a process that knows nothing of this reads it
// like any other.
//
// Source: https://docs.kernel.org/filesystems/fuse/fuse.html, and the kernel's header
// include/uapi/linux/fuse.h.
package latefile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
)

// Content is the content of a File. Its methods are called concurrently.
type Content interface {
	// Await waits until n bytes from an offset on have arrived, or ctx ends. There is at
	// least one, and none of them is beyond the end of the File.
	Await(ctx context.Context, off, n int64) error
	// ReadAt reads bytes that have arrived.
	io.ReaderAt
}

// ErrUnsupported says that this kernel cannot serve a File.
var ErrUnsupported = errors.New("the kernel serves no files of FUSE")

// File is a file without a name. Use New. It is served until Close was called and every
// file of Open is closed, also the copies in other processes.
type File struct {
	content Content
	size    int64
	file    *os.File // open for reading
	dev     *os.File // the kernel's requests
	served  sync.WaitGroup
	replies sync.WaitGroup
	sending chan struct{} // a semaphore for answers with content

	mu      sync.Mutex
	reading map[linux.FUSEOpID]context.CancelFunc // reads in progress
}

const (
	// maxRequest holds any request but writes, which the kernel does not send.
	maxRequest = 64 << 10
	// maxPages is the largest read, in pages.
	maxPages = 256
	// maxReads bounds the reads in progress: a sentry has up to 40, and any number of Boots
	// may read one state.
	maxReads = 16 << 10
	// maxAnswers bounds the answers with content in memory, of up to a MiB each.
	maxAnswers = 64
	// waiting is how many reads that no program waits for the kernel sends at a time.
	waiting = 32
	// Flags of FUSE_OPEN that linux lacks: reads do not go through the page cache, and no
	// FUSE_FLUSH follows a close. A process that ends would wait for its answer.
	openDirect, openNoFlush = 1 << 0, 1 << 5
	valid                   = 1 << 30
	mode                    = unix.S_IFREG | 0o444
)

// New serves a file of size bytes. The error is ErrUnsupported if the kernel has no FUSE.
func New(content Content, size int64) (*File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, unsupported(os.NewSyscallError("open /dev/fuse", err))
	}
	root, err := mount(fd)
	if err != nil {
		unix.Close(fd)
		return nil, unsupported(err)
	}
	defer unix.Close(root)
	// The poller takes the descriptor only once it belongs to a mount: before that, the
	// kernel would never wake it.
	f := &File{
		content: content, size: size, dev: os.NewFile(uintptr(fd), "/dev/fuse"),
		sending: make(chan struct{}, maxAnswers), reading: map[linux.FUSEOpID]context.CancelFunc{},
	}
	f.served.Go(f.serve)
	// Once for all: if this process is killed between the request and its answer, the thread
	// that opens waits for good.
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", root), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil { // the mount ends with its last descriptor
		return nil, os.NewSyscallError("open a file of FUSE", err)
	}
	f.file = os.NewFile(uintptr(opened), "late file")
	return f, nil
}

// unsupported is ErrUnsupported with its cause, unless this process lacks a resource that it has
// at other times.
func unsupported(err error) error {
	for _, lack := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, lack) {
			return err
		}
	}
	return errors.Join(ErrUnsupported, err)
}

// Supported returns ErrUnsupported, with the reason, if this kernel cannot serve a File. A
// kernel before 5.19 copies from such a file to others with copy_file_range, one range at a
// time, and a range that waits would hold up all.
func Supported() error {
	if err := checkKernel(); err != nil {
		return errors.Join(ErrUnsupported, err)
	}
	f, err := New(nil, 1)
	if err != nil {
		return err
	}
	f.Close()
	f.Wait()
	return nil
}

// checkKernel returns an error for a kernel before 5.19.
func checkKernel() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return os.NewSyscallError("uname", err)
	}
	var major, minor int
	release := unix.ByteSliceToString(name.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("the kernel %q: %w", release, err)
	}
	if major < 5 || major == 5 && minor < 19 {
		return fmt.Errorf("the kernel %s is older than 5.19", release)
	}
	return nil
}

// mount returns a mount without a place in the tree of files, whose root is the file.
func mount(dev int) (root int, err error) {
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{
		{"source", "cloud-sandbox"},
		{"fd", strconv.Itoa(dev)},
		{"rootmode", strconv.FormatInt(mode, 8)},
		{"user_id", "0"},
		{"group_id", "0"},
	} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("mount a file of FUSE: option %s: %w", o[0], err)
		}
	}
	// A sentry has another user than this process.
	if err := unix.FsconfigSetFlag(fs, "allow_other"); err != nil {
		return -1, fmt.Errorf("mount a file of FUSE: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("mount a file of FUSE: %w", err)
	}
	root, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	return root, os.NewSyscallError("fsmount", err)
}

// Open returns a descriptor for reading. All of them have one offset, so readers name offsets
// of their own. It is not added to the poller: the kernel would ask this process about it,
// which may be waiting for the poller.
func (f *File) Open() (*os.File, error) {
	fd, err := unix.FcntlInt(f.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "late file"), nil
}

// Close ends the File once no process has it open any more. Open fails from then on.
func (f *File) Close() error { return f.file.Close() }

// Wait waits until the File is not served any more.
func (f *File) Wait() { f.served.Wait() }

// serve answers the kernel's requests until no process has the file open.
func (f *File) serve() {
	defer f.dev.Close()
	defer f.replies.Wait()
	defer f.interruptAll()
	request := make([]byte, maxRequest)
	for {
		n, err := f.dev.Read(request)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // that request was withdrawn
		case err != nil:
			return // ENODEV: the last file was closed
		default:
			f.handle(request[:n])
		}
	}
}

// handle answers one request.
func (f *File) handle(request []byte) {
	var h linux.FUSEHeaderIn
	if len(request) < h.SizeBytes() {
		return
	}
	body := h.UnmarshalBytes(request)
	switch h.Opcode {
	case linux.FUSE_FORGET, linux.FUSE_BATCH_FORGET: // these have no answer
	case linux.FUSE_INTERRUPT:
		if len(body) >= 8 {
			f.interrupt(linux.FUSEOpID(binary.NativeEndian.Uint64(body)))
		}
	case linux.FUSE_INIT:
		f.answer(h, f.init(body))
	case linux.FUSE_GETATTR:
		out := linux.FUSEAttrOut{AttrValid: valid, Attr: linux.FUSEAttr{
			Ino: 1, Size: uint64(f.size), Blocks: uint64(f.size+511) / 512, Mode: mode, Nlink: 1, BlkSize: linux.FUSE_PAGE_SIZE,
		}}
		f.answer(h, marshal(&out))
	case linux.FUSE_OPEN:
		f.answer(h, marshal(&linux.FUSEOpenOut{OpenFlag: openDirect | openNoFlush}))
	case linux.FUSE_READ:
		var in linux.FUSEReadIn
		if len(body) < in.SizeBytes() {
			f.refuse(h, unix.EINVAL)
			return
		}
		in.UnmarshalBytes(body)
		ctx, ok := f.begin(h.Unique)
		if !ok {
			f.refuse(h, unix.EAGAIN)
			return
		}
		f.replies.Go(func() { f.read(ctx, h, in) })
	case linux.FUSE_STATFS: // gVisor asks for the type of the file system, which the kernel adds
		f.answer(h, marshal(&linux.FUSEStatfsOut{BlockSize: linux.FUSE_PAGE_SIZE}))
	case linux.FUSE_RELEASE, linux.FUSE_DESTROY:
		f.answer(h, nil)
	default:
		f.refuse(h, unix.ENOSYS)
	}
}

// begin notes a read in progress; false if there are too many.
func (f *File) begin(id linux.FUSEOpID) (context.Context, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.reading) >= maxReads {
		return nil, false
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.reading[id] = cancel
	return ctx, true
}

// init agrees on the version and the largest read.
func (f *File) init(body []byte) []byte {
	var in linux.FUSEInitIn
	if len(body) >= in.SizeBytes() {
		in.UnmarshalBytes(body)
	}
	out := linux.FUSEInitOut{
		Major: linux.FUSE_KERNEL_VERSION, Minor: linux.FUSE_KERNEL_MINOR_VERSION,
		Flags:         in.Flags & (linux.FUSE_ASYNC_READ | linux.FUSE_MAX_PAGES),
		MaxBackground: waiting, CongestionThreshold: waiting,
		MaxWrite: linux.FUSE_PAGE_SIZE, TimeGran: 1, MaxPages: maxPages,
	}
	return marshal(&out)
}

// read answers a FUSE_READ once its bytes have arrived.
func (f *File) read(ctx context.Context, h linux.FUSEHeaderIn, in linux.FUSEReadIn) {
	defer f.interrupt(h.Unique)
	off := int64(in.Offset)
	if off < 0 || off >= f.size || in.Size == 0 { // the kernel asks for those too
		f.answer(h, nil)
		return
	}
	n := min(int64(in.Size), maxPages*linux.FUSE_PAGE_SIZE, f.size-off)
	err := f.content.Await(ctx, off, n)
	if err == nil {
		f.sending <- struct{}{} // memory only for bytes that have arrived, and are sent
		defer func() { <-f.sending }()
		out := make([]byte, headerBytes+n)
		if _, err = f.content.ReadAt(out[headerBytes:], off); err == nil {
			f.send(h, 0, out)
			return
		}
	}
	if ctx.Err() != nil { // its reader was killed, and waits for this answer
		f.refuse(h, unix.EINTR)
		return
	}
	f.refuse(h, unix.EIO)
}

// interrupt ends a read, if it is in progress.
func (f *File) interrupt(id linux.FUSEOpID) {
	f.mu.Lock()
	cancel := f.reading[id]
	delete(f.reading, id)
	f.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

func (f *File) interruptAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cancel := range f.reading {
		cancel()
	}
}

var headerBytes = int64((*linux.FUSEHeaderOut)(nil).SizeBytes())

func (f *File) answer(h linux.FUSEHeaderIn, body []byte) {
	f.send(h, 0, append(make([]byte, headerBytes), body...))
}

func (f *File) refuse(h linux.FUSEHeaderIn, errno unix.Errno) {
	f.send(h, errno, make([]byte, headerBytes))
}

// send completes the header of an answer and sends it. It fails when the request was
// withdrawn, or the mount is gone.
func (f *File) send(h linux.FUSEHeaderIn, errno unix.Errno, out []byte) {
	head := linux.FUSEHeaderOut{Len: uint32(len(out)), Error: -int32(errno), Unique: h.Unique}
	head.MarshalBytes(out)
	_, _ = f.dev.Write(out)
}

// wire is a struct of the protocol.
type wire interface {
	SizeBytes() int
	MarshalBytes([]byte) []byte
}

func marshal(w wire) []byte {
	b := make([]byte, w.SizeBytes())
	w.MarshalBytes(b)
	return b
}
