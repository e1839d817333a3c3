package perf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
)

// profiled is an operation to draw a flame chart and a timeline of.
type profiled struct {
	name, title string
	rounds      int
	rate        int // samples a second of each core
	// begin prepares all rounds; nil: no preparation.
	begin func(context.Context, *client.Client) (id string, err error)
	// before prepares a round; nil: no preparation. once is the profiled operation; it
	// returns the Sandboxes that it made, which are then ended.
	before func(ctx context.Context, c *client.Client, id string) error
	once   func(ctx context.Context, c *client.Client, id string) ([]string, error)
}

func idle(ctx context.Context, c *client.Client) (string, error) {
	sb, err := c.Create(ctx, v1.CreateRequest{TimeoutSeconds: v1.SecondsOf(time.Hour)})
	if err != nil {
		return "", err
	}
	return sb.ID, execute(ctx, c, sb.ID, "x = 42")
}

func execute(ctx context.Context, c *client.Client, id, code string) error {
	r, err := c.Execute(ctx, client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Target: v1.Target{SandboxID: id}, Language: "python", Code: code}})
	if err == nil && r.Status != "ok" {
		err = fmt.Errorf("%q ended with %s: %s", code, r.Status, r.Stderr)
	}
	return err
}

// operations are the operations to profile.
var operations = []profiled{
	{
		name: "acquire", title: bench.Acquire, rounds: 60, rate: 4000,
		once: func(ctx context.Context, c *client.Client, _ string) ([]string, error) {
			sb, err := c.Acquire(ctx)
			return []string{sb.ID}, err
		},
	},
	{
		name: "execute", title: bench.RunPython, rounds: 300, rate: 4000, begin: idle,
		once: func(ctx context.Context, c *client.Client, id string) ([]string, error) {
			return nil, execute(ctx, c, id, "1+1")
		},
	},
	{
		name: "resume", title: bench.Resume(bench.IdleSession), rounds: 12, rate: 2000, begin: idle,
		before: func(ctx context.Context, c *client.Client, id string) error {
			_, err := c.Pause(ctx, id, false)
			return err
		},
		once: func(ctx context.Context, c *client.Client, id string) ([]string, error) {
			return nil, execute(ctx, c, id, "assert x == 42")
		},
	},
	{
		name: "fork", title: bench.Fork(10), rounds: 2, rate: 1000, begin: idle,
		once: func(ctx context.Context, c *client.Client, id string) ([]string, error) {
			forks, err := c.Fork(ctx, id, v1.ForkRequest{Count: new(10)})
			ids := make([]string, len(forks))
			for i, f := range forks {
				ids[i] = f.ID
			}
			return ids, err
		},
	},
}

// measureProfiles records, with Linux's perf, all processes during rounds of some
// operations. It keeps the results for tools/plots: NAME.folded for a flame chart and
// NAME.timeline.json of the round with the median time.
func measureProfiles(ctx context.Context, o options, _ rounds, _ *bench.Report, _ *rivals) error {
	if o.out == "" {
		return errors.New("profiles need a folder: --out")
	}
	const pool = 5
	server, err := startServer(ctx, o, pool, 10*pool)
	if err != nil {
		return err
	}
	defer server.stop()
	recorder := &recorder{o: o, server: server, pool: pool}
	var failed error
	for _, op := range operations {
		if err := recorder.profile(ctx, op); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", op.name, err))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return failed
}

// recorder profiles operations of one server.
type recorder struct {
	o      options
	server *server
	pool   int
}

// window is the time of a round, in nanoseconds of the monotonic clock.
type window struct{ began, ended int64 }

func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // never fails
	return t.Nano()
}

func (r *recorder) profile(ctx context.Context, op profiled) (err error) {
	id := ""
	if op.begin != nil {
		if id, err = op.begin(ctx, r.server.client); err != nil {
			return err
		}
		defer func() {
			_, endErr := r.server.client.End(context.WithoutCancel(ctx), id)
			err = errors.Join(err, endErr)
		}()
	}
	// Sampling slows down the sampled processes, so the timeline has rounds of its own.
	data := filepath.Join(r.o.work, op.name+".perf")
	windows, roles, err := r.record(ctx, op, id, min(op.rounds, 15), data, "-e", "sched:sched_switch")
	if err != nil {
		return err
	}
	slices.SortFunc(windows, func(a, b window) int { return int(a.ended - a.began - (b.ended - b.began)) })
	median := windows[(len(windows)-1)/2]
	line, err := timelineOf(ctx, data, median, roles)
	if err != nil {
		return err
	}
	line.Title = op.title
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if err := durable.WriteLoose(filepath.Join(r.o.out, op.name+".timeline.json"), text, 0o644); err != nil {
		return err
	}
	windows, roles, err = r.record(ctx, op, id, op.rounds, data, "-e", "cpu-clock", "-F", strconv.Itoa(op.rate), "-g")
	if err != nil {
		return err
	}
	stacks, err := stacksOf(ctx, data, windows, roles, newSymbols())
	if err != nil {
		return err
	}
	return durable.WriteLoose(filepath.Join(r.o.out, op.name+".folded"), fold(op.title, stacks), 0o644)
}

// record runs perf record on all processes during rounds of op, and returns the time
// window of each round, and the role of each process.
func (r *recorder) record(ctx context.Context, op profiled, id string, rounds int, file string, events ...string) (_ []window, _ roles, err error) {
	_ = os.Remove(file)
	perf := exec.CommandContext(ctx, "perf", append([]string{"record", "--quiet", "-a", "-k", "CLOCK_MONOTONIC", "-m", "4M", "-o", file}, events...)...)
	perf.WaitDelay = waitDelay
	var said strings.Builder
	perf.Stdout, perf.Stderr = &said, &said
	if err := perf.Start(); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- perf.Wait() }()
	if err := begun(ctx, file, ended); err != nil {
		return nil, nil, fmt.Errorf("perf record: %w: %s", err, said.String())
	}
	defer func() {
		_ = perf.Process.Signal(syscall.SIGINT)
		if waitErr := <-ended; err == nil && waitErr != nil && said.Len() > 0 {
			err = fmt.Errorf("perf record: %w: %s", waitErr, said.String())
		}
	}()
	var windows []window
	known := roles{}
	meter := &bench.Meter{Client: r.server.client, Report: bench.NewReport(nil), PoolSize: r.pool}
	err = meter.Rounds(ctx, op.name, "", rounds, func(ctx context.Context) (time.Duration, error) {
		if op.before != nil {
			if err := op.before(ctx, r.server.client, id); err != nil {
				return 0, err
			}
		}
		known.look(r.server.data)
		w := window{began: now()}
		made, err := op.once(ctx, r.server.client, id)
		w.ended = now()
		known.look(r.server.data)
		windows = append(windows, w)
		for _, id := range made {
			if id != "" {
				_, endErr := r.server.client.End(context.WithoutCancel(ctx), id)
				err = errors.Join(err, endErr)
			}
		}
		return time.Duration(w.ended - w.began), err
	})
	if err == nil && len(windows) < 2 {
		err = errors.New("no round succeeded")
	}
	if err != nil {
		return nil, nil, err
	}
	return windows[1:], known, nil // the first does not count
}

// begun waits until perf writes to a file.
func begun(ctx context.Context, file string, ended chan error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 500 {
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			return nil
		}
		select {
		case err := <-ended:
			return errors.Join(errors.New("it ended"), err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return errors.New("it does not begin")
}
