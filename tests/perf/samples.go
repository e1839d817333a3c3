package perf

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Roles of processes, as charts name them.
const (
	roleClient   = "client"
	roleServer   = "server"
	roleLauncher = "launcher"
	roleHost     = "sentry host"
	roleSentry   = "sentries (gVisor)"
	roleInside   = "inside the sandboxes"
	roleLink     = "link shard"
	roleKernel   = "kernel threads"
	roleOther    = "other processes"
)

// roles maps process IDs to roles.
type roles map[int]string

// look finds the processes of the server of a data folder, and their roles.
func (r roles) look(data string) {
	entries, _ := os.ReadDir("/proc")
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parents[pid], _ = strconv.Atoi(fields[1]) // the kernel's number
		if r[pid] != "" && r[pid] != roleOther {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		r[pid] = roleOf(pid, parents[pid], strings.ReplaceAll(string(line), "\x00", " "), data)
	}
	// Code inside runs in processes that the sentry starts.
	for pid := range parents {
		if r[pid] != roleOther {
			continue
		}
		for at := parents[pid]; at > 1; at = parents[at] {
			if r[at] == roleSentry {
				r[pid] = roleInside
				break
			}
		}
	}
}

func roleOf(pid, parent int, line, data string) string {
	const kthreadd = 2
	switch {
	case pid == os.Getpid():
		return roleClient
	case pid == kthreadd || parent == kthreadd:
		return roleKernel
	case !strings.Contains(line, data):
		return roleOther
	case strings.HasPrefix(line, "runsc-sandbox "):
		return roleSentry
	case strings.Contains(line, "/gvisor_sentry host "):
		return roleHost
	case strings.Contains(line, "/gvisor_sentry "):
		return roleSentry
	case strings.Contains(line, "/link "):
		return roleLink
	case strings.HasPrefix(line, data) && strings.Contains(line, " serve "):
		return roleServer // a copy that its user may run
	case strings.Contains(line, " serve "):
		return roleLauncher
	}
	return roleOther
}

// of returns the role of a process. If it ended before look saw it, its name and its
// stack decide.
func (r roles) of(pid int, comm string, stack []string) string {
	if role := r[pid]; role != "" && role != roleOther {
		return role
	}
	if r[pid] == "" {
		switch {
		case strings.HasPrefix(comm, "kworker"), strings.HasPrefix(comm, "ksoftirqd"), strings.HasPrefix(comm, "migration"), strings.HasPrefix(comm, "rcu_"):
			return roleKernel
		case comm == "exe" || comm == "gvisor_sentry" || strings.HasPrefix(comm, "runsc"):
			if slices.Contains(stack, "stub") {
				return roleInside
			}
			return roleSentry
		}
	}
	return roleOther
}

// sample is one sample of `perf script`.
type sample struct {
	comm     string
	pid, tid int
	cpu      int
	at       int64   // nanoseconds of the monotonic clock
	stack    []frame // the innermost first
}

type frame struct {
	address uint64
	symbol  string // empty: unknown
	file    string
}

var (
	header = regexp.MustCompile(`^(.+?)\s+(-?\d+)/(-?\d+)\s+\[(\d+)\]\s+(\d+)\.(\d{9}):`)
	called = regexp.MustCompile(`^\s+([0-9a-f]+) (.*?) \((.*)\)$`)
)

// samples calls each for every sample of a file of perf.
func samples(ctx context.Context, file string, each func(sample), fields string) error {
	script := exec.CommandContext(ctx, "perf", "script", "--ns", "-i", file, "-F", fields)
	script.WaitDelay = waitDelay
	out, err := script.StdoutPipe()
	if err != nil {
		return err
	}
	var said bytes.Buffer
	script.Stderr = &said
	if err := script.Start(); err != nil {
		return err
	}
	parseErr := parseSamples(out, each)
	if err := script.Wait(); err != nil {
		return fmt.Errorf("perf script: %w: %s", err, said.String())
	}
	return parseErr
}

// parseSamples parses the output of `perf script`.
func parseSamples(r io.Reader, each func(sample)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var s sample
	begun := false
	flush := func() {
		if begun {
			each(s)
		}
		begun = false
	}
	for lines.Scan() {
		line := lines.Text()
		if m := called.FindStringSubmatch(line); m != nil && begun {
			f := frame{file: m[3]}
			f.address, _ = strconv.ParseUint(m[1], 16, 64) // hexadecimal digits
			if m[2] != "[unknown]" {
				f.symbol = m[2]
			}
			s.stack = append(s.stack, f)
		} else if m := header.FindStringSubmatch(line); m != nil {
			flush()
			number := func(i int) int { n, _ := strconv.Atoi(m[i]); return n } // digits
			s = sample{comm: strings.TrimSpace(m[1]), pid: number(2), tid: number(3), cpu: number(4), at: int64(number(5))*1e9 + int64(number(6))}
			begun = true
		}
	}
	flush()
	return lines.Err()
}

// stacksOf counts the stacks of samples within windows, the outermost call first,
// under the role of the process.
func stacksOf(ctx context.Context, file string, windows []window, known roles, names *symbols) (map[string]int, error) {
	counts := map[string]int{}
	err := samples(ctx, file, func(s sample) {
		if s.tid == 0 || !slices.ContainsFunc(windows, func(w window) bool { return w.began <= s.at && s.at <= w.ended }) {
			return
		}
		calls := names.resolve(s.stack)
		role := known.of(s.pid, s.comm, calls)
		if role == roleOther {
			calls = []string{s.comm}
		}
		slices.Reverse(calls)
		counts[strings.Join(append([]string{role}, calls...), ";")]++
	}, "comm,pid,tid,cpu,time,ip,sym,dso")
	if err == nil && len(counts) == 0 {
		err = fmt.Errorf("%s has no samples of the rounds", file)
	}
	return counts, err
}

// fold writes stacks with their counts, one a line, after a line with a title.
func fold(title string, stacks map[string]int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", title)
	for _, stack := range slices.Sorted(maps.Keys(stacks)) {
		fmt.Fprintf(&b, "%s %d\n", stack, stacks[stack])
	}
	return b.Bytes()
}

// timeline shows which processes ran when on which processor core during one round.
type timeline struct {
	Title string  `json:"title"`
	MS    float64 `json:"ms"`
	Cores int     `json:"cores"`
	Lanes []lane  `json:"lanes"`
}

// lane is the activity of the processes of one role.
type lane struct {
	Name string  `json:"name"`
	CPU  float64 `json:"cpu_ms"`
	// Slices are the times when one of them ran: from, to in microseconds since the round
	// began, and the core.
	Slices [][3]float64 `json:"slices"`
}

// laneOrder orders lanes from the client inwards.
var laneOrder = []string{roleClient, roleLauncher, roleServer, roleLink, roleHost, roleSentry, roleInside, roleKernel, roleOther}

// timelineOf reads the context switches of a round.
func timelineOf(ctx context.Context, file string, w window, known roles) (*timeline, error) {
	line := &timeline{MS: math.Round(float64(w.ended-w.began)/1e4) / 100}
	ran := map[string][][3]float64{}
	since := map[int]int64{} // when each core last switched
	err := samples(ctx, file, func(s sample) {
		from, ok := since[s.cpu]
		since[s.cpu] = s.at
		line.Cores = max(line.Cores, s.cpu+1)
		from, to := max(from, w.began), min(s.at, w.ended)
		if !ok || s.tid == 0 || from >= to {
			return
		}
		role := known.of(s.pid, s.comm, nil)
		micro := func(t int64) float64 { return float64(t-w.began) / 1e3 }
		ran[role] = append(ran[role], [3]float64{micro(from), micro(to), float64(s.cpu)})
	}, "comm,pid,tid,cpu,time")
	if err != nil {
		return nil, err
	}
	for _, name := range laneOrder {
		if len(ran[name]) == 0 {
			continue
		}
		l := lane{Name: name, Slices: ran[name]}
		for _, s := range l.Slices {
			l.CPU += (s[1] - s[0]) / 1e3
		}
		line.Lanes = append(line.Lanes, l)
	}
	if len(line.Lanes) == 0 {
		return nil, fmt.Errorf("%s has no context switch of the round", file)
	}
	return line, nil
}
