package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// good are the files of a host on which everything is in order.
func good() map[string]string {
	files := map[string]string{
		"proc/sys/kernel/osrelease":             "6.1.0-13-amd64",
		"proc/self/status":                      "Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n",
		"proc/self/mountinfo":                   "22 1 0:1 / / rw,relatime - ext4 /dev/vda rw\n30 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/cgroup.controllers":      "cpuset cpu io memory hugetlb pids",
		"proc/sys/kernel/seccomp/actions_avail": "kill_process kill_thread trap errno user_notif trace log allow",
		"proc/sys/kernel/yama/ptrace_scope":     "1",
		"proc/meminfo":                          "MemTotal: 16000000 kB\nMemAvailable:   12000000 kB\n",
		"proc/sys/kernel/pid_max":               "4194304",
		"proc/sys/kernel/threads-max":           "126000",
		"proc/sys/vm/max_map_count":             "65530",
		"proc/self/limits":                      "Limit                     Soft Limit           Hard Limit           Units\nMax processes             unlimited            unlimited            processes\nMax open files            1024                 524288               files\n",
	}
	for _, kind := range []string{"user", "pid", "net", "mnt", "ipc", "uts"} {
		files["proc/sys/user/max_"+kind+"_namespaces"] = "63000"
	}
	return files
}

const cgroup1 = "22 1 0:1 / / rw - ext4 /dev/vda rw\n" +
	"31 22 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
	"32 22 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"

// Every check says what is wrong with a host, and how to mend it.
func TestChecks(t *testing.T) {
	at := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		change func(h *Host, files map[string]string)
		check  string
		level  Level
		says   []string // in detail and fix
	}{
		"good": {func(*Host, map[string]string) {}, "system", OK, []string{"6.1.0"}},
		"old kernel": {
			func(_ *Host, f map[string]string) { f["proc/sys/kernel/osrelease"] = "4.19.0" }, "system", Problem,
			[]string{"Linux 4.19.0", "5.3 or newer"},
		},
		"oldest kernel": {func(_ *Host, f map[string]string) { f["proc/sys/kernel/osrelease"] = "5.3.0-x" }, "system", OK, nil},
		"another processor": {
			func(h *Host, _ map[string]string) { h.Arch = "riscv64" }, "system", Problem,
			[]string{"riscv64"},
		},
		"no /proc": {func(_ *Host, f map[string]string) { delete(f, "proc/sys/kernel/osrelease") }, "system", Problem, []string{"mount /proc"}},
		"not root": {func(h *Host, _ map[string]string) { h.UID = 1000 }, "rights", Problem, []string{"run it as root"}},
		"a container": {
			func(_ *Host, f map[string]string) { f["proc/self/status"] = "CapEff:\t00000000a80425fb\n" }, "rights", Warning,
			[]string{"lacks capabilities here: SYS_ADMIN;", "--cap-add"},
		},
		"a container without rights": {
			func(_ *Host, f map[string]string) { f["proc/self/status"] = "CapEff:\t0000000000000002\n" }, "rights", Problem,
			[]string{"CHOWN, SETGID, SETUID", "--cap-add"},
		},
		"cgroup v2": {func(*Host, map[string]string) {}, "cgroups", OK, []string{"version 2"}},
		"cgroup v1": {func(_ *Host, f map[string]string) {
			f["proc/self/mountinfo"] = cgroup1 + "33 22 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
		}, "cgroups", OK, []string{"version 1"}},
		"cgroup v1 without pids": {
			func(_ *Host, f map[string]string) { f["proc/self/mountinfo"] = cgroup1 }, "cgroups", Problem,
			[]string{`"pids" is not mounted`, "/sys/fs/cgroup"},
		},
		"cgroup v2 without cpu": {
			func(_ *Host, f map[string]string) { f["sys/fs/cgroup/cgroup.controllers"] = "memory pids" }, "cgroups", Problem,
			[]string{`"cpu" is not available`, "subtree_control"},
		},
		"no cgroups": {
			func(_ *Host, f map[string]string) { f["proc/self/mountinfo"] = "22 1 0:1 / / rw - ext4 /dev/vda rw\n" }, "cgroups", Problem,
			[]string{"mount cgroup2"},
		},
		"read-only cgroups": {func(_ *Host, f map[string]string) {
			f["proc/self/mountinfo"] = strings.Replace(f["proc/self/mountinfo"], "rw,nosuid", "ro,nosuid", 1)
		}, "cgroups", Problem, []string{"mounted read-only", "--cgroupns=host"}},
		"no user namespaces": {
			func(_ *Host, f map[string]string) { f["proc/sys/user/max_user_namespaces"] = "0" }, "namespaces", Problem,
			[]string{"no user namespaces", "user.max_user_namespaces"},
		},
		"few network namespaces": {
			func(_ *Host, f map[string]string) { f["proc/sys/user/max_net_namespaces"] = "100" }, "namespaces", Warning,
			[]string{"100 net namespaces"},
		},
		"a kernel without them": {func(_ *Host, f map[string]string) { delete(f, "proc/sys/user/max_user_namespaces") }, "namespaces", Problem, []string{"no user namespaces"}},
		"a chroot": {func(h *Host, _ map[string]string) {
			h.UserNS = func() error { return errors.New("operation not permitted") }
		}, "namespaces", Problem, []string{"operation not permitted", "pivot_root"}},
		"no seccomp": {
			func(_ *Host, f map[string]string) { delete(f, "proc/sys/kernel/seccomp/actions_avail") }, "platform", Problem,
			[]string{"CONFIG_SECCOMP_FILTER"},
		},
		"no ptrace": {
			func(_ *Host, f map[string]string) { f["proc/sys/kernel/yama/ptrace_scope"] = "3" }, "platform", Problem,
			[]string{"ptrace_scope is 3", "sysctl.d"},
		},
		"no yama": {func(_ *Host, f map[string]string) { delete(f, "proc/sys/kernel/yama/ptrace_scope") }, "platform", OK, nil},
		"a filter": {
			func(_ *Host, f map[string]string) { f["proc/self/status"] = "CapEff:\t000001ffffffffff\nSeccomp:\t2\n" }, "platform", Warning,
			[]string{"seccomp=unconfined"},
		},
		"little memory":    {func(_ *Host, f map[string]string) { f["proc/meminfo"] = "MemAvailable: 200000 kB\n" }, "memory", Problem, []string{"195 MiB"}},
		"some memory":      {func(_ *Host, f map[string]string) { f["proc/meminfo"] = "MemAvailable: 800000 kB\n" }, "memory", Warning, []string{"781 MiB"}},
		"few tasks":        {func(_ *Host, f map[string]string) { f["proc/sys/kernel/pid_max"] = "4096" }, "processes", Warning, []string{"kernel.pid_max is 4096", "262144"}},
		"few threads":      {func(_ *Host, f map[string]string) { f["proc/sys/kernel/threads-max"] = "8000" }, "processes", Warning, []string{"kernel.threads-max"}},
		"few processes":    {func(_ *Host, f map[string]string) { f["proc/self/limits"] = "Max processes 100 2000 processes\n" }, "processes", Warning, []string{"2000", "LimitNPROC"}},
		"no limits":        {func(*Host, map[string]string) {}, "processes", OK, nil},
		"hardly any files": {func(_ *Host, f map[string]string) { f["proc/self/limits"] = "Max open files 256 512 files\n" }, "open files", Problem, []string{"512", "LimitNOFILE"}},
		"few files":        {func(_ *Host, f map[string]string) { f["proc/self/limits"] = "Max open files 1024 4096 files\n" }, "open files", Warning, []string{"4096"}},
		"few mappings":     {func(_ *Host, f map[string]string) { f["proc/sys/vm/max_map_count"] = "1000" }, "mappings", Warning, []string{"vm.max_map_count is 1000"}},
		"noexec": {func(h *Host, f map[string]string) {
			f["proc/self/mountinfo"] += "40 22 0:40 / " + h.Data + " rw,noexec - ext4 /dev/vdb rw\n"
		}, "data folder", Problem, []string{"noexec", "remount,exec"}},
		"noexec elsewhere": {func(h *Host, f map[string]string) {
			f["proc/self/mountinfo"] += "40 22 0:40 / " + h.Data + "-other rw,noexec - ext4 /dev/vdb rw\n"
		}, "data folder", OK, nil},
		"a file": {func(h *Host, _ map[string]string) {
			h.Data = filepath.Join(h.Data, "file")
			must(t, os.WriteFile(h.Data, nil, 0o600))
		}, "data folder", Problem, []string{"is a file", "--data"}},
		"below a folder of root's alone": {func(h *Host, _ map[string]string) {
			must(t, os.Chmod(h.Data, 0o700))
			h.Data = filepath.Join(h.Data, "not", "yet")
		}, "data folder", Problem, []string{"user 61740, which may not enter", "chmod o+x"}},
		"a long path": {
			func(h *Host, _ map[string]string) { h.Data += "/" + strings.Repeat("x", longestData) }, "data folder", Problem,
			[]string{"allow at most 42", "--data"},
		},
		"a read-only disk": {func(h *Host, _ map[string]string) {
			h.Disk = func(string) (Disk, error) { return Disk{Free: 1 << 40, Total: 1 << 41, ReadOnly: true}, nil }
		}, "disk", Problem, []string{"read-only file system", "--data"}},
		"a full disk": {func(h *Host, _ map[string]string) {
			h.Disk = func(string) (Disk, error) { return Disk{Free: 1 << 30, Total: 1 << 41}, nil }
		}, "disk", Problem, []string{"1024 MiB free", "2048 MiB to start"}},
		"a nearly full disk": {func(h *Host, _ map[string]string) {
			h.Disk = func(string) (Disk, error) { return Disk{Free: 5 << 30, Total: 1 << 40}, nil }
		}, "disk", Warning, []string{"5120 MiB free"}},
		"a small disk": {func(h *Host, _ map[string]string) {
			h.Disk = func(string) (Disk, error) { return Disk{Free: 5 << 30, Total: 8 << 30}, nil }
		}, "disk", OK, nil},
		"a disk in memory": {func(h *Host, _ map[string]string) {
			h.Disk = func(string) (Disk, error) { return Disk{Free: 50 << 30, Total: 60 << 30, Memory: true}, nil }
		}, "disk", Warning, []string{"in memory"}},
		"a disk that fails": {func(h *Host, _ map[string]string) {
			h.Disk = func(string) (Disk, error) { return Disk{}, errors.New("input/output error") }
		}, "disk", Problem, []string{"input/output error"}},
		"an address in use": {func(h *Host, _ map[string]string) {
			h.Free = func(addr string) error { return errors.New(addr + " is in use by another program: stop it") }
		}, "address", Problem, []string{"localhost:8080 is in use", "stop it"}},
		"our own address": {func(h *Host, _ map[string]string) {
			h.Running = true
			h.Free = func(string) error { return errors.New("in use: x") }
		}, "address", OK, nil},
		"a CPU that hides": {func(_ *Host, f map[string]string) {
			f["proc/cpuinfo"] = "processor\t: 0\nflags\t\t: sse4_2 avx2 cpuid_fault\n"
		}, "cpu", OK, []string{"x86-64-v3;", "CLOUD_SANDBOX_CPU_FEATURES"}},
		"a CPU that does not": {func(_ *Host, f map[string]string) {
			f["proc/cpuinfo"] = "flags\t\t: sse4_2 avx2 avx512vl\n"
		}, "cpu", OK, []string{"x86-64-v4;", "cannot be hidden"}},
		"a CPU of arm64": {func(_ *Host, f map[string]string) { f["proc/cpuinfo"] = "Features\t: fp\n" }, "cpu", OK, []string{"cannot be hidden"}},
		"a wrong clock":  {func(h *Host, _ map[string]string) { h.Now = time.Unix(0, 0) }, "clock", Problem, []string{"1970-01-01", "chrony"}},
		"a free clock":   {func(h *Host, _ map[string]string) { h.Synced = false }, "clock", Warning, []string{"chrony"}},
		"sandboxes without a server": {func(h *Host, _ map[string]string) {
			must(t, os.MkdirAll(filepath.Join(h.Data, "hosts", "build", "boots", "b1"), 0o700))
		}, "leftovers", Warning, []string{"1,", "cloud-sandbox down"}},
		"sandboxes of a server": {func(h *Host, _ map[string]string) {
			h.Running = true
			must(t, os.MkdirAll(filepath.Join(h.Data, "hosts", "build", "boots", "b1"), 0o700))
		}, "leftovers", OK, nil},
		"a stale address": {func(h *Host, _ map[string]string) {
			must(t, os.MkdirAll(filepath.Join(h.Data, "run"), 0o700))
			must(t, os.WriteFile(filepath.Join(h.Data, "run", "address"), nil, 0o600))
		}, "leftovers", Warning, []string{"address file"}},
		"no template": {
			func(h *Host, _ map[string]string) { must(t, os.RemoveAll(filepath.Join(h.Data, "templates"))) }, "templates", Warning,
			[]string{"first start builds it"},
		},
		"a template of a release": {func(h *Host, _ map[string]string) {
			must(t, os.RemoveAll(filepath.Join(h.Data, "templates")))
			h.Released = filepath.Join(h.Data, "base.template")
			must(t, os.WriteFile(h.Released, nil, 0o600))
		}, "templates", OK, []string{"takes base from"}},
		"no template, no tool": {func(h *Host, _ map[string]string) {
			must(t, os.RemoveAll(filepath.Join(h.Data, "templates")))
			h.Program = func(name string) (string, error) { return "", errors.New("no " + name) }
		}, "templates", Warning, []string{"mkfs.erofs", "erofs-utils"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := Host{
				Root: t.TempDir(), Arch: "amd64", Data: "", ServerUID: 61740, Addr: "localhost:8080", Now: at, Synced: true,
				UserNS:  func() error { return nil },
				Disk:    func(string) (Disk, error) { return Disk{Free: 500 << 30, Total: 1000 << 30}, nil },
				Free:    func(string) error { return nil },
				Program: func(name string) (string, error) { return "/usr/bin/" + name, nil },
			}
			h.Data = reachable(t)
			must(t, os.MkdirAll(filepath.Join(h.Data, "templates", "refs"), 0o755))
			must(t, os.WriteFile(filepath.Join(h.Data, "templates", "refs", "base"), nil, 0o600))
			files := good()
			tt.change(&h, files)
			for path, content := range files {
				path = filepath.Join(h.Root, path)
				must(t, os.MkdirAll(filepath.Dir(path), 0o755))
				must(t, os.WriteFile(path, []byte(content), 0o600))
			}
			for _, f := range h.Look() {
				want := OK
				if f.Check == tt.check {
					want = tt.level
					for _, s := range tt.says {
						if !strings.Contains(f.Detail+"\n"+f.Fix, s) {
							t.Errorf("%s does not say %q: %q, %q", f.Check, s, f.Detail, f.Fix)
						}
					}
				} else if tt.level != OK {
					continue // one file may be wrong for several
				}
				if f.Level != want {
					t.Errorf("%s: %s, %s; want %s", f.Check, f.Level, f.Detail, want)
				}
				if (f.Fix == "") != (f.Level == OK) || f.Detail == "" {
					t.Errorf("%s is %s with the fix %q and says %q", f.Check, f.Level, f.Fix, f.Detail)
				}
			}
		})
	}
}

// A start is refused by the problems that it cannot do without, and by no others.
func TestStart(t *testing.T) {
	here := Host{
		Root: t.TempDir(), UID: 1000, Arch: "amd64", Data: reachable(t),
		Disk: func(string) (Disk, error) { return Disk{Free: 500 << 30, Total: 1000 << 30}, nil },
	}
	if err := here.Start(); err == nil || !strings.Contains(err.Error(), "mount /proc") || strings.Contains(err.Error(), "\n") {
		t.Errorf("without /proc: %v", err)
	}
	if err := here.Folder(); err != nil {
		t.Errorf("the folder alone: %v", err)
	}
	here.Disk = func(string) (Disk, error) { return Disk{ReadOnly: true}, nil }
	if err := here.Folder(); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("a read-only disk: %v", err)
	}
}

// This sees the host that it runs on: its own limits and disk.
func TestThis(t *testing.T) {
	dir := reachable(t)
	h := This(dir, "localhost:0", 61740, func(string) error { return nil })
	for _, f := range h.Look() {
		if f.Detail == "" || f.Check == "system" && f.Level != OK {
			t.Errorf("%+v", f)
		}
	}
	if d, err := h.Disk(dir); err != nil || d.Total < d.Free || d.Free <= 0 || d.ReadOnly {
		t.Errorf("the disk: %+v, %v", d, err)
	}
	if _, err := h.Disk("/does/not/exist"); err == nil {
		t.Error("a folder that is missing has a disk")
	}
}

// reachable is a folder that every user may enter.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "doctor-") // with a short name
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
