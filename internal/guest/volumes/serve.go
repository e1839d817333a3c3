package volumes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// firstFile is the descriptor of the listener; the mounts' descriptors follow
	// it.
	firstFile = 3
	// maxData bounds the bytes of one read or write of the kernel; gVisor has no
	// larger ones. Each is sent to the Node in concurrent pieces.
	maxData = maxPieces * volume.MaxData
	// maxPieces bounds those pieces.
	maxPieces = 4
	// requestBytes is the maximum length of a request of the kernel.
	requestBytes = maxData + 8192
	// threads is how many threads may work in addition to the readers from the
	// kernel, and garbagePercent is the garbage collector's percentage: a
	// collection stops and wakes all threads, which costs more here than the
	// memory.
	threads        = 3
	garbagePercent = 400
)

// Run serves the mounts of these Volumes until the last of them is unmounted.
// Descriptor 3 is the listener; the descriptors after it are /dev/fuse, one for
// each Volume. Run writes a byte to descriptor 1 when it has started, and then
// reads a byte from descriptor 0, which says that they are mounted.
func Run(host netip.Addr, volumes []string) error {
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("the volumes are not mounted: %w", err)
	}
	file := os.NewFile(firstFile, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("listen to the node: %w", err)
	}
	_ = file.Close()
	// A thread that waits in the kernel keeps its processor, so that it can
	// continue without another thread's help.
	runtime.GOMAXPROCS(len(volumes) + threads)
	debug.SetGCPercent(garbagePercent)
	l := newLink(volumes)
	ended := make(chan error, 1)
	go func() { ended <- l.serve(server.OnlyFrom(listener, host)) }()
	left := make(chan struct{})
	files := map[string]*aheads{}
	for i, id := range volumes {
		if files[id] == nil {
			files[id] = newAheads()
		}
		fd := firstFile + 1 + i
		m := newMount(l, uint8(i), files[id], func(answer []byte) { reply(fd, answer) })
		go func() {
			m.serve(fd)
			left <- struct{}{}
		}()
	}
	for range volumes {
		select {
		case <-left:
		case err := <-ended:
			return err
		}
	}
	return nil
}

// serve handles the kernel's requests until the mount is gone. One thread is enough
// for a mount, as it waits for nothing else: gVisor wakes all readers for each
// request.
func (m *mount) serve(fd int) {
	buf := make([]byte, requestBytes)
	for {
		// The runtime's poller does not work here: a read waits in the kernel.
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
		case err != nil:
			return
		default:
			m.take(buf[:n])
		}
	}
}

// reply writes an answer to the kernel. An error says that the caller no longer
// waits for it.
func reply(fd int, answer []byte) {
	for {
		if _, err := unix.Write(fd, answer); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
