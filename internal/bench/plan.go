package bench

import (
	"context"
	"errors"
	"fmt"
)

// Plan selects the measurements of a server, and their number. Zero leaves a part
// out.
type Plan struct {
	Rounds int   // of each operation that takes a Sandbox
	Calls  int   // of each operation within a Sandbox
	Bursts []int // sizes
	Live   int   // concurrent Sandboxes
	Size   int64 // of uploads and downloads, in bytes
	Saves  int   // rounds of pausing, resuming and forking
	Storm  int   // concurrent resumes
	// Volumes is the number of rounds on a large file of a Volume; each has more on small
	// files.
	Volumes int
	// Uncached adds resumes after dropping this machine's page cache, which needs root.
	Uncached bool
	// Local says that the server is on this machine, whose memory then shows the cost of
	// Sandboxes.
	Local bool
}

// Goals as parseGoal reads them, of times in milliseconds.
const (
	goalAcquire     = "3 (15)"
	goalFirst       = "20 (60)"
	goalCold        = "80 (150)"
	goalNodeWarm    = "60"
	goalNodeCold    = "150"
	goalInterpreter = "3 (15)"
	goalSpawn       = "15 (40)"
	goalOverhead    = "1 (5)"
	goalBurst100    = "350"
	goalBurst20     = "500"
	goalLiveRun     = "(100)"
	goalLiveMemory  = "<= 12"
	goalIdleCPU     = "<= 2"
	goalUpload      = ">= 200"
	goalDownload    = ">= 400"
)

// Names of operations, as a Report has them.
const (
	Acquire       = "acquire from a warm pool"
	AcquireAndRun = "acquire from a warm pool and execute `true`"
	NodeWarm      = "create until `node -v` has finished, warm"
	ColdCreate    = "cold create, until the guest answers"
	NodeCold      = "create until `node -v` has finished, cold"
	RunPython     = "run `1+1` in a warm Python interpreter"
	RunJavaScript = "run `1+1` in a warm JavaScript interpreter"
	RunBash       = "run `true` in a new bash"
	Echo          = "terminal: from a key to its echo, over a WebSocket"
	Spawn         = "spawn the program `true` and get its exit code"
	Overhead      = "API overhead (no guest call): read a session"
)

// Parts returns the parts of p, in the order of the table in the design.
func (m *Meter) Parts(p Plan) []Part {
	var all []Part
	add := func(when bool, name string, measure func(context.Context) error) {
		if when {
			all = append(all, Part{name, measure})
		}
	}
	add(p.Rounds > 0, "creates", func(ctx context.Context) error { return m.creates(ctx, p) })
	add(p.Calls > 0, "calls", func(ctx context.Context) error { return m.calls(ctx, p) })
	for _, n := range p.Bursts {
		add(true, fmt.Sprintf("burst of %d", n), func(ctx context.Context) error { return m.burst(ctx, n) })
	}
	add(p.Size > 0, "transfers", func(ctx context.Context) error { return m.Transfer(ctx, p.Size, 3) })
	add(p.Saves > 0, "pauses, resumes and forks", func(ctx context.Context) error { return m.Saved(ctx, p.Saves, p.Uncached) })
	add(p.Storm > 0, fmt.Sprintf("%d resumes at once", p.Storm), func(ctx context.Context) error { return m.storm(ctx, p.Storm) })
	add(p.Volumes > 0, "volumes", func(ctx context.Context) error { return m.Volume(ctx, p.Volumes) })
	add(p.Live > 0, fmt.Sprintf("%d live sandboxes", p.Live), func(ctx context.Context) error { return m.Live(ctx, p.Live, p.Local) })
	return all
}

// Run measures all parts of p as one. A part that fails loses no other.
func (m *Meter) Run(ctx context.Context, p Plan) error {
	var failed error
	for _, part := range m.Parts(p) {
		failed = errors.Join(failed, part.Measure(ctx))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return failed
}

func (m *Meter) creates(ctx context.Context, p Plan) error {
	if m.PoolSize == 0 {
		return errors.Join(
			m.Acquire(ctx, ColdCreate, goalCold, p.Rounds),
			m.AcquireAndRun(ctx, NodeCold, goalNodeCold, "node -v", p.Rounds))
	}
	return errors.Join(
		m.Acquire(ctx, Acquire, goalAcquire, p.Rounds),
		m.AcquireAndRun(ctx, AcquireAndRun, goalFirst, "true", p.Rounds),
		m.AcquireAndRun(ctx, NodeWarm, goalNodeWarm, "node -v", p.Rounds))
}

func (m *Meter) calls(ctx context.Context, p Plan) error {
	return errors.Join(
		m.Execute(ctx, RunPython, goalInterpreter, "python", "1+1", p.Calls),
		m.Execute(ctx, RunJavaScript, goalInterpreter, "javascript", "1+1", p.Calls),
		m.Execute(ctx, RunBash, "", "bash", "true", p.Calls),
		m.Echo(ctx, Echo, "", p.Calls),
		m.Spawn(ctx, Spawn, goalSpawn, []string{"true"}, p.Calls),
		m.Overhead(ctx, Overhead, goalOverhead, p.Calls))
}

// BurstOf names n concurrent acquires from Pools of a size; zero: no Pool.
func BurstOf(n, poolSize int) string {
	if poolSize == 0 {
		return fmt.Sprintf("burst of %d acquires at once, no pool", n)
	}
	return fmt.Sprintf("burst of %d acquires at once, pool of %d", n, poolSize)
}

func (m *Meter) burst(ctx context.Context, n int) error {
	goal := map[string]string{BurstOf(100, 100): goalBurst100, BurstOf(20, 5): goalBurst20}[BurstOf(n, m.PoolSize)]
	return m.Burst(ctx, BurstOf(n, m.PoolSize), goal, n)
}
