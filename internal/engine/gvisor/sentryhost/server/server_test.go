package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// rig is a sentry host with its environment in folders of its own.
type rig struct {
	t    *testing.T
	cfg  Config
	host *Host
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("sentries are started by root only")
	}
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		t.Fatal("mkfs.erofs is missing: install erofs-utils")
	}
	dir, err := os.MkdirTemp("", "sentryhost")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	for _, d := range []string{"sidecars", "images", "root/tmp", "root/dev", "root/proc", "root/sys", "guest"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "root/tmp/.keep"), nil, 0o644))
	build(t, "github.com/cloud-sandbox/cloud-sandbox/cmd/sentry", filepath.Join(dir, "sidecars/gvisor_sentry"))
	build(t, "./testdata/guest", filepath.Join(dir, "guest/guest"))
	mkfs(t, filepath.Join(dir, "guest.erofs"), filepath.Join(dir, "guest"))
	mkfs(t, filepath.Join(dir, "images/test.erofs"), filepath.Join(dir, "root"))
	r := &rig{t: t, cfg: Config{
		Dir: filepath.Join(dir, "host"), Images: filepath.Join(dir, "images"), UpperDir: filepath.Join(dir, "upper"), Saved: filepath.Join(dir, "saved"),
		GuestImage: filepath.Join(dir, "guest.erofs"), SidecarDir: filepath.Join(dir, "sidecars"),
		LinkBinary: "/bin/false", LinkUID: 65534, Parent: fmt.Sprintf("cloud-sandbox-test-%d", os.Getpid()),
	}}
	r.open()
	t.Cleanup(func() {
		if err := r.host.groups.Remove(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) open() {
	h, err := New(r.cfg, slog.New(slog.NewTextHandler(r.t.Output(), nil)))
	must(r.t, err)
	r.host = h
}

// patience is the timeout of each wait. Only a busy machine comes near it.
const patience = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func build(t *testing.T, pkg, out string) {
	t.Helper()
	edits, err := exec.Command("../../../../../scripts/gvisor.sh").Output()
	must(t, err)
	args := append([]string{"build"}, strings.Fields(string(edits))...)
	cmd := exec.Command("go", append(args, "-trimpath", "-ldflags", "-s -w -X gvisor.dev/gvisor/runsc/version.version=test", "-o", out, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, b)
	}
}

func mkfs(t *testing.T, img, dir string) {
	t.Helper()
	if b, err := exec.Command("mkfs.erofs", "-x-1", "-Enoinline_data", "--quiet", img, dir).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v\n%s", err, b)
	}
}

// start boots the test image and returns an HTTP client into it.
func (r *rig) start(id string, shape sandbox.Shape) *http.Client {
	r.t.Helper()
	client, _ := r.startAs(sentryhost.StartRequest{ID: id, Image: "test", Shape: shape})
	return client
}

// startAs is start with any request.
func (r *rig) startAs(body sentryhost.StartRequest) (*http.Client, sentryhost.StartReply) {
	r.t.Helper()
	hostEnd, guestEnd := pair(r.t)
	client := dialer(r.t, hostEnd)
	began := time.Now()
	dup, err := duplicate(hostEnd)
	must(r.t, err)
	req := &fdrpc.Request{Files: []*os.File{guestEnd, dup}}
	reply, err := r.host.start(r.t.Context(), body, req)
	must(r.t, err)
	started := time.Since(began)
	for !answersWithin(r.t, client, patience) {
		if time.Since(began) > patience {
			r.t.Fatal("the guest does not answer")
		}
		time.Sleep(time.Millisecond)
	}
	r.t.Logf("started after %v, answers after %v", started, time.Since(began))
	return client, reply
}

func pair(t *testing.T) (host, guest *os.File) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	for _, fd := range fds {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	}
	return os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
}

// dialer returns a client at the other end of a link, with a stack that only dials.
func dialer(t *testing.T, end *os.File) *http.Client {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	fd, err := unix.Dup(int(end.Fd()))
	must(t, err)
	unix.SetNonblock(fd, true)
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: link.MTU, EthernetHeader: true,
		Address: tcpip.LinkAddress(link.GatewayMAC[:]), PacketDispatchMode: fdbased.Readv, RXChecksumOffload: true, TXChecksumOffload: true,
	})
	must(t, err)
	s.CreateNIC(1, ep)
	s.AddProtocolAddress(1, tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4(link.GatewayAddress.As4()), PrefixLen: 24},
	}, stack.AddressProperties{})
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	s.AddStaticNeighbor(1, ipv4.ProtocolNumber, tcpip.AddrFrom4(link.GuestAddress.As4()), tcpip.LinkAddress(link.GuestMAC[:]))
	t.Cleanup(s.Close)
	// A Guest that is stopped, or whose sentry has ended, never closes its connections.
	return &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return gonet.DialContextTCP(ctx, s, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(link.GuestAddress.As4()), Port: 80}, ipv4.ProtocolNumber)
	}}}
}

func get(t *testing.T, c *http.Client, path string) string {
	t.Helper()
	resp, err := c.Get("http://guest" + path)
	if err != nil {
		return "error: " + err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// readStatus reads /proc/PID/status.
func readStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	fields := map[string]string{}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.TrimSpace(value)
	}
	return fields
}
