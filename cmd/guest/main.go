//go:build linux

// Command guest is PID 1 inside every Sandbox: the agent that runs Processes and
// moves files. It is static, small, and blocks when it is idle. Started with
// "volumes" and their IDs it is the volume server instead.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/envd"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/events"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/files"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/interpreter"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/mcpgateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/processes"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/volumes"
)

const (
	controlPort     = 49982
	envdPort        = 49983
	interpreterPort = 49999
)

// host is the host's end of the link, the only address that may use the control
// service.
var host = netip.AddrFrom4([4]byte{10, 0, 0, 1})

func main() {
	if filepath.Base(os.Args[0]) == mcpgateway.Name {
		os.Exit(mcpgateway.Main(os.Args[1:]))
	}
	err := error(nil)
	if len(os.Args) > 1 && os.Args[1] == server.VolumesArgument {
		err = volumes.Run(host, os.Args[2:])
	} else {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run() error {
	const softLimit = 48 << 20
	debug.SetMemoryLimit(softLimit)
	// Work here is passed from goroutine to goroutine. With two threads, each step
	// would wake the other thread through the kernel, which costs more here than
	// the work.
	runtime.GOMAXPROCS(1)
	unix.Umask(0o022)
	if err := limitChildren(); err != nil {
		return err
	}
	makeFolders()
	accounts := server.NewAccounts()
	g := server.New(accounts, server.NewReaper())
	g.LoadTemplate()
	g.Prepare(guest.Hostname)
	if os.Getpid() == 1 {
		server.LeaveSignals()
		linkGateway()
	}
	errs := make(chan error, 4)
	control := &server.Control{Guest: g, End: func() {
		// Give the answer time to leave; the end of PID 1 is the end of the Boot.
		time.AfterFunc(20*time.Millisecond, func() { os.Exit(0) })
	}}
	mux := http.NewServeMux()
	mux.Handle(control.Handler())
	own := files.New(g)
	mux.Handle(own.Handler())
	mux.HandleFunc("GET "+guest.FilesPath, own.Read)
	mux.HandleFunc("PUT "+guest.FilesPath, own.Write)
	mux.HandleFunc("GET "+guest.ForwardPath, server.Forward)
	told := events.New(g)
	mux.HandleFunc("GET "+guest.LogsPath, told.Logs)
	kept := contexts.New(g)
	control.Parked, control.Bound = kept.Prepare, kept.Bound
	service := &contexts.Service{Contexts: kept}
	mux.Handle(service.Handler())
	mux.Handle(processes.NewService(processes.New(g, kept)).Handler())
	onlyHost := func(l net.Listener) net.Listener { return server.OnlyFrom(l, host) }
	watch := watch(g)
	go func() { errs <- serve(watch, controlPort, mux, onlyHost) }()
	go func() { errs <- serve(watch, int(sandbox.EventsPort), told, onlyHost) }()
	open := func(l net.Listener) net.Listener { return l }
	go func() { errs <- serve(watch, envdPort, envd.New(g), open) }()
	go func() { errs <- serve(watch, interpreterPort, server.Gathered(interpreter.New(g, kept)), open) }()
	return <-errs
}

func serve(watch func(net.Conn, http.ConnState), port int, h http.Handler, wrap func(net.Listener) net.Listener) error {
	// The host cannot vanish without ending this Boot: no keepalive probes.
	l, err := (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second, MaxHeaderBytes: 64 << 10, ConnState: watch}
	return s.Serve(wrap(l))
}

// limitChildren removes three capabilities from the bounding set of every thread.
// This process keeps them, to set the hostname, to give a waiting bash its command,
// and to be exempt from the limit on processes. Its children cannot have them, not
// even as root by sudo.
func limitChildren() error {
	if os.Getpid() != 1 {
		return nil // a trial outside a sandbox
	}
	for _, capability := range []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_RESOURCE} {
		if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, capability, 0); errno != 0 {
			return fmt.Errorf("limit the rights of children: %w", errno)
		}
	}
	return nil
}

// linkGateway installs the command mcp-gateway, which is this program too, in the
// search path, unless the Template has its own.
func linkGateway() {
	if exe, err := os.Executable(); err == nil {
		_ = os.Symlink(exe, "/usr/local/bin/"+mcpgateway.Name)
	}
}

// makeFolders creates folders that a Template may lack. A failure shows when a
// folder is used.
func makeFolders() {
	const user = 1000
	for dir, owner := range map[string]int{"/workspace": user, "/home/user": user, "/tmp": 0} {
		if os.Mkdir(dir, 0o755) == nil {
			_ = os.Chown(dir, owner, owner)
		}
	}
	_ = os.Chmod("/tmp", 0o1777)
}
