package perf

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// docker is a Docker daemon of our own, which leaves no data behind.
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
	if err := d.prepare(ctx, o.rootfs); err != nil {
		d.stop()
		return nil, fmt.Errorf("%w; see %s", err, log.Name())
	}
	return d, nil
}

// prepare waits until the daemon answers, and makes the image and the container.
func (d *docker) prepare(ctx context.Context, rootfs string) error {
	for range 300 {
		if d.run(ctx, "version") == nil {
			if err := d.load(ctx, rootfs); err != nil {
				return err
			}
			return d.start(ctx, container)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("dockerd did not start")
}

// start starts a container that does nothing.
func (d *docker) start(ctx context.Context, name string) error {
	return d.run(ctx, limited("-d", "--name", name)("sleep", "infinity")...)
}

// limited returns a function that makes the arguments of `docker run` for a command
// on the image with options.
func limited(options ...string) func(command ...string) []string {
	return func(command ...string) []string {
		return slices.Concat([]string{"run"}, options, limits, []string{dockerImage}, command)
	}
}

// waitDelay bounds the wait for the output of a program that has ended.
const waitDelay = 10 * time.Second

func (d *docker) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, dockerClient(), append([]string{"-H", "unix://" + d.socket}, args...)...)
	cmd.WaitDelay = waitDelay
	return cmd
}

func (d *docker) run(ctx context.Context, args ...string) error {
	if out, err := d.command(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("docker %s: %w: %s", args[0], err, out)
	}
	return nil
}

// dockerClient prefers the distribution's client, which matches the daemon.
func dockerClient() string {
	if _, err := os.Stat("/usr/bin/docker"); err == nil {
		return "/usr/bin/docker"
	}
	return "docker"
}

// load imports the root filesystem that our sandboxes have.
func (d *docker) load(ctx context.Context, rootfs string) error {
	script := fmt.Sprintf("tar -C %q -c . | %s -H unix://%s import - %s", rootfs, dockerClient(), d.socket, dockerImage)
	load := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", script)
	load.WaitDelay = waitDelay
	if out, err := load.CombinedOutput(); err != nil {
		return fmt.Errorf("import the root filesystem: %w: %s", err, out)
	}
	return nil
}

func (d *docker) stop() {
	_ = d.run(context.Background(), "rm", "-f", container)
	_ = d.daemon.Process.Signal(syscall.SIGTERM)
	_ = d.daemon.Wait()
	out, _ := exec.Command("bash", "-c", fmt.Sprintf("awk '$2 ~ \"^%s\" {print $2}' /proc/mounts | tac | xargs -r umount -l; rm -rf %q", d.dir, d.dir)).CombinedOutput()
	if len(out) > 0 {
		fmt.Fprintf(os.Stderr, "bench: cleaning up docker: %s\n", out)
	}
}

// limits are the default shape's, as Docker's options.
var limits = []string{"--memory", "512m", "--cpus", "1", "--pids-limit", "512", "--network", "none"}

const dockerName = "Docker, runc"

// container is a container that runs as long as the daemon, to execute programs in.
const container = "bench"

// took returns how long a command takes.
func (d *docker) took(ctx context.Context, args ...string) (time.Duration, error) {
	began := time.Now()
	err := d.run(ctx, args...)
	return time.Since(began), err
}

// exec measures a program in a running container.
func (d *docker) exec(ctx context.Context, n int, command ...string) (*bench.Series, error) {
	s := &bench.Series{Operation: "`docker exec` of `" + strings.Join(command, " ") + "`", Who: dockerName}
	return s, bench.Repeat(ctx, s, n, func(ctx context.Context) (time.Duration, error) {
		return d.took(ctx, append([]string{"exec", container}, command...)...)
	})
}

// runs measures a container for one program.
func (d *docker) runs(ctx context.Context, n int, command ...string) (*bench.Series, error) {
	s := &bench.Series{Operation: "`docker run` of `" + strings.Join(command, " ") + "`, to its end", Who: dockerName}
	return s, bench.Repeat(ctx, s, n, func(ctx context.Context) (time.Duration, error) {
		return d.took(ctx, limited("--rm")(command...)...)
	})
}

// starts measures the start of a container.
func (d *docker) starts(ctx context.Context, n int) (*bench.Series, error) {
	s := &bench.Series{Operation: "`docker run --detach`, until it runs", Who: dockerName}
	return s, bench.Repeat(ctx, s, n, func(ctx context.Context) (time.Duration, error) {
		took, err := d.took(ctx, limited("-d", "--name", "started")("sleep", "infinity")...)
		return took, errors.Join(err, d.run(ctx, "rm", "-f", "started"))
	})
}

// burst measures concurrent starts of containers.
func (d *docker) burst(ctx context.Context, n int) *bench.Series {
	s := &bench.Series{Operation: fmt.Sprintf("burst of %d `docker run` of `true` at once", n), Who: dockerName}
	bench.AtOnce(s, n, func(int) error { return d.run(ctx, limited("--rm")("true")...) })
	return s
}

// echo measures the echo of a key by `cat` in a container.
func (d *docker) echo(ctx context.Context, n int) (_ *bench.Series, err error) {
	cat := d.command(ctx, "exec", "-i", container, "cat")
	in, err := cat.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cat.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cat.Start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close(), cat.Wait()) }()
	s := &bench.Series{Operation: "a key through `docker exec -i` of `cat` and back", Who: dockerName}
	keys := bufio.NewReader(out)
	return s, bench.Repeat(ctx, s, n, func(context.Context) (time.Duration, error) {
		began := time.Now()
		if _, err := in.Write([]byte("a")); err != nil {
			return 0, err
		}
		_, err := keys.ReadByte()
		return time.Since(began), err
	})
}

// inspect measures a call to the daemon that involves no container.
func (d *docker) inspect(ctx context.Context, n int) (*bench.Series, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.socket)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	s := &bench.Series{Operation: "read a container over dockerd's API", Who: dockerName}
	return s, bench.Repeat(ctx, s, n, func(ctx context.Context) (time.Duration, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/containers/"+container+"/json", nil)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return 0, errors.New(resp.Status)
		}
		return time.Since(began), nil
	})
}

// commit measures Docker's nearest counterpart to pausing and resuming a session of
// files: an image of a container's files, and a container from it. It runs once,
// since rounds are long.
func (d *docker) commit(ctx context.Context, command ...string) (saved, started *bench.Series, err error) {
	const name, image = "files", "cloud-sandbox-bench:files"
	if err := d.start(ctx, name); err != nil {
		return nil, nil, err
	}
	defer func() {
		undo := context.WithoutCancel(ctx)
		err = errors.Join(err, d.run(undo, "rm", "-f", name), d.run(undo, "rmi", "-f", image))
	}()
	if err := d.run(ctx, append([]string{"exec", "-w", "/tmp", name}, command...)...); err != nil {
		return nil, nil, err
	}
	saved = &bench.Series{Operation: "`docker commit`: files only", Who: dockerName}
	bench.AtOnce(saved, 1, func(int) error { return d.run(ctx, "commit", name, image) })
	started = &bench.Series{Operation: "`docker run` of `true` from what was committed", Who: dockerName}
	bench.AtOnce(started, 1, func(int) error {
		return d.run(ctx, slices.Concat([]string{"run", "--rm"}, limits, []string{image, "true"})...)
	})
	for _, s := range []*bench.Series{saved, started} {
		if s.Failures > 0 {
			return nil, nil, errors.New(s.Failure)
		}
	}
	return saved, started, nil
}

// python runs a program in a container with more options, and returns its output.
func (d *docker) python(ctx context.Context, program string, options ...string) ([]byte, error) {
	args := slices.Concat([]string{"run", "--rm"}, options, []string{dockerImage, "python3", "-c", program})
	out, err := d.command(ctx, args...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return out, err
}
