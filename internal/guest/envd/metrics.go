package envd

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/files"
)

// metrics answers with the current resource use, as the guest reports it.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	owner, _ := s.guest.Owner()
	cpus := runtime.NumCPU()
	used, err := s.cpu.percent(r.Context(), owner.SandboxID)
	if err != nil {
		return // the client has disconnected
	}
	memory := meminfo()
	total, free := memory["MemTotal"], memory["MemAvailable"]
	cache := memory["Cached"] + memory["Buffers"]
	disk := diskOf("/")
	const mib = 1 << 20
	files.Reply(w, http.StatusOK, map[string]any{
		"ts": time.Now().Unix(), "cpu_count": cpus, "cpu_used_pct": min(used, float64(100*cpus)),
		"mem_total": total, "mem_used": total - free, "mem_cache": cache,
		"mem_total_mib": total / mib, "mem_used_mib": (total - free) / mib,
		"disk_used": disk[0], "disk_total": disk[1],
	})
}

// meter measures the processor use, only on request.
type meter struct {
	mu sync.Mutex
	of string // the Sandbox of the first answer
}

// window is how long one measurement takes.
const window = 100 * time.Millisecond

// percent returns how busy the processors were in the last window, 100 for each
// processor. For the first request of a Sandbox it covers the time since the guest
// started, because clients of E2B take a zero for a missing point.
func (m *meter) percent(ctx context.Context, sandboxID string) (float64, error) {
	m.mu.Lock()
	first := m.of != sandboxID
	m.of = sandboxID
	m.mu.Unlock()
	var up unix.Timespec
	if first && unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil {
		return busy(cpuTicks(), time.Duration(up.Nano())), nil
	}
	before, began := cpuTicks(), time.Now()
	select {
	case <-time.After(window):
		return busy(cpuTicks()-before, time.Since(began)), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// busy converts ticks of work within a time to percent.
func busy(ticks int64, of time.Duration) float64 {
	const ticksPerSecond = 100
	return float64(ticks) / ticksPerSecond / of.Seconds() * 100
}

// cpuTicks returns the time that all processors have worked, in hundredths of a
// second (proc(5), /proc/stat: all columns but idle and iowait).
func cpuTicks() int64 {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var sum int64
	for i, f := range strings.Fields(line) {
		if n, err := strconv.ParseInt(f, 10, 64); err == nil && i != 4 && i != 5 {
			sum += n
		}
	}
	return sum
}

// meminfo returns /proc/meminfo in bytes.
func meminfo() map[string]int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	out := map[string]int64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			out[strings.TrimSuffix(fields[0], ":")] = n << 10
		}
	}
	return out
}

// diskOf returns used and total bytes of a file system.
func diskOf(path string) [2]uint64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return [2]uint64{}
	}
	size := uint64(st.Bsize)
	return [2]uint64{(st.Blocks - st.Bfree) * size, st.Blocks * size}
}
