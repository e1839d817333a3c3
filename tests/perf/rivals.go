package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// docker is a daemon of our own, which leaves nothing of it behind.
type docker struct {
	daemon *exec.Cmd
	socket string
	dir    string
}

const dockerImage = "cloud-sandbox-bench:base"

func startDocker(ctx context.Context, o options) (*docker, error) {
	d := &docker{dir: filepath.Join(o.work, "docker")}
	d.socket = filepath.Join(d.dir, "docker.sock")
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(d.dir, "dockerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.daemon = exec.Command("dockerd", "--data-root", filepath.Join(d.dir, "data"), "--exec-root", filepath.Join(d.dir, "exec"),
		"--pidfile", filepath.Join(d.dir, "pid"), "-H", "unix://"+d.socket, "--iptables=false", "--bridge=none")
	d.daemon.Stdout, d.daemon.Stderr = log, log
	if err := d.daemon.Start(); err != nil {
		return nil, err
	}
	for range 300 {
		if d.run(ctx, "version") == nil {
			return d, d.load(ctx, o.rootfs)
		}
		time.Sleep(100 * time.Millisecond)
	}
	d.stop()
	return nil, fmt.Errorf("dockerd did not start; see %s", log.Name())
}

func (d *docker) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, dockerClient(), append([]string{"-H", "unix://" + d.socket}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker %s: %w: %s", args[0], err, out)
	}
	return nil
}

// dockerClient prefers the distribution's client: it fits the daemon.
func dockerClient() string {
	if _, err := os.Stat("/usr/bin/docker"); err == nil {
		return "/usr/bin/docker"
	}
	return "docker"
}

// load imports the same root filesystem that our sandboxes have.
func (d *docker) load(ctx context.Context, rootfs string) error {
	script := fmt.Sprintf("tar -C %q -c . | %s -H unix://%s import - %s", rootfs, dockerClient(), d.socket, dockerImage)
	if out, err := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("import the root filesystem: %w: %s", err, out)
	}
	return nil
}

func (d *docker) stop() {
	_ = d.daemon.Process.Signal(syscall.SIGTERM)
	_ = d.daemon.Wait()
	out, _ := exec.Command("bash", "-c", fmt.Sprintf("awk '$2 ~ \"^%s\" {print $2}' /proc/mounts | tac | xargs -r umount -l; rm -rf %q", d.dir, d.dir)).CombinedOutput()
	if len(out) > 0 {
		fmt.Fprintf(os.Stderr, "bench: cleaning up docker: %s\n", out)
	}
}

// limits are the default shape's, as Docker says them.
var limits = []string{"--memory", "512m", "--cpus", "1", "--pids-limit", "512", "--network", "none"}

const (
	dockerName = "Docker, runc"
	runscName  = "runsc, systrap"
)

func measureDocker(ctx context.Context, o options, n rounds, report *bench.Report) error {
	report.Step("Docker")
	d, err := startDocker(ctx, o)
	if err != nil {
		return err
	}
	defer d.stop()
	run := append(append([]string{"run", "--rm"}, limits...), dockerImage)
	for _, command := range []string{"true", "node -v"} {
		args := append(slices.Clone(run), strings.Fields(command)...)
		s := &bench.Series{Operation: "`docker run` of `" + command + "`, to its end", Who: dockerName}
		if err := measure(ctx, s, n.docker, report, func() error { return d.run(ctx, args...) }); err != nil {
			return err
		}
	}
	if err := d.measureExec(ctx, n, report); err != nil {
		return err
	}
	for _, size := range n.bursts {
		s := &bench.Series{Operation: fmt.Sprintf("burst of %d `docker run` of `true` at once", size), Who: dockerName}
		bench.AtOnce(s, size, func(int) error { return d.run(ctx, append(slices.Clone(run), "true")...) })
		report.Add(s)
	}
	return nil
}

// measureExec measures a Process in a container that runs.
func (d *docker) measureExec(ctx context.Context, n rounds, report *bench.Report) error {
	args := append(append([]string{"run", "-d", "--name", "bench"}, limits...), dockerImage, "sleep", "infinity")
	if err := d.run(ctx, args...); err != nil {
		return err
	}
	s := &bench.Series{Operation: "`docker exec` of `true`", Who: dockerName}
	err := measure(ctx, s, n.docker, report, func() error { return d.run(ctx, "exec", "bench", "true") })
	if err == nil && n.saves > 0 {
		err = d.measureSaved(ctx, n, report)
	}
	return errors.Join(err, d.run(ctx, "rm", "-f", "bench"))
}

// measureSaved measures what Docker has that comes near to saving a container:
// stopping its processes, which keeps them in memory, and an image of its files.
func (d *docker) measureSaved(ctx context.Context, n rounds, report *bench.Report) error {
	s := &bench.Series{Operation: "`docker pause` and `docker unpause`: stays in memory", Who: dockerName}
	err := measure(ctx, s, n.docker, report, func() error {
		return errors.Join(d.run(ctx, "pause", "bench"), d.run(ctx, "unpause", "bench"))
	})
	if err != nil {
		return err
	}
	const image = "cloud-sandbox-bench:saved"
	s = &bench.Series{Operation: "`docker commit`: files only", Who: dockerName}
	if err := measure(ctx, s, n.docker, report, func() error { return d.run(ctx, "commit", "bench", image) }); err != nil {
		return err
	}
	s = &bench.Series{Operation: "`docker run` of `true` from what was committed", Who: dockerName}
	run := append(append([]string{"run", "--rm"}, limits...), image, "true")
	return measure(ctx, s, n.docker, report, func() error { return d.run(ctx, run...) })
}

// runsc runs the command itself, which keeps its state in the scratch folder.
func runsc(ctx context.Context, o options, args ...string) error {
	all := append([]string{"--root", filepath.Join(o.work, "runsc"), "--network=none", "--ignore-cgroups"}, args...)
	cmd := exec.CommandContext(ctx, o.runsc, all...)
	// A container that goes on would keep a pipe open.
	log, err := os.CreateTemp(o.work, "runsc-")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		out, _ := os.ReadFile(log.Name())
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, out)
	}
	return nil
}

func measureRunsc(ctx context.Context, o options, n rounds, report *bench.Report) error {
	report.Step("bare runsc")
	next := 0
	for _, r := range []struct {
		what string
		cmd  []string
	}{
		{"`runsc run` of `true`, to its end", []string{"/bin/true"}},
		{"`runsc run` of `node -v`, to its end", []string{"/usr/bin/env", "node", "-v"}},
	} {
		bundle, err := bundle(o, r.cmd)
		if err != nil {
			return err
		}
		s := &bench.Series{Operation: r.what, Who: runscName}
		err = measure(ctx, s, n.runsc, report, func() error {
			next++
			return runsc(ctx, o, "run", "--bundle", bundle, fmt.Sprintf("bench-%d-%d", os.Getpid(), next))
		})
		if err != nil {
			return err
		}
	}
	if n.saves == 0 {
		return nil
	}
	return measureCheckpoints(ctx, o, n, report)
}

// measureCheckpoints measures saving and restoring a Python that does nothing.
func measureCheckpoints(ctx context.Context, o options, n rounds, report *bench.Report) error {
	bundle, err := bundle(o, []string{"/usr/bin/env", "python3", "-c", "import time\nx = 42\nwhile True: time.sleep(1000)"})
	if err != nil {
		return err
	}
	id := fmt.Sprintf("bench-%d-0", os.Getpid())
	if err := runsc(ctx, o, "run", "--detach", "--bundle", bundle, id); err != nil {
		return err
	}
	// What is measured first does not count, and by then Python has begun.
	saved := &bench.Series{Operation: "`runsc checkpoint` of an idle Python", Who: runscName}
	restored := &bench.Series{Operation: "`runsc restore` of an idle Python, until it runs", Who: runscName}
	err = bench.RepeatBoth(ctx, saved, restored, n.runsc, func(ctx context.Context, round int) (first, second func() error) {
		image, next := filepath.Join(o.work, fmt.Sprintf("image-%d", round)), fmt.Sprintf("bench-%d-r%d", os.Getpid(), round)
		from := id
		id = next
		first = func() error { return runsc(ctx, o, "checkpoint", "--image-path", image, from) }
		second = func() error {
			return runsc(ctx, o, "restore", "--detach", "--bundle", bundle, "--image-path", image, next)
		}
		return first, second
	})
	if err == nil {
		report.Add(saved)
		report.Add(restored)
	}
	return errors.Join(err, runsc(ctx, o, "kill", id, "KILL"))
}

// measure fills a Series with n rounds of op and adds it.
func measure(ctx context.Context, s *bench.Series, n int, report *bench.Report, op func() error) error {
	err := bench.Repeat(ctx, s, n, func(context.Context) (time.Duration, error) {
		began := time.Now()
		err := op()
		return time.Since(began), err
	})
	if err == nil {
		report.Add(s)
	}
	return err
}

// bundle writes an OCI bundle that runs one command on the root filesystem.
func bundle(o options, command []string) (string, error) {
	dir, err := os.MkdirTemp(o.work, "bundle-")
	if err != nil {
		return "", err
	}
	spec := map[string]any{
		"ociVersion": "1.0.0",
		"root":       map[string]any{"path": o.rootfs, "readonly": true},
		"process": map[string]any{
			"args": command, "cwd": "/", "user": map[string]int{"uid": 1000, "gid": 1000},
			"env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}
