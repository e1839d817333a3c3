package launch

import (
	"fmt"
	"net"
	"os"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// writeAddress writes the server's address for clients on this machine; remove deletes it.
func (l Layout) writeAddress(listeners []*os.File) (remove func(), err error) {
	first, err := net.FileListener(listeners[0])
	if err != nil {
		return nil, err
	}
	defer first.Close() // of its own descriptor
	host, port, err := net.SplitHostPort(first.Addr().String())
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host).IsUnspecified() {
		host = "localhost"
	}
	file := config.AddressFile(l.Root)
	half := file + ".new"
	if err := os.WriteFile(half, []byte("http://"+net.JoinHostPort(host, port)+"\n"), 0o644); err != nil {
		return nil, fmt.Errorf("record the server's address: %w", err)
	}
	if err := os.Rename(half, file); err != nil {
		return nil, fmt.Errorf("record the server's address: %w", err)
	}
	return func() { _ = os.Remove(file) }, nil // a stale file names a server that does not answer
}
