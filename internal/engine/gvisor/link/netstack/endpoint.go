package netstack

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

const (
	// framesPerTurn bounds the frames that one link reads before it yields its core.
	framesPerTurn = 64
	// sendPatience bounds how long a full socket may block a sender. A guest that reads
	// needs less; to one that does not, frames are dropped without waiting until one fits
	// again.
	sendPatience = 5 * time.Millisecond
)

// Endpoint is one end of a link for the network stack: Ethernet frames to and from a
// sequenced-packet socket. It waits in Go's netpoller: an idle one costs a parked
// goroutine, no thread and no buffer.
type Endpoint struct {
	file   *os.File
	raw    syscall.RawConn
	local  tcpip.LinkAddress
	remote tcpip.LinkAddress
	accept func(frame []byte) bool // gets the first bytes of a frame; nil accepts all
	lost   func()                  // called once when the other end is gone; may be nil

	writing sync.Mutex
	stalled bool // guarded by writing: the last wait for room timed out

	stopping atomic.Bool
	bytesIn  atomic.Int64 // written to the socket
	bytesOut atomic.Int64 // read from it

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
	reader     sync.WaitGroup
}

var _ stack.LinkEndpoint = (*Endpoint)(nil)

// NewEndpoint makes an endpoint of a socket and takes ownership of the file, which must
// have been made from a non-blocking socket. local and remote are the addresses of the
// two ends.
func NewEndpoint(file *os.File, local, remote [6]byte) (*Endpoint, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var setErr error
	if err := raw.Control(func(fd uintptr) { setErr = unix.SetNonblock(int(fd), true) }); err != nil {
		return nil, err
	}
	if setErr != nil {
		return nil, os.NewSyscallError("fcntl", setErr)
	}
	if err := file.SetDeadline(time.Time{}); err != nil {
		return nil, err // not in the netpoller: reading would take a thread
	}
	return &Endpoint{file: file, raw: raw, local: tcpip.LinkAddress(local[:]), remote: tcpip.LinkAddress(remote[:])}, nil
}

// MTU is the link's MTU in bytes.
func (e *Endpoint) MTU() uint32 { return link.MTU }

// SetMTU does nothing: the MTU of a link is fixed.
func (e *Endpoint) SetMTU(uint32) {}

// MaxHeaderLength is the length of an Ethernet header.
func (e *Endpoint) MaxHeaderLength() uint16 { return header.EthernetMinimumSize }

// LinkAddress is the address of the local end.
func (e *Endpoint) LinkAddress() tcpip.LinkAddress { return e.local }

// SetLinkAddress does nothing: addresses of a link are fixed.
func (e *Endpoint) SetLinkAddress(tcpip.LinkAddress) {}

// ARPHardwareType is Ethernet.
func (e *Endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// Capabilities disable checksums both ways: a socket damages no frame.
func (e *Endpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityResolutionRequired | stack.CapabilityTXChecksumOffload | stack.CapabilityRXChecksumOffload
}

// SetOnCloseAction does nothing: the endpoint has no device to destroy.
func (e *Endpoint) SetOnCloseAction(func()) {}

// Attach sets the receiver of frames after Start; with nil it closes the socket and waits
// for the reader.
func (e *Endpoint) Attach(d stack.NetworkDispatcher) {
	e.mu.Lock()
	e.dispatcher = d
	e.mu.Unlock()
	if d == nil {
		e.Close()
		e.reader.Wait()
	}
}

// Start begins to read, once. Until then frames wait in the socket, so that the stack can
// be set up for the first one.
func (e *Endpoint) Start() { e.reader.Go(e.read) }

// IsAttached reports whether a stack uses the endpoint.
func (e *Endpoint) IsAttached() bool { return e.current() != nil }

func (e *Endpoint) current() stack.NetworkDispatcher {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.dispatcher
}

// Close closes the socket, which ends the reader.
func (e *Endpoint) Close() {
	if e.stopping.CompareAndSwap(false, true) {
		e.file.Close()
	}
}

// Wait waits for the reader.
func (e *Endpoint) Wait() { e.reader.Wait() }

// AddHeader puts the Ethernet header before a packet, to the only neighbour.
func (e *Endpoint) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: e.local, DstAddr: e.remote, Type: pkt.NetworkProtocolNumber,
	})
}

// ParseHeader takes the Ethernet header off a packet.
func (e *Endpoint) ParseHeader(pkt *stack.PacketBuffer) bool {
	b, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	if ok {
		pkt.NetworkProtocolNumber = header.Ethernet(b).Type()
	}
	return ok
}

// WritePackets sends frames. A frame that finds no room within sendPatience is dropped.
func (e *Endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		if err := e.write(pkt); err != nil {
			return i, err
		}
	}
	return pkts.Len(), nil
}

func (e *Endpoint) write(pkt *stack.PacketBuffer) tcpip.Error {
	var few [8]unix.Iovec
	iovecs := frameIovecs(pkt, few[:0])
	var n int
	var errno error
	waited := false
	e.writing.Lock()
	defer e.writing.Unlock()
	err := e.raw.Write(func(fd uintptr) bool {
		n, errno = sendmsg(fd, iovecs)
		if errno != unix.EAGAIN || waited || e.stalled {
			return true
		}
		waited = true
		_ = e.file.SetWriteDeadline(time.Now().Add(sendPatience))
		return false
	})
	runtime.KeepAlive(pkt)
	if waited {
		e.stalled = os.IsTimeout(err)
		_ = e.file.SetWriteDeadline(time.Time{})
	}
	switch {
	case os.IsTimeout(err), errno == unix.EAGAIN || errno == unix.ENOBUFS:
		return &tcpip.ErrNoBufferSpace{}
	case err != nil || errno != nil:
		return &tcpip.ErrClosedForSend{}
	}
	e.stalled = false
	e.bytesIn.Add(int64(n))
	return nil
}

// frameIovecs appends the parts of a frame, in order, to iovecs.
func frameIovecs(pkt *stack.PacketBuffer, iovecs []unix.Iovec) []unix.Iovec {
	views, skip := pkt.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		part := v.AsSlice()
		if skip >= len(part) {
			skip -= len(part)
			continue
		}
		part = part[skip:]
		skip = 0
		iov := unix.Iovec{Base: &part[0]}
		iov.SetLen(len(part))
		iovecs = append(iovecs, iov)
	}
	return iovecs
}

// read delivers frames until the socket is closed or the other end is gone.
func (e *Endpoint) read() {
	for {
		gone := false
		err := e.raw.Read(func(fd uintptr) bool {
			var more bool
			more, gone = e.readSome(fd)
			return more || gone
		})
		if err != nil || gone {
			break
		}
		runtime.Gosched() // a flooding guest does not keep a core
	}
	if !e.stopping.Load() && e.lost != nil {
		e.lost()
	}
}

// readSome delivers the waiting frames. It reports whether there may be more (false: wait
// until the socket is readable), and whether the other end is gone. It holds buffers only
// while it runs.
func (e *Endpoint) readSome(fd uintptr) (more, gone bool) {
	f := framePool.Get().(*frame)
	defer framePool.Put(f)
	for range framesPerTurn {
		if e.stopping.Load() {
			return true, false
		}
		n, err := f.receive(fd)
		switch {
		case err == unix.EAGAIN:
			return false, false
		case err == unix.EINTR:
		case err != nil:
			return false, true
		case n == 0 && hungUp(fd):
			return false, true
		default:
			e.bytesOut.Add(int64(n))
			e.deliver(f, n)
		}
	}
	return true, false
}

// deliver hands a frame to the stack.
func (e *Endpoint) deliver(f *frame, n int) {
	if n < header.EthernetMinimumSize || n > maxFrame {
		return
	}
	if e.accept != nil && !e.accept(f.head.AsSlice()[:min(n, headBytes)]) {
		return
	}
	d := e.current()
	if d == nil {
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: f.take(n)})
	defer pkt.DecRef()
	if !e.ParseHeader(pkt) {
		return
	}
	pkt.RXChecksumValidated = true
	pkt.PktType = tcpip.PacketHost
	d.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
}

const (
	// maxFrame is the longest frame: an MTU and its Ethernet header.
	maxFrame = link.MTU + header.EthernetMinimumSize
	// headBytes are read apart from the rest: exactly the headers of a usual TCP segment
	// (with timestamps as its only option). So its payload is contiguous, in a pooled
	// buffer that the longest frame would not fit.
	headBytes = header.EthernetMinimumSize + header.IPv4MinimumSize + header.TCPMinimumSize + 12
	// keepWhole is the least length in bytes for which a frame keeps the buffer that it
	// was read into. A shorter frame is copied into a buffer of its size, so that queues
	// hold at most twice the memory that they count.
	keepWhole = 32 << 10
)

// frame is a buffer for reading frames.
type frame struct {
	head, body *buffer.View
	iovecs     [2]unix.Iovec
}

var framePool = sync.Pool{New: func() any { return new(frame) }}

// receive reads one frame and returns its length, which exceeds maxFrame when the frame
// was truncated.
func (f *frame) receive(fd uintptr) (int, error) {
	if f.head == nil {
		f.head = buffer.NewViewSize(headBytes)
		f.iovecs[0] = unix.Iovec{Base: f.head.BasePtr()}
		f.iovecs[0].SetLen(headBytes)
	}
	if f.body == nil {
		f.body = buffer.NewViewSize(buffer.MaxChunkSize)
		f.iovecs[1] = unix.Iovec{Base: f.body.BasePtr()}
		f.iovecs[1].SetLen(buffer.MaxChunkSize)
	}
	return recvmsg(fd, f.iovecs[:], unix.MSG_TRUNC)
}

// take returns the frame of n bytes and leaves f ready for the next one.
func (f *frame) take(n int) buffer.Buffer {
	if n <= headBytes {
		return buffer.MakeWithView(buffer.NewViewWithData(f.head.AsSlice()[:n]))
	}
	out := buffer.MakeWithView(f.head)
	f.head = nil
	rest := n - headBytes
	if rest < keepWhole {
		_ = out.Append(buffer.NewViewWithData(f.body.AsSlice()[:rest]))
		return out
	}
	f.body.CapLength(rest)
	_ = out.Append(f.body)
	f.body = nil
	return out
}

// hungUp distinguishes the end of the other side from an empty packet.
func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}
