// Package addrtest finds addresses for the servers of tests.
package addrtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
)

// Free returns a free loopback address. No other call in any test process returns it while
// this process runs. If possible, its port is below the kernel's ephemeral ports, so that no
// other program gets it by chance while its server is down.
func Free() (string, error) {
	const lowest = 20000
	beyond := lowest
	if raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(raw), &beyond)
	}
	for range 1000 {
		port := 0 // any free port, if none below
		if beyond > lowest {
			port = lowest + rand.IntN(beyond-lowest)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		addr := l.Addr().String()
		l.Close()
		if reserve(addr) == nil {
			return addr, nil
		}
	}
	return "", errors.New("no port of loopback is free")
}

// FreePort returns the port of a free address, for a server on another one.
func FreePort() (string, error) {
	addr, err := Free()
	_, port, _ := strings.Cut(addr, ":")
	return port, err
}

// reserve binds a name that stands for an address. It is released when this process
// ends, even by a crash.
func reserve(addr string) error {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: "@cloud-sandbox-test/" + addr})
	if err != nil {
		syscall.Close(fd)
	}
	return err
}
