package perf

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// rivals measures other products' counterparts of operations, in the same run. Docker
// is started when it is first needed.
type rivals struct {
	o      options
	n      rounds
	docker *docker
	failed error // to start Docker, which is tried once
	runsc  *containers
	// known caches results, such as a burst that several operations are compared with, or
	// a restore that was measured with its checkpoint.
	known map[string]*bench.Series
	files []byte // output of bench.VolumeProgram in a container
}

func newRivals(o options, n rounds) *rivals {
	return &rivals{o: o, n: n, runsc: &containers{o: o}, known: map[string]*bench.Series{}}
}

// stop ends the started rivals.
func (r *rivals) stop() {
	if r.docker != nil {
		r.docker.stop()
	}
}

// withDocker returns a rival that measures with Docker.
func (r *rivals) withDocker(measure func(context.Context, *docker) (*bench.Series, error)) rival {
	return func(ctx context.Context) (*bench.Series, error) {
		if r.docker == nil && r.failed == nil {
			r.docker, r.failed = startDocker(ctx, r.o)
		}
		if r.failed != nil {
			return nil, r.failed
		}
		return measure(ctx, r.docker)
	}
}

// rival measures one operation of another product.
type rival func(context.Context) (*bench.Series, error)

// table returns the rival of each operation.
func (r *rivals) table() map[string]rival {
	exec := func(command ...string) rival {
		return r.withDocker(func(ctx context.Context, d *docker) (*bench.Series, error) { return d.exec(ctx, r.n.rival, command...) })
	}
	run := func(command ...string) rival {
		return r.withDocker(func(ctx context.Context, d *docker) (*bench.Series, error) { return d.runs(ctx, r.n.rival, command...) })
	}
	all := map[string]rival{
		bench.Acquire:       r.withDocker(func(ctx context.Context, d *docker) (*bench.Series, error) { return d.starts(ctx, r.n.rival) }),
		bench.AcquireAndRun: run("true"),
		bench.NodeWarm:      run("node", "-v"),
		bench.RunPython:     exec("python3", "-c", "1+1"),
		bench.RunJavaScript: exec("node", "-e", "1+1"),
		bench.RunBash:       exec("bash", "-c", "true"),
		bench.Spawn:         exec("true"),
		bench.Echo:          r.withDocker(func(ctx context.Context, d *docker) (*bench.Series, error) { return d.echo(ctx, r.n.Calls) }),
		bench.Overhead:      r.withDocker(func(ctx context.Context, d *docker) (*bench.Series, error) { return d.inspect(ctx, r.n.Calls) }),
		bench.ColdCreate:    func(ctx context.Context) (*bench.Series, error) { return r.runsc.starts(ctx, r.n.rival) },
		bench.NodeCold: func(ctx context.Context) (*bench.Series, error) {
			return r.runsc.runs(ctx, r.n.rival, "/usr/bin/env", "node", "-v")
		},
		bench.Fork(10): func(ctx context.Context) (*bench.Series, error) { return r.runsc.forks(ctx, 2, 10) },
	}
	for _, size := range r.n.Bursts {
		of := r.withDocker(func(ctx context.Context, d *docker) (*bench.Series, error) { return d.burst(ctx, size), nil })
		all[bench.BurstOf(size, size)], all[bench.BurstOf(size, 5)] = r.once(fmt.Sprintf("burst of %d", size), of), r.once(fmt.Sprintf("burst of %d", size), of)
	}
	for operation, measure := range r.saved() {
		all[operation] = measure
	}
	if r.n.Size > 0 {
		up, down := bench.Upload(r.n.Size), bench.Download(r.n.Size)
		both := func(ctx context.Context) (*bench.Series, *bench.Series, error) {
			return loopback(ctx, filepath.Join(r.o.work, "loopback"), r.n.Size)
		}
		all[up], all[down] = r.pair(up, down, both)
	}
	for _, operation := range bench.VolumeOperations() {
		all[operation] = r.withDocker(func(ctx context.Context, d *docker) (*bench.Series, error) { return r.inVolume(ctx, d, operation) })
	}
	return all
}

// saved returns the rivals of pauses and resumes.
func (r *rivals) saved() map[string]rival {
	all := map[string]rival{}
	python := func(what, program string, n int, between ...func() error) {
		pause, resume := bench.Pause(what), bench.Resume(what)
		all[pause], all[resume] = r.pair(pause, resume, func(ctx context.Context) (*bench.Series, *bench.Series, error) {
			return r.runsc.checkpoints(ctx, n, program, between...)
		})
	}
	python(bench.IdleSession, "x = 42", r.n.rival)
	python(bench.UncachedSession, "x = 42", 3, bench.DropCaches)
	python(bench.HeapSession(100), bench.MakeHeap(100), 3)
	python(bench.HeapSession(500), bench.MakeHeap(500), 2)
	python(bench.ManyFilesSession, bench.MakeManyFiles, 2)
	files := func(what string, command ...string) {
		pause, resume := bench.Pause(what), bench.Resume(what)
		all[pause], all[resume] = r.pair(pause, resume, func(ctx context.Context) (saved, started *bench.Series, err error) {
			_, err = r.withDocker(func(ctx context.Context, d *docker) (*bench.Series, error) {
				saved, started, err = d.commit(ctx, command...)
				return saved, err
			})(ctx)
			return saved, started, err
		})
	}
	files(bench.LargeFileSession, "bash", "-c", bench.MakeLargeFile)
	for _, when := range []string{bench.RightAfterResume, bench.AtRest, bench.RightAfterWrite} { // no difference for a rival
		all[bench.Pause(bench.LargeFileSession+when)] = all[bench.Pause(bench.LargeFileSession)]
	}
	return all
}

// once caches the result of measure under name.
func (r *rivals) once(name string, measure rival) rival {
	return func(ctx context.Context) (*bench.Series, error) {
		if s := r.known[name]; s != nil {
			return s, nil
		}
		s, err := measure(ctx)
		if err == nil {
			r.known[name] = s
		}
		return s, err
	}
}

// pair makes two rivals of a function that measures both together.
func (r *rivals) pair(one, two string, measure func(context.Context) (*bench.Series, *bench.Series, error)) (first, second rival) {
	both := func(ctx context.Context) (err error) {
		r.known[one], r.known[two], err = measure(ctx)
		return err
	}
	of := func(name string) rival {
		return r.once(name, func(ctx context.Context) (*bench.Series, error) {
			err := both(ctx)
			return r.known[name], err
		})
	}
	return of(one), of(two)
}

// inVolume measures files in a host folder that is mounted in a container.
func (r *rivals) inVolume(ctx context.Context, d *docker, operation string) (_ *bench.Series, err error) {
	if r.files == nil {
		folder := filepath.Join(d.dir, "volume")
		r.files, err = d.python(ctx, bench.VolumeProgram("/volume", r.n.Volumes), append([]string{"-v", folder + ":/volume"}, limits...)...)
		if err != nil {
			return nil, err
		}
	}
	return bench.BesideVolume(operation, r.files, dockerName)
}

// beside implements bench.Meter's Beside.
func (r *rivals) beside(ctx context.Context, operation string) (*bench.Series, error) {
	measure, ok := r.table()[operation]
	if !ok {
		return nil, nil
	}
	return measure(ctx)
}

// besideFact implements bench.Meter's BesideFact.
func (r *rivals) besideFact(ctx context.Context, what string) (*bench.Fact, error) {
	if what == bench.LiveMemory(r.n.Live) {
		return r.runsc.memory(ctx, 10)
	}
	return nil, nil
}

// meter returns a Meter that compares a server with rivals.
func (r *rivals) meter(s *server, report *bench.Report, poolSize int) *bench.Meter {
	return &bench.Meter{Client: s.client, Report: report, PoolSize: poolSize, Beside: r.beside, BesideFact: r.besideFact}
}
