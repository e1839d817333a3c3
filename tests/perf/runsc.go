package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

const runscName = "runsc, systrap"

// runsc runs the command itself, which keeps its state in the scratch folder.
func runsc(ctx context.Context, o options, args ...string) error {
	log, err := os.CreateTemp(o.work, "runsc-")
	if err != nil {
		return err
	}
	log.Close()
	defer os.Remove(log.Name())
	return runscTo(ctx, o, log.Name(), args...)
}

// runscTo runs runsc with its output, and its container's, in a file.
func runscTo(ctx context.Context, o options, file string, args ...string) error {
	all := append([]string{"--root", filepath.Join(o.work, "runsc"), "--network=none", "--ignore-cgroups"}, args...)
	cmd := exec.CommandContext(ctx, o.runsc, all...)
	// A container that keeps running would keep a pipe open.
	log, err := os.Create(file)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		out, _ := os.ReadFile(log.Name())
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, out)
	}
	return nil
}

// containers runs containers of bare runsc and numbers them for their names.
type containers struct {
	o    options
	last int
}

func (c *containers) name() string {
	c.last++
	return fmt.Sprintf("bench-%d-%d", os.Getpid(), c.last)
}

// end ends a container, even if it has already ended.
func (c *containers) end(ctx context.Context, id string) error {
	return runsc(context.WithoutCancel(ctx), c.o, "delete", "--force", id)
}

// runs measures a container for one program, to its end.
func (c *containers) runs(ctx context.Context, n int, command ...string) (*bench.Series, error) {
	bundle, err := bundle(c.o, command)
	if err != nil {
		return nil, err
	}
	s := &bench.Series{Operation: "`runsc run` of `" + strings.TrimPrefix(strings.Join(command, " "), "/usr/bin/env ") + "`, to its end", Who: runscName}
	return s, bench.Repeat(ctx, s, n, func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		err := runsc(ctx, c.o, "run", "--bundle", bundle, c.name())
		return time.Since(began), err
	})
}

var sleeps = []string{"/usr/bin/env", "sleep", "infinity"}

// starts measures the start of a container.
func (c *containers) starts(ctx context.Context, n int) (*bench.Series, error) {
	bundle, err := bundle(c.o, sleeps)
	if err != nil {
		return nil, err
	}
	s := &bench.Series{Operation: "`runsc run --detach`, until it runs", Who: runscName}
	return s, bench.Repeat(ctx, s, n, func(ctx context.Context) (time.Duration, error) {
		id := c.name()
		began := time.Now()
		err := runsc(ctx, c.o, "run", "--detach", "--bundle", bundle, id)
		return time.Since(began), errors.Join(err, c.end(ctx, id))
	})
}

// memory measures how much each of n idle containers takes of the memory that the
// kernel calls available.
func (c *containers) memory(ctx context.Context, n int) (*bench.Fact, error) {
	bundle, err := bundle(c.o, sleeps)
	if err != nil {
		return nil, err
	}
	before, err := bench.Available()
	if err != nil {
		return nil, err
	}
	for range n {
		id := c.name()
		defer func() { _ = c.end(ctx, id) }()
		if err := runsc(ctx, c.o, "run", "--detach", "--bundle", bundle, id); err != nil {
			return nil, err
		}
	}
	after, err := bench.Available()
	return &bench.Fact{
		What: fmt.Sprintf("each of %d of `runsc run` of `sleep`", n), Who: runscName,
		Value: float64((before-after)*1024/int64(n)/1e5) / 10, Unit: "MB",
	}, err
}

// python starts a container that runs a program and then waits, and returns its
// bundle and name once the program is done.
func (c *containers) python(ctx context.Context, program string) (dir, id string, err error) {
	const ready = "ready"
	dir, err = bundle(c.o, []string{"/usr/bin/env", "python3", "-c", program + "\nimport time\nprint('" + ready + "', flush=True)\nwhile True: time.sleep(1000)"})
	if err != nil {
		return "", "", err
	}
	id = c.name()
	output := filepath.Join(dir, "output")
	if err := runscTo(ctx, c.o, output, "run", "--detach", "--bundle", dir, id); err != nil {
		return "", "", err
	}
	for range 3600 {
		if out, err := os.ReadFile(output); err == nil && bytes.Contains(out, []byte(ready)) {
			return dir, id, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", "", errors.Join(errors.New("python in bare runsc did not get ready"), c.end(ctx, id))
}

// checkpoints measures saving and restoring a Python that has run a program. The
// steps between both are not measured.
func (c *containers) checkpoints(ctx context.Context, n int, program string, between ...func() error) (saved, restored *bench.Series, err error) {
	bundle, id, err := c.python(ctx, program)
	if err != nil {
		return nil, nil, err
	}
	saved = &bench.Series{Operation: "`runsc checkpoint` of the same", Who: runscName}
	restored = &bench.Series{Operation: "`runsc restore` of the same, until it runs", Who: runscName}
	err = bench.RepeatBoth(ctx, saved, restored, n, func(ctx context.Context, round int) (first, second func() error) {
		image, from := filepath.Join(bundle, fmt.Sprintf("image-%d", round)), id
		id = c.name()
		next := id
		first = func() error { return runsc(ctx, c.o, "checkpoint", "--image-path", image, from) }
		second = func() error {
			return runsc(ctx, c.o, "restore", "--detach", "--bundle", bundle, "--image-path", image, next)
		}
		return first, second
	}, between...)
	return saved, restored, errors.Join(err, c.end(ctx, id), os.RemoveAll(bundle))
}

// forks measures copying a running Python: a checkpoint that leaves it running, and
// then count concurrent restores.
func (c *containers) forks(ctx context.Context, n, count int) (*bench.Series, error) {
	bundle, id, err := c.python(ctx, "x = 42")
	if err != nil {
		return nil, err
	}
	s := &bench.Series{Operation: fmt.Sprintf("`runsc checkpoint` of the same, and %d `runsc restore` at once", count), Who: runscName}
	err = bench.Repeat(ctx, s, n, func(ctx context.Context) (time.Duration, error) {
		image := filepath.Join(bundle, c.name())
		ids, errs := make([]string, count), make([]error, count)
		for i := range ids {
			ids[i] = c.name()
		}
		began := time.Now()
		if err := runsc(ctx, c.o, "checkpoint", "--leave-running", "--image-path", image, id); err != nil {
			return 0, err
		}
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() {
				errs[i] = runsc(ctx, c.o, "restore", "--detach", "--bundle", bundle, "--image-path", image, ids[i])
			})
		}
		all.Wait()
		took := time.Since(began)
		for _, copied := range ids {
			errs = append(errs, c.end(ctx, copied))
		}
		return took, errors.Join(append(errs, os.RemoveAll(image))...)
	})
	return s, errors.Join(err, c.end(ctx, id), os.RemoveAll(bundle))
}

// bundle writes an OCI bundle that runs one command on the root filesystem, in a tmpfs
// that it may write to.
func bundle(o options, command []string) (string, error) {
	dir, err := os.MkdirTemp(o.work, "bundle-")
	if err != nil {
		return "", err
	}
	spec := map[string]any{
		"ociVersion": "1.0.0",
		"root":       map[string]any{"path": o.rootfs, "readonly": true},
		"mounts":     []any{map[string]any{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}},
		"process": map[string]any{
			"args": command, "cwd": "/tmp", "user": map[string]int{"uid": 1000, "gid": 1000},
			"env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}
