package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// poolIdle adds up the idle Boots over all Pools in a metrics page.
func poolIdle(metrics string) int {
	total := 0
	for s := bufio.NewScanner(strings.NewReader(metrics)); s.Scan(); {
		if !strings.HasPrefix(s.Text(), "cloud_sandbox_pool_idle") {
			continue
		}
		fields := strings.Fields(s.Text())
		if v, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil {
			total += int(v)
		}
	}
	return total
}

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

func measureDocker(ctx context.Context, o options, n rounds, t *table) error {
	fmt.Println("Docker")
	d, err := startDocker(ctx, o)
	if err != nil {
		return err
	}
	defer d.stop()
	for _, r := range []struct {
		what string
		cmd  []string
	}{
		{"`docker run` of `true`, to its end", []string{"true"}},
		{"`docker run` of `node -v`, to its end", []string{"node", "-v"}},
	} {
		samples, err := repeat(ctx, n.docker, func() (time.Duration, error) {
			args := append(append([]string{"run", "--rm"}, limits...), dockerImage)
			return timed(func() error { return d.run(ctx, append(args, r.cmd...)...) })
		})
		if err != nil {
			return err
		}
		t.add(r.what, "Docker, runc", "", samples)
	}
	args := append(append([]string{"run", "-d", "--name", "bench"}, limits...), dockerImage, "sleep", "infinity")
	if err := d.run(ctx, args...); err != nil {
		return err
	}
	samples, err := repeat(ctx, n.docker, func() (time.Duration, error) {
		return timed(func() error { return d.run(ctx, "exec", "bench", "true") })
	})
	err = errors.Join(err, d.run(ctx, "rm", "-f", "bench"))
	if err != nil {
		return err
	}
	t.add("`docker exec` of `true`", "Docker, runc", "", samples)
	return nil
}

func measureRunsc(ctx context.Context, o options, n rounds, t *table) error {
	fmt.Println("bare runsc")
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
		i := 0
		samples, err := repeat(ctx, n.runsc, func() (time.Duration, error) {
			i++
			return timed(func() error {
				cmd := exec.CommandContext(ctx, o.runsc, "--root", filepath.Join(o.work, "runsc"), "--network=none", "--ignore-cgroups",
					"run", "--bundle", bundle, fmt.Sprintf("bench-%d-%d", os.Getpid(), i))
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("runsc run: %w: %s", err, out)
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		t.add(r.what, "runsc, systrap", "", samples)
	}
	return nil
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
