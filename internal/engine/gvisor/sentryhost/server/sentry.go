package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/urpc"
	runscboot "gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/cgroup"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/sandbox"
	"gvisor.dev/gvisor/runsc/specutils"

	cloudsandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

// guestMount is where the Guest's image is mounted inside, read-only.
const guestMount = "/.cloud-sandbox"

// sentryConfig is the configuration of every sentry: no access to the host's
// files (EROFS images and an upper file come as open descriptors), no host
// sockets, no raw sockets, and a user without capabilities.
func sentryConfig(cfg Config) (*config.Config, error) {
	fs := flag.NewFlagSet("sentry", flag.ContinueOnError)
	config.RegisterFlags(fs)
	if err := fs.Parse([]string{
		"--root=" + filepath.Join(cfg.Dir, "sentries"),
		"--platform=systrap",
		"--network=sandbox",
		"--directfs=false",
		"--host-uds=none",
		"--net-raw=false",
		"--allow-suid=true", // sudo inside needs it
		"--ignore-cgroups=true",
		"--host-settings=ignore",
		"--restore-spec-validation=ignore", // the relevant parts are compared before
		"--tx-checksum-offload=true",
		"--rx-checksum-offload=true",
	}); err != nil {
		return nil, fmt.Errorf("configure sentries: %w", err)
	}
	conf, err := config.NewFromFlags(fs)
	if err != nil {
		return nil, fmt.Errorf("configure sentries: %w", err)
	}
	// runsc looks beside itself for the binary that becomes the sentry.
	specutils.ExePath = filepath.Join(cfg.SidecarDir, "gvisor_sentry")
	if err := os.Setenv("GVISOR_SIDECAR_BINARIES_DIR", cfg.SidecarDir); err != nil {
		return nil, err
	}
	return conf, nil
}

// capabilities of root inside. NET_ADMIN and NET_RAW are never given. SYS_ADMIN,
// SYS_PTRACE and SYS_RESOURCE are for the Guest alone: with them it sets the hostname,
// gives a waiting bash its command, and is not bound by limits. It takes them out of the
// bounding set before anything else runs.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID",
	"CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_NICE",
	"CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// spec describes the Guest's process and the mounts. Root is an empty folder:
// the root filesystem comes as a descriptor.
func (h *Host) spec(shape cloudsandbox.Shape) *specs.Spec {
	const maxFiles = 1 << 20
	return &specs.Spec{
		Version:  "1.0.0",
		Hostname: guest.Hostname,
		Root:     &specs.Root{Path: filepath.Join(h.cfg.Dir, "empty")},
		Process: &specs.Process{
			Args: []string{guestMount + "/guest"},
			Cwd:  "/",
			Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: 65536, Hard: maxFiles},
				{Type: "RLIMIT_CORE"},
			},
		},
		Mounts: []specs.Mount{
			{Destination: guestMount, Type: "erofs", Source: h.cfg.GuestImage, Options: []string{"ro"}},
			// Without a size a tmpfs may grow to half of the host's memory.
			{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"mode=1777", "size=" + strconv.FormatInt(shape.MemoryBytes/2, 10)}},
		},
		Linux: &specs.Linux{},
	}
}

// visible reports to the sentry the limits that the guest sees. gVisor would also manage
// the group through it; package cgroup does that here.
type visible struct{ shape cloudsandbox.Shape }

func (visible) Install(*specs.LinuxResources) error { return nil }
func (visible) Update(*specs.LinuxResources) error  { return nil }
func (visible) Uninstall() error                    { return nil }
func (visible) Join() (func(), error)               { return func() {}, nil }
func (visible) CloneIntoCgroup() (*os.File, error)  { return nil, nil }
func (visible) CPUQuota() (int64, error)            { return -1, nil }
func (visible) CPUPeriod() (int64, error)           { return -1, nil }
func (visible) CPUUsage() (uint64, error)           { return 0, nil }
func (visible) MakePath(string) string              { return "" }
func (v visible) NumCPU() (int, error)              { return min(v.shape.VisibleCPUs(), runtime.NumCPU()), nil }
func (v visible) MemoryLimit() (uint64, error)      { return uint64(v.shape.MemoryBytes), nil }

var _ cgroup.Cgroup = visible{}

// plan is the configuration of a sentry before it has a Boot, beside its Shape.
type plan struct {
	hostname string
	build    string // of the Guest
	layer    string // saved state whose writable layer it begins with; empty: none
	// cpu are the features that its processes see, unless memory is restored; empty: all.
	cpu cloudsandbox.CPUFeatures
}

// planOf is the plan of a sentry for a Boot, which may start from a saved state.
func (h *Host) planOf(b *boot, from *origin) plan {
	p := plan{hostname: guest.Hostname, build: from.guestBuild(h), cpu: b.record.CPU}
	if from.memory() {
		p.hostname = guest.RestoredHostname(from.SavedAt)
	}
	if from.layer() {
		p.layer = from.Name
	}
	return p
}

// newSentry creates the sentry's process and moves it into the group; it runs no guest
// code yet. It closes image.
func (h *Host) newSentry(b *boot, p plan, image *os.File) error {
	dir, err := b.group.Handle() // the folder it is born in on v2; nil on v1
	if err != nil {
		image.Close()
		return fmt.Errorf("open the cgroup: %w", err)
	}
	if dir != nil {
		defer dir.Close()
	}
	joined := func() {}
	if dir == nil {
		joined = b.joinEarly()
	}
	s, err := h.createSentry(b, p, image, dir)
	joined()
	if err != nil {
		return err
	}
	b.record.Pid = s.Getpid()
	b.record.Socket = s.GetControlSocketPath()
	if err := h.watchSentry(b); err != nil {
		return err
	}
	if dir == nil {
		return b.joinLate()
	}
	return nil
}

// joinEarly moves the sentry of b, which is about to be created, into its group while it
// starts: v1 cannot create it there, and takes milliseconds to move a process. wait ends
// that and returns when it is over.
func (b *boot) joinEarly() (wait func()) {
	born := newBirths()
	end, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			if pid := born.named(b.record.name()); pid > 0 {
				_ = b.group.Add(pid) // joinLate retries a failure
				return
			}
		}
	}()
	return func() { close(end); <-over }
}

// joinLate moves the remaining processes of a sentry into its group. The guest does not
// run yet, but the process that all later ones are forked from does.
func (b *boot) joinLate() error {
	outside, err := b.group.Outside(withDescendants(b.record.Pid))
	if err != nil {
		return err
	}
	return b.group.Add(outside...)
}

func (h *Host) createSentry(b *boot, p plan, image, cgroupDir *os.File) (*sandbox.Sandbox, error) {
	name, shape := b.record.name(), b.record.Shape
	bundle := h.bootDir(name)
	spec := h.spec(shape)
	spec.Hostname = p.hostname
	if shown := annotationOf(p.cpu); p.cpu != "" && shown != annotationOf(h.cpu) {
		spec.Annotations = map[string]string{specutils.AnnotationCPUFeatures: shown}
	}
	guestImage, err := openBundle(bundle, spec, h.guestImageOf(p.build))
	if err != nil {
		image.Close()
		return nil, err
	}
	upper, err := h.newUpper(name)
	if err == nil {
		b.upper, err = duplicate(upper) // sandbox.New closes its files
	}
	conf := *h.conf
	if err == nil {
		b.stderr, conf.PanicLog, err = newStderr()
	}
	if err != nil {
		closeAll([]*os.File{image, guestImage, upper})
		return nil, err
	}
	args := &sandbox.Args{
		ID: name, Spec: spec, BundleDir: bundle, MountHints: &runscboot.PodMountHints{},
		Cgroup:              visible{shape},
		CloneIntoCgroupFD:   cgroupDir,
		IOFiles:             []*os.File{image, guestImage},
		GoferFilestoreFiles: []*os.File{upper},
		GoferMountConfs: specutils.GoferMountConfFlags{
			{Lower: specutils.Erofs, Upper: specutils.AnonOverlay, Size: strconv.FormatInt(shape.DiskBytes, 10)},
			{Lower: specutils.Erofs, Upper: specutils.NoOverlay},
		},
	}
	if p.layer != "" {
		args.FSRestoreImagePath = h.savedDir(p.layer)
	}
	s, err := sandbox.New(&conf, args)
	if err != nil {
		return nil, fmt.Errorf("create the sentry: %w", err)
	}
	return s, nil
}

// openBundle writes the spec of a sentry and opens the image of its Guest.
func openBundle(bundle string, spec *specs.Spec, guestImage string) (*os.File, error) {
	if err := writeSpec(bundle, spec); err != nil {
		return nil, err
	}
	f, err := os.Open(guestImage)
	if err != nil {
		return nil, fmt.Errorf("open the guest image: %w", err)
	}
	return f, nil
}

// guestImageOf returns the path of a build's Guest image.
func (h *Host) guestImageOf(build string) string {
	if build == h.cfg.Build {
		return h.cfg.GuestImage
	}
	return filepath.Join(h.buildDir(build), filepath.Base(h.cfg.GuestImage))
}

func writeSpec(bundle string, spec *specs.Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o600)
}

// newUpper makes the file behind the writable layer. The open file has no name, so it is
// gone when its last holder ends.
func (h *Host) newUpper(id string) (*os.File, error) {
	path := filepath.Join(h.cfg.UpperDir, id)
	f, err := os.OpenFile(h.cfg.UpperDir, os.O_RDWR|unix.O_TMPFILE, 0o600) // can be named later
	if errors.Is(err, unix.EOPNOTSUPP) {
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			err = os.Remove(path)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make the upper layer: %w", err)
	}
	pgalloc.IMAWorkAroundForMemFile(f.Fd())
	return f, nil
}

// startRoot gives the sentry its link and starts the Guest.
func startRoot(socket, name string, guestEnd *os.File) error {
	rpc, err := client.ConnectTo(socket)
	if err != nil {
		return fmt.Errorf("reach the sentry: %w", err)
	}
	defer rpc.Close()
	if err := rpc.Call(runscboot.ContMgrSetNetworkArgs, networkArgs(guestEnd), nil); err != nil {
		return fmt.Errorf("give the sentry its link: %w", err)
	}
	if err := rpc.Call(runscboot.ContMgrRootContainerStart, &name, nil); err != nil {
		return fmt.Errorf("start the guest: %w", err)
	}
	return nil
}

// linkProcessors is how many goroutines of a sentry handle packets from its link.
const linkProcessors = 2

// networkArgs is the guest's end of the link: eth0 with a fixed address, a fixed
// neighbour (so that nothing waits for ARP) and one route.
func networkArgs(guestEnd *os.File) *runscboot.CreateLinksAndRoutesArgs {
	gateway := net.IP(link.GatewayAddress.AsSlice())
	address := net.IP(link.GuestAddress.AsSlice())
	subnet := net.IPNet{IP: address.Mask(net.CIDRMask(link.PrefixBits, 32)), Mask: net.CIDRMask(link.PrefixBits, 32)}
	return &runscboot.CreateLinksAndRoutesArgs{
		FilePayload:   urpc.FilePayload{Files: []*os.File{guestEnd}},
		LoopbackLinks: []runscboot.LoopbackLink{runscboot.DefaultLoopbackLink},
		FDBasedLinks: []runscboot.FDBasedLink{{
			Name: "eth0", MTU: link.MTU, NumChannels: 1, IsPacket: []bool{false}, PreConfigured: true,
			QDisc: config.QDiscNone,
			// The default is the sentry's GOMAXPROCS, which exceeds a hundred while it
			// loads a saved state.
			ProcessorsPerChannel: linkProcessors,
			TXChecksumOffload:    true, RXChecksumOffload: true,
			LinkAddress: link.GuestMAC[:],
			Addresses:   []runscboot.IPWithPrefix{{Address: address, PrefixLen: link.PrefixBits}},
			Routes:      []runscboot.Route{{Destination: subnet}},
			Neighbors:   []runscboot.Neighbor{{IP: gateway, HardwareAddr: link.GatewayMAC[:]}},
		}},
		Defaultv4Gateway: runscboot.DefaultRoute{
			Route: runscboot.Route{Destination: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Gateway: gateway},
			Name:  "eth0",
		},
	}
}
