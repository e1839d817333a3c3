package perf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// server is a running cloud-sandbox and a client of it.
type server struct {
	cmd    *exec.Cmd
	url    string
	data   string
	bin    string
	client *client.Client
}

// startServer starts the server with a Pool of the given sizes and additional
// environment, on a data folder of its own, and waits until it is ready.
func startServer(ctx context.Context, o options, poolMin, poolMax int, env ...string) (*server, error) {
	s := &server{
		url: o.url(), data: filepath.Join(o.work, "data"), bin: o.binary,
		client: client.New(config.Client{URL: o.url(), UserID: "bench"}),
	}
	if err := os.MkdirAll(s.data, 0o755); err != nil {
		return nil, err
	}
	if err := linkTemplates(o.data, s.data); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(o.work, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = exec.Command(o.binary, "serve", "--dev", "--addr", o.addr, "--data", s.data, "--log-level", "warn")
	s.cmd.Env = append(os.Environ(), "POOL_MIN_SIZE="+strconv.Itoa(poolMin), "POOL_MAX_SIZE="+strconv.Itoa(poolMax), "RATE_LIMITS=off")
	s.cmd.Env = append(s.cmd.Env, env...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx); err != nil {
		s.stop()
		return nil, fmt.Errorf("%w; see %s", err, log.Name())
	}
	return s, nil
}

// linkTemplates lets the bench's data folder use the templates of another one.
func linkTemplates(from, to string) error {
	target := filepath.Join(to, "templates")
	if _, err := os.Lstat(target); err == nil {
		return nil
	}
	out, err := exec.Command("cp", "-al", filepath.Join(from, "templates"), target).CombinedOutput()
	if err != nil {
		out, err = exec.Command("cp", "-a", filepath.Join(from, "templates"), target).CombinedOutput()
	}
	if err != nil {
		return fmt.Errorf("copy the templates: %w: %s", err, out)
	}
	return nil
}

func (s *server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the server did not become ready"))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := http.Get(s.url + "/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stop ends the server and everything that it started.
func (s *server) stop() {
	s.client.Close()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	if out, err := exec.Command(s.bin, "down", "--data", s.data).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: down: %v: %s\n", err, out)
	}
}

// setting returns a part that measures a plan on a server with Pools of the given
// sizes.
func setting(poolMin, poolMax int, plan bench.Plan) func(context.Context, options, rounds, *bench.Report, *rivals) error {
	return func(ctx context.Context, o options, _ rounds, report *bench.Report, rivals *rivals) error {
		server, err := startServer(ctx, o, poolMin, poolMax)
		if err != nil {
			return err
		}
		defer server.stop()
		return rivals.meter(server, report, poolMin).Run(ctx, plan)
	}
}

// measureChain measures the disk space of Snapshots of one session.
func measureChain(ctx context.Context, o options, n rounds, report *bench.Report, rivals *rivals) error {
	server, err := startServer(ctx, o, 0, 0, "SNAPSHOT_PACK_SECONDS=1")
	if err != nil {
		return err
	}
	defer server.stop()
	return rivals.meter(server, report, 0).Chain(ctx, n.chain, func() (int64, error) { return diskUsed(server.data) })
}

// diskUsed is the disk space of the files in a folder. A file with several names
// counts once. Files may be created and removed meanwhile.
func diskUsed(dir string) (total int64, err error) {
	seen := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = e.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if stat := info.Sys().(*syscall.Stat_t); !seen[stat.Ino] {
			seen[stat.Ino] = true
			total += stat.Blocks * 512
		}
		return nil
	})
	return total, err
}
