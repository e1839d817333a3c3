package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Role is the role of a process in a Server.
type Role string

const (
	Launcher   Role = "launcher"
	ServerRole Role = "server"
	SentryHost Role = "sentry host"
	LinkShard  Role = "link shard"
	Sentry     Role = "sentry"
	Spare      Role = "spare" // a sentry without a Boot
	Other      Role = "other" // a helper, or a process of a sentry
)

// Process is one process of a Server.
type Process struct {
	Pid, Parent int
	Role        Role
	Args        []string
}

func (p Process) String() string {
	return fmt.Sprintf("%s %d: %s", p.Role, p.Pid, tail(strings.Join(p.Args, " "), 160))
}

// Processes lists the Server's processes of a role, or all for the empty role. Processes
// that a sentry started have the role Other.
func (s *Server) Processes(role Role) []Process {
	all := map[int]Process{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			all[pid] = p
		}
	}
	var found []Process
	for pid, p := range all {
		if p.Role = s.role(p, all); p.Role != "" && (role == "" || role == p.Role) {
			all[pid] = p
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b Process) int { return a.Pid - b.Pid })
	return found
}

// readProcess reads a process; false: it has ended or is a zombie.
func readProcess(pid int) (Process, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, false
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return Process{}, false
	}
	parent, _ := strconv.Atoi(fields[1])
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return Process{Pid: pid, Parent: parent, Args: strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")}, true
}

func (s *Server) role(p Process, all map[int]Process) Role {
	line := strings.Join(p.Args, " ")
	lib := filepath.Join(s.Data, "lib") + "/"
	switch {
	case p.Args[0] == "runsc-sandbox" && strings.Contains(line, "--root="+s.Data+"/hosts/"):
		if parent, ok := all[p.Parent]; ok && parent.Args[0] == "runsc-sandbox" {
			return Other
		}
		if s.BootOf(p) == "" {
			return Spare
		}
		return Sentry
	case strings.HasPrefix(p.Args[0], lib) && strings.HasSuffix(p.Args[0], "/gvisor_sentry"):
		return SentryHost
	case strings.HasPrefix(p.Args[0], lib) && strings.HasSuffix(p.Args[0], "/link"), strings.HasPrefix(exe(p.Pid), lib) && strings.HasSuffix(exe(p.Pid), "/link"):
		return LinkShard
	case p.Args[0] == filepath.Join(s.Data, "lib", "cloud-sandbox"), p.Args[0] == filepath.Join(s.Data, "lib", "node"):
		return ServerRole
	case p.Args[0] == s.Bin && strings.Contains(line, " builder --data "+s.Data):
		return Other
	case p.Args[0] == s.Bin && strings.Contains(line, s.Data):
		return Launcher
	}
	for parent, ok := all[p.Parent]; ok && parent.Pid > 1; parent, ok = all[parent.Parent] {
		if parent.Args[0] == "runsc-sandbox" && strings.Contains(strings.Join(parent.Args, " "), "--root="+s.Data+"/hosts/") {
			return Other
		}
	}
	return ""
}

func exe(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return path
}

// One waits until a role has exactly one process, and returns it. A child that was just
// forked, before its exec, can look like a second one.
func (s *Server) One(t testing.TB, role Role) Process {
	t.Helper()
	var found []Process
	Within(t, Patience, fmt.Sprintf("one process of role %s", role), func() bool {
		found = s.Processes(role)
		return len(found) == 1
	})
	return found[0]
}

// Kill ends a process with SIGKILL and waits until it is gone. A child that was just
// forked when it was found may be gone already.
func Kill(t testing.TB, p Process) {
	t.Helper()
	if err := syscall.Kill(p.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("kill %s: %v", p, err)
	}
	Within(t, Patience, fmt.Sprintf("the end of %s", p), func() bool {
		_, alive := readProcess(p.Pid)
		return !alive
	})
}

// KillAll ends every process of the Server with SIGKILL, as a crash of the machine
// would, and waits until all are gone. The data folder stays.
func (s *Server) KillAll(t testing.TB) {
	t.Helper()
	s.killAll(t)
	<-s.done
}

func (s *Server) killAll(t testing.TB) {
	t.Helper()
	Within(t, Patience, "the end of everything", func() bool {
		all := s.Processes("") // new ones too: the launcher may have started some just before
		for _, p := range all {
			_ = syscall.Kill(p.Pid, syscall.SIGKILL)
		}
		return len(all) == 0
	})
}

// SentryOf finds the sentry of a Sandbox.
func (s *Server) SentryOf(t testing.TB, sandboxID string) Process {
	t.Helper()
	for _, node := range append(s.nodes, s) {
		if p, ok := node.Runs(sandboxID); ok {
			return p
		}
	}
	t.Fatalf("no sentry runs %s", sandboxID)
	return Process{}
}

// Runs returns the sentry of a Sandbox that runs here.
func (s *Server) Runs(sandboxID string) (Process, bool) {
	entries, _ := filepath.Glob(filepath.Join(s.Data, "server", "node", "boots", "*.json"))
	for _, path := range entries {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var e struct {
			SandboxID string `json:"sandbox_id"`
		}
		if json.Unmarshal(raw, &e) != nil || e.SandboxID != sandboxID {
			continue
		}
		bootID := strings.TrimSuffix(filepath.Base(path), ".json")
		for _, p := range s.Processes(Sentry) {
			if s.BootOf(p) == bootID {
				return p, true
			}
		}
	}
	return Process{}, false
}

// BootOf returns the ID of the Boot in a sentry; empty: none.
func (s *Server) BootOf(p Process) string {
	records, _ := filepath.Glob(filepath.Join(s.Data, "hosts", "*", "boots", p.Args[len(p.Args)-1], "boot.json"))
	for _, path := range records {
		var r struct {
			ID string `json:"id"`
		}
		raw, err := os.ReadFile(path)
		if err == nil && json.Unmarshal(raw, &r) == nil {
			return r.ID
		}
	}
	return ""
}

// Status returns fields of /proc/PID/status, unparsed.
func Status(t testing.TB, pid int) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			fields[k] = strings.TrimSpace(v)
		}
	}
	return fields
}

// PoolIdle waits until the Pool is full and no Boot is starting.
func (s *Server) PoolIdle(t testing.TB) {
	t.Helper()
	Within(t, 2*time.Minute, "a full pool", func() bool {
		return s.Metric("cloud_sandbox_pool_idle") == float64(s.opts.Pool) && s.Metric("cloud_sandbox_pool_starting") == 0
	})
}

// Metric is the sum of a metric over its labels, or over those that have all of labels, such
// as `code="ok"`. It is -1 when there is none.
func (s *Server) Metric(name string, labels ...string) float64 {
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(s.URL + "/metrics")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return -1
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(raw)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		if slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(rest, label) }) {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64); err == nil {
			sum, found = sum+v, true
		}
	}
	if !found {
		return -1
	}
	return sum
}

// Holdings are the numbers of host resources that a Server holds, by name.
type Holdings map[string]int

// Holdings counts the resources that the Server holds now.
func (s *Server) Holdings() Holdings {
	h := Holdings{"goroutines": int(s.Metric("go_goroutines"))}
	for _, p := range s.Processes("") {
		h["processes, "+string(p.Role)]++
		if p.Role != Sentry && p.Role != Spare && p.Role != Other {
			fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid))
			h["descriptors, "+string(p.Role)] += len(fds)
			h["children unreaped, "+string(p.Role)] += zombies(p.Pid)
		}
		if p.Role == SentryHost {
			h["cgroups"] = s.groups(p)
			h["mounts in the sentry host"] = mounts(p.Pid, s.Data)
		}
	}
	h["mounts"] = mounts(os.Getpid(), s.Data)
	for _, glob := range []string{"hosts/*/boots/*", "hosts/*/sentries/*", "hosts/*/empty/*", "upper/*", "server/node/boots/*", "run/*"} {
		found, _ := filepath.Glob(filepath.Join(s.Data, glob))
		h["files "+glob] = len(found)
	}
	return h
}

// Beyond lists the resources that grew since before. It allows slack more descriptors,
// goroutines and helper processes of sentries, whose number depends on the programs that
// ran in a sentry.
func (h Holdings) Beyond(before Holdings, slack int) []string {
	var more []string
	for _, k := range slices.Sorted(maps.Keys(h)) {
		allowed := before[k]
		if strings.HasPrefix(k, "descriptors") || k == "goroutines" || k == "processes, "+string(Other) {
			allowed += slack
		}
		if h[k] > allowed {
			more = append(more, fmt.Sprintf("%s: %d, before %d", k, h[k], before[k]))
		}
	}
	return more
}

// groups counts the control groups of a sentry host in all hierarchies.
func (s *Server) groups(host Process) int {
	i := slices.Index(host.Args, "--cgroup")
	if i < 0 || i+1 >= len(host.Args) {
		return -1
	}
	found := 0
	for _, glob := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, _ := filepath.Glob(filepath.Join(glob, host.Args[i+1], "*"))
		for _, dir := range dirs {
			if st, err := os.Stat(dir); err == nil && st.IsDir() {
				found++
			}
		}
	}
	return found
}

// Groups lists the parent control groups of a sentry host that still exist.
func Groups(host Process) []string {
	i := slices.Index(host.Args, "--cgroup")
	if i < 0 || i+1 >= len(host.Args) {
		return []string{"the sentry host names no parent"}
	}
	direct, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", host.Args[i+1]))
	nested, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", host.Args[i+1]))
	return append(direct, nested...)
}

func mounts(pid int, below string) int {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	return strings.Count(string(raw), " "+below)
}

func zombies(parent int) int {
	n := 0
	entries, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range entries {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		if len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(parent) {
			n++
		}
	}
	return n
}
