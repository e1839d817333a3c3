package doctor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/cgroup"
)

// Bounds of the checks.
const (
	oldestMajor, oldestMinor = 5, 3 // of Linux: pidfd_open

	leastMemory  = 256 << 20 // bytes available: below it no Sandbox is admitted
	scarceMemory = 1 << 30

	fewTasks      = 32768 // of the host: an idle Sandbox has some 19
	fewProcesses  = 4096  // of one user
	leastFiles    = 1024
	fewFiles      = 65536
	fewMappings   = 65530 // of one process
	fewNamespaces = 1000  // each Sandbox has one of each kind

	leastDisk  = 2 << 30 // bytes: a Template and some Sandboxes
	scarceDisk = 10 << 30
	scarcePart = 15 // per cent of the disk

	// longestData is the longest path of a data folder, in bytes: the socket of a sentry
	// lies 65 bytes below it, and the name of a socket has 107 at most.
	longestData = 42
)

// read returns a file of the host without the white space around it.
func (h Host) read(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(h.Root, path))
	return strings.TrimSpace(string(b)), err
}

func (h Host) number(path string) (int64, error) {
	text, err := h.read(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// field returns the value of NAME in a file of lines "NAME: value".
func (h Host) field(path, name string) (string, bool) {
	text, err := h.read(path)
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(text) {
		if rest, is := strings.CutPrefix(line, name); is {
			return strings.TrimSpace(strings.TrimPrefix(rest, ":")), true
		}
	}
	return "", false
}

func (h Host) system() Finding {
	if h.Arch != "amd64" && h.Arch != "arm64" {
		return problem("no sandbox can run on "+h.Arch, "use a machine with x86-64 or arm64")
	}
	release, err := h.read("proc/sys/kernel/osrelease")
	var major, minor int
	if _, scan := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || scan != nil {
		return problem("the version of the kernel cannot be read from /proc/sys/kernel/osrelease", "mount /proc")
	}
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return problem("the kernel is Linux "+release, fmt.Sprintf("use Linux %d.%d or newer", oldestMajor, oldestMinor))
	}
	return ok("Linux %s on %s", release, h.Arch)
}

// capability is a right of root by its number.
type capability struct {
	bit  int
	name string
}

// capabilities are required for a start of the server. laterCapabilities are used
// later: to end processes of other users, and to build templates.
var (
	capabilities      = []capability{{0, "CHOWN"}, {1, "DAC_OVERRIDE"}, {6, "SETGID"}, {7, "SETUID"}}
	laterCapabilities = []capability{{3, "FOWNER"}, {5, "KILL"}, {18, "SYS_CHROOT"}, {21, "SYS_ADMIN"}}
)

// lacking returns the names of the capabilities that a mask lacks.
func lacking(mask uint64, all []capability) (names []string) {
	for _, c := range all {
		if mask&(1<<c.bit) == 0 {
			names = append(names, c.name)
		}
	}
	return names
}

func (h Host) rights() Finding {
	if h.UID != 0 {
		return problem("the server starts sandboxes in namespaces and cgroups, and only root may make those",
			"run it as root (the server itself then runs as a user without rights)")
	}
	text, _ := h.field("proc/self/status", "CapEff")
	has, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return problem("the capabilities of this process cannot be read from /proc/self/status", "mount /proc")
	}
	const add = "give them to the container or the service, as with --cap-add"
	if lacks := lacking(has, capabilities); len(lacks) > 0 {
		return problem("root lacks capabilities here: "+strings.Join(lacks, ", "), add)
	}
	if lacks := lacking(has, laterCapabilities); len(lacks) > 0 {
		return warning("root lacks capabilities here: "+strings.Join(lacks, ", ")+"; FOWNER and KILL are needed for files and processes of other users, SYS_ADMIN and SYS_CHROOT to build templates", add)
	}
	return ok("root, with the capabilities that are needed")
}

func (h Host) cgroups() Finding {
	version, err := cgroup.Check(h.Root)
	if err != nil {
		detail, fix, _ := strings.Cut(err.Error(), ": ")
		return problem(detail, fix)
	}
	return ok("version %d, with memory, cpu and pids", version)
}

func (h Host) namespaces() Finding {
	least, kind := int64(-1), ""
	for _, k := range []string{"user", "pid", "net", "mnt", "ipc", "uts"} {
		n, err := h.number("proc/sys/user/max_" + k + "_namespaces")
		if errors.Is(err, fs.ErrNotExist) {
			return problem("the kernel has no "+k+" namespaces", "use a kernel that has them")
		}
		if err == nil && (least < 0 || n < least) {
			least, kind = n, k
		}
	}
	set := fmt.Sprintf("set user.max_%s_namespaces to 65536 with sysctl", kind)
	switch {
	case least == 0:
		return problem("this host allows no "+kind+" namespaces", set)
	case least < fewNamespaces:
		return warning(fmt.Sprintf("this host allows %d %s namespaces, and each sandbox has one", least, kind), set)
	}
	if err := h.UserNS(); err != nil {
		return problem(fmt.Sprintf("no user namespace can be made here (%v)", err),
			"leave the chroot, because the kernel makes no user namespaces in one (pivot_root is no problem); in a container, allow them with --security-opt seccomp=unconfined")
	}
	return ok("user, pid, net, mnt, ipc, uts")
}

// platform checks the requirements of gVisor's systrap.
func (h Host) platform() Finding {
	if actions, err := h.read("proc/sys/kernel/seccomp/actions_avail"); err != nil || !slices.Contains(strings.Fields(actions), "trap") {
		return problem("the kernel has no seccomp filters", "use a kernel with CONFIG_SECCOMP_FILTER")
	}
	if scope, err := h.number("proc/sys/kernel/yama/ptrace_scope"); err == nil && scope > 2 {
		return problem("kernel.yama.ptrace_scope is 3: no process may trace another, and sandboxes do", "set kernel.yama.ptrace_scope to 1 in /etc/sysctl.d and restart the machine")
	}
	if mode, _ := h.field("proc/self/status", "Seccomp"); mode == "2" {
		return warning("a seccomp filter holds for this process, as in a container, and may refuse system calls that sandboxes need", "if starts fail, run it with --security-opt seccomp=unconfined")
	}
	return ok("seccomp and ptrace, for gVisor's systrap")
}

func (h Host) memory() Finding {
	text, _ := h.field("proc/meminfo", "MemAvailable")
	kib, err := strconv.ParseInt(strings.TrimSuffix(text, " kB"), 10, 64)
	if err != nil {
		return warning("the available memory cannot be read from /proc/meminfo", "mount /proc")
	}
	const fix = "end other programs here, or use a larger machine"
	switch free := kib << 10; {
	case free < leastMemory:
		return problem(fmt.Sprintf("%d MiB of memory are available, and below %d no sandbox is admitted", free>>20, leastMemory>>20), fix)
	case free < scarceMemory:
		return warning(fmt.Sprintf("%d MiB of memory are available, which is enough for a few sandboxes", free>>20), fix)
	default:
		return ok("%d MiB available", free>>20)
	}
}

func (h Host) processes() Finding {
	for _, name := range []string{"pid_max", "threads-max"} {
		if n, err := h.number("proc/sys/kernel/" + name); err == nil && n < fewTasks {
			return warning(fmt.Sprintf("kernel.%s is %d, and an idle sandbox has some 19 tasks", name, n), "set kernel."+name+" to 262144 with sysctl")
		}
	}
	if n, is := h.limit("Max processes"); is && n < fewProcesses {
		return warning(fmt.Sprintf("one user may have %d processes, and all sentries are one user's", n), "raise the hard limit with `ulimit -u unlimited`, or LimitNPROC=infinity of the service")
	}
	return ok("limits leave room")
}

// limit returns the hard limit of this process by its name in /proc; unlimited is a
// large number.
func (h Host) limit(name string) (int64, bool) {
	text, is := h.field("proc/self/limits", name)
	values := strings.Fields(text)
	if !is || len(values) < 2 {
		return 0, false
	}
	if values[1] == "unlimited" {
		return 1 << 62, true
	}
	n, err := strconv.ParseInt(values[1], 10, 64)
	return n, err == nil
}

func (h Host) openFiles() Finding {
	n, is := h.limit("Max open files")
	const fix = "raise the hard limit to 65536 with `ulimit -Hn`, or LimitNOFILE=1048576 of the service"
	switch {
	case !is:
		return warning("the limit of open files cannot be read from /proc/self/limits", "mount /proc")
	case n < leastFiles:
		return problem(fmt.Sprintf("a process may open %d files at most", n), fix)
	case n < fewFiles:
		return warning(fmt.Sprintf("a process may open %d files, which is enough for some hundred sandboxes", n), fix)
	}
	return ok("%d in a process", n)
}

func (h Host) mappings() Finding {
	n, err := h.number("proc/sys/vm/max_map_count")
	if err == nil && n < fewMappings {
		return warning(fmt.Sprintf("vm.max_map_count is %d, and programs with many mappings end in their sandboxes", n), "set vm.max_map_count to 262144 with sysctl")
	}
	return ok("%d in a process", n)
}

// existing returns the data folder, or its nearest existing parent.
func (h Host) existing() string {
	for dir := h.Data; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			return dir
		}
	}
}

const elsewhere = "choose a data folder elsewhere with --data"

func (h Host) dataFolder() Finding {
	at := h.existing()
	info, err := os.Stat(at)
	switch {
	case err != nil:
		return problem("the data folder cannot be examined: "+err.Error(), elsewhere)
	case !info.IsDir():
		return problem(at+" is a file, and the data folder must be a folder", elsewhere)
	case len(h.Data) > longestData:
		return problem(fmt.Sprintf("the path of the data folder, %s, has %d bytes, and sockets below it allow at most %d", h.Data, len(h.Data), longestData), elsewhere)
	}
	// The server's user must be able to enter every folder on the way.
	const others = 0o001
	for dir := at; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return problem("the data folder cannot be examined: "+err.Error(), elsewhere)
		}
		if info.Mode().Perm()&others == 0 {
			return problem(fmt.Sprintf("the server runs as user %d, which may not enter %s", h.ServerUID, dir), fmt.Sprintf("%s, or run `chmod o+x %s`", elsewhere, dir))
		}
	}
	if mount, options := h.mountOf(at); slices.Contains(options, "noexec") {
		return problem(fmt.Sprintf("%s is on %s, which is mounted noexec, and the server starts programs from there", h.Data, mount),
			fmt.Sprintf("%s, or run `mount -o remount,exec %s`", elsewhere, mount))
	}
	return ok("%s", h.Data)
}

// mountOf returns where the file system of a path is mounted, and its options.
func (h Host) mountOf(path string) (mount string, options []string) {
	text, err := h.read("proc/self/mountinfo")
	if err != nil {
		return "", nil
	}
	for s := bufio.NewScanner(bytes.NewReader([]byte(text))); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 6 {
			continue
		}
		at := fields[4]
		if below := path == at || at == "/" || strings.HasPrefix(path, at+"/"); below && len(at) >= len(mount) {
			mount, options = at, strings.Split(fields[5], ",")
		}
	}
	return mount, options
}

func (h Host) disk() Finding {
	at := h.existing()
	d, err := h.Disk(at)
	if err != nil {
		return problem(fmt.Sprintf("the disk of %s cannot be examined: %v", at, err), elsewhere)
	}
	part := int64(100)
	if d.Total > 0 {
		part = 100 * d.Free / d.Total
	}
	free := fmt.Sprintf("%s has %d MiB free", h.Data, d.Free>>20)
	switch {
	case d.ReadOnly:
		return problem(fmt.Sprintf("the data folder %s is on a read-only file system, and the server keeps everything there", h.Data),
			elsewhere+", or mount it for writing; after an error of the disk the kernel's log (`dmesg`) says why it is read-only")
	case d.Free < leastDisk:
		return problem(fmt.Sprintf("%s and the server needs %d MiB to start", free, leastDisk>>20), "free some space or choose another folder with --data")
	case d.Free < scarceDisk && part < scarcePart:
		return warning(fmt.Sprintf("%s, %d %% of the disk, and below %d %% and %d GiB requests are refused", free, part, scarcePart, scarceDisk>>30), "free some space or choose another folder with --data")
	case d.Memory:
		return warning(fmt.Sprintf("%s is in memory: all its files are lost when the machine ends", h.Data), elsewhere)
	}
	return ok("%s", free)
}

func (h Host) address() Finding {
	if h.Running {
		return ok("the server of this data folder listens there")
	}
	if err := h.Free(h.Addr); err != nil {
		detail, fix, _ := strings.Cut(err.Error(), ": ")
		if fix == "" {
			fix = "choose another address with --addr"
		}
		return problem(detail, fix)
	}
	return ok("%s is free", h.Addr)
}

// builtAfter is before any time at which a server can run.
var builtAfter = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// cpu reports the level of an x86-64 CPU, by its main feature, and whether a node can hide
// features from Sandboxes: see sandbox.CPULimit.
func (h Host) cpu() Finding {
	flags, known := h.field("proc/cpuinfo", "flags")
	if !known { // on arm64
		return ok("its features cannot be hidden from sandboxes")
	}
	has := strings.Fields(flags)
	level := "x86-64-v1"
	for _, l := range []struct{ name, feature string }{{"x86-64-v2", "sse4_2"}, {"x86-64-v3", "avx2"}, {"x86-64-v4", "avx512vl"}} {
		if !slices.Contains(has, l.feature) {
			break
		}
		level = l.name
	}
	if !slices.Contains(has, "cpuid_fault") {
		return ok("%s; its features cannot be hidden from sandboxes", level)
	}
	return ok("%s; CLOUD_SANDBOX_CPU_FEATURES can hide features from sandboxes", level)
}

func (h Host) clock() Finding {
	switch {
	case h.Now.Before(builtAfter):
		return problem("the clock says "+h.Now.UTC().Format(time.DateOnly)+", so that tokens and certificates are not valid", "set it, and keep it with chrony or systemd-timesyncd")
	case !h.Synced:
		return warning("no service synchronizes the clock, on which tokens and deadlines depend", "run chrony or systemd-timesyncd; on a virtual machine the host may do it")
	}
	return ok("%s", h.Now.UTC().Format(time.RFC3339))
}

func (h Host) leftovers() Finding {
	if h.Running {
		return ok("a server uses the data folder")
	}
	boots, _ := filepath.Glob(filepath.Join(h.Data, "hosts", "*", "boots", "*"))
	if len(boots) > 0 {
		return warning(fmt.Sprintf("sandboxes of a stopped server run or are recorded as running: %d, with its pool", len(boots)),
			"start the server, which adopts them, or end them with `cloud-sandbox down`")
	}
	if _, err := os.Stat(config.AddressFile(h.Data)); err == nil {
		return warning("a server was killed and its address file is left", "nothing to do: the next start replaces it")
	}
	return ok("none")
}

func (h Host) templates() Finding {
	if _, err := os.Stat(filepath.Join(h.Data, "templates", "refs", "base")); err == nil {
		return ok("base exists")
	}
	if _, err := os.Stat(h.Released); err == nil {
		return ok("the first start takes base from %s", h.Released)
	}
	for _, p := range [][2]string{{"mkfs.erofs", "erofs-utils"}, {"debootstrap", "debootstrap"}} {
		if _, err := h.Program(p[0]); err != nil {
			return warning(fmt.Sprintf("the template base does not exist, and %s, which builds it, is missing", p[0]),
				"install the package "+p[1])
		}
	}
	return warning("the template base does not exist", "nothing to do: the first start builds it, from a registry or a Debian mirror, in some minutes")
}
