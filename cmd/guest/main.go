// Command guest is PID 1 inside every Sandbox: the agent that runs Processes
// and moves files. It is static, small, and blocks when there is nothing to do.
package main

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/envd"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	controlPort = 49982
	envdPort    = 49983
)

// host is the host's end of the link, the only one that may use the control
// service.
var host = netip.AddrFrom4([4]byte{10, 0, 0, 1})

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run() error {
	// A thousand guests share a host: keep the heap near what is in use.
	const softLimit = 48 << 20
	debug.SetGCPercent(30)
	debug.SetMemoryLimit(softLimit)
	unix.Umask(0o022)
	if err := limitChildren(); err != nil {
		return err
	}
	makeFolders()
	accounts := server.NewAccounts()
	g := server.New(accounts, server.NewReaper())
	g.Prepare(guest.Hostname)
	errs := make(chan error, 2)
	control := &server.Control{Guest: g, End: func() {
		// Give the answer a moment to leave; PID 1's end is the Boot's.
		time.AfterFunc(20*time.Millisecond, func() { os.Exit(0) })
	}}
	path, handler := control.Handler()
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	go func() {
		errs <- serve(controlPort, mux, func(l net.Listener) net.Listener { return server.OnlyFrom(l, host) })
	}()
	go func() { errs <- serve(envdPort, envd.New(g), func(l net.Listener) net.Listener { return l }) }()
	return <-errs
}

func serve(port int, h http.Handler, wrap func(net.Listener) net.Listener) error {
	l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second, MaxHeaderBytes: 64 << 10}
	return s.Serve(wrap(l))
}

// limitChildren takes two capabilities out of the bounding set of every thread.
// This process keeps them, to set the hostname and not to be bound by the limit
// on processes; nothing that it starts can have them, root by sudo neither.
func limitChildren() error {
	if os.Getpid() != 1 {
		return nil // a try-out outside a sandbox
	}
	for _, capability := range []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE} {
		if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, capability, 0); errno != 0 {
			return fmt.Errorf("limit what children may do: %w", errno)
		}
	}
	return nil
}

// makeFolders makes what a Template may lack. A failure shows when somebody
// uses the folder.
func makeFolders() {
	const user = 1000
	for dir, owner := range map[string]int{"/workspace": user, "/home/user": user, "/tmp": 0} {
		if os.Mkdir(dir, 0o755) == nil {
			_ = os.Chown(dir, owner, owner)
		}
	}
	_ = os.Chmod("/tmp", 0o1777)
}
