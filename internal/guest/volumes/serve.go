package volumes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// firstFile is the descriptor of the listener; those of the mounts follow it.
	firstFile = 3
	// readers is how many requests of a mount are worked on at a time.
	readers = 4
	// requestBytes is as long as a request of the kernel gets.
	requestBytes = volume.MaxData + 8192
)

// Run serves the mounts of these Volumes until the last of them is gone. Descriptor
// 3 is the listener, those after it are /dev/fuse, one for each Volume. A byte that it
// writes to 1 says that it has begun; one that it reads from 0, that they are mounted.
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
	l := newLink(volumes)
	ended := make(chan error, 1)
	go func() { ended <- l.serve(server.OnlyFrom(listener, host)) }()
	left := make(chan struct{})
	for i := range volumes {
		m := &mount{fd: firstFile + 1 + i, number: uint8(i), link: l, folders: map[uint64]*folder{}, fresh: map[uint32]fresh{}, background: make(chan volume.Request, maxBackground)}
		go m.later()
		for range readers {
			go func() {
				m.serve()
				left <- struct{}{}
			}()
		}
	}
	for range readers * len(volumes) {
		select {
		case <-left:
		case err := <-ended:
			return err
		}
	}
	return nil
}

// serve answers what the kernel asks, until the mount is gone.
func (m *mount) serve() {
	buf := make([]byte, requestBytes)
	for {
		// The runtime's poller does not work here: a read waits in the kernel.
		n, err := unix.Read(m.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return
		}
		out, answers := m.answer(buf[:n])
		for answers {
			// An error says that nobody waits for it any more.
			if _, err := unix.Write(m.fd, out); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}
