package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const ours = "Cloud Sandbox"

// server is a running cloud-sandbox and a client of it.
type server struct {
	cmd   *exec.Cmd
	data  string
	url   string
	token string
	http  *http.Client
	bin   string
}

// startServer starts the server with a Pool of the given sizes on a data folder
// of its own, and waits until it is ready.
func startServer(ctx context.Context, o options, poolMin, poolMax int) (*server, error) {
	s := &server{
		data: filepath.Join(o.work, "data"), url: "http://127.0.0.1:18080", bin: o.binary,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}},
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
	s.cmd = exec.Command(o.binary, "serve", "--dev", "--addr", "127.0.0.1:18080", "--data", s.data, "--log-level", "warn")
	s.cmd.Env = append(os.Environ(), "POOL_MIN_SIZE="+strconv.Itoa(poolMin), "POOL_MAX_SIZE="+strconv.Itoa(poolMax))
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx); err != nil {
		s.stop()
		return nil, fmt.Errorf("%w; see %s", err, log.Name())
	}
	var token struct {
		AccessToken string `json:"access_token"`
	}
	if err := s.post("/api/v1/auth/token", map[string]string{"user_id": "bench", "role": "user"}, &token); err != nil {
		s.stop()
		return nil, err
	}
	s.token = token.AccessToken
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
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		resp, err := s.http.Get(s.url + "/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("the server did not become ready")
}

// stop ends the server and everything that it started.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	if out, err := exec.Command(s.bin, "down", "--data", s.data).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: down: %v: %s\n", err, out)
	}
}

func (s *server) post(path string, body, reply any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, s.url+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s answered %d: %s", path, resp.StatusCode, raw)
	}
	if reply == nil {
		return nil
	}
	return json.Unmarshal(raw, reply)
}

func (s *server) acquire() (id string, err error) {
	var reply struct {
		SandboxID string `json:"sandbox_id"`
	}
	err = s.post("/api/v1/sandbox/acquire", struct{}{}, &reply)
	return reply.SandboxID, err
}

func (s *server) release(id string) error {
	return s.post("/api/v1/sandbox/release", map[string]string{"sandbox_id": id}, nil)
}

func (s *server) execute(id, language, code string) error {
	var reply struct {
		Status string `json:"status"`
		Stderr string `json:"stderr"`
	}
	err := s.post("/api/v1/execute", map[string]string{"sandbox_id": id, "language": language, "code": code}, &reply)
	if err == nil && reply.Status != "ok" {
		err = fmt.Errorf("%s ended with %s: %s", code, reply.Status, reply.Stderr)
	}
	return err
}

// create measures acquire, then code if there is any, and releases.
func (s *server) create(code string) (acquired, executed time.Duration, err error) {
	began := time.Now()
	id, err := s.acquire()
	if err != nil {
		return 0, 0, err
	}
	acquired = time.Since(began)
	if code != "" {
		err = s.execute(id, "bash", code)
		executed = time.Since(began)
	}
	return acquired, executed, errors.Join(err, s.release(id))
}

// idle waits until the Pool is full again, so that one round does not pay for
// the one before.
func (s *server) idle(want int) error {
	for range 600 {
		resp, err := s.http.Get(s.url + "/metrics")
		if err != nil {
			return err
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if poolIdle(string(b)) >= want {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the pool did not fill to %d", want)
}

func measureServer(ctx context.Context, o options, n rounds, t *table) error {
	fmt.Println("Cloud Sandbox, warm pool")
	s, err := startServer(ctx, o, 5, 50)
	if err != nil {
		return err
	}
	err = warmRows(ctx, s, n, t)
	s.stop()
	if err != nil {
		return err
	}
	if n.burst > 0 {
		if err := burstRows(ctx, o, n, t); err != nil {
			return err
		}
	}
	fmt.Println("Cloud Sandbox, no pool")
	if s, err = startServer(ctx, o, 0, 0); err != nil {
		return err
	}
	defer s.stop()
	return coldRows(ctx, s, n, t)
}

func warmRows(ctx context.Context, s *server, n rounds, t *table) error {
	acquire, err := repeat(ctx, n.warm, func() (time.Duration, error) {
		if err := s.idle(5); err != nil {
			return 0, err
		}
		d, _, err := s.create("")
		return d, err
	})
	if err != nil {
		return err
	}
	t.add("acquire from a warm pool", ours, "3 (15)", acquire)
	for _, r := range []struct{ what, code, goal string }{
		{"acquire from a warm pool and execute `true`", "true", "20 (60)"},
		{"create until `node -v` has finished, warm", "node -v", "60"},
	} {
		samples, err := repeat(ctx, n.warm, func() (time.Duration, error) {
			if err := s.idle(5); err != nil {
				return 0, err
			}
			_, d, err := s.create(r.code)
			return d, err
		})
		if err != nil {
			return err
		}
		t.add(r.what, ours, r.goal, samples)
	}
	return spawnRow(ctx, s, n, t)
}

func spawnRow(ctx context.Context, s *server, n rounds, t *table) error {
	id, err := s.acquire()
	if err != nil {
		return err
	}
	defer func() { _ = s.release(id) }()
	if err := s.idle(5); err != nil {
		return err
	}
	samples, err := repeat(ctx, n.spawn, func() (time.Duration, error) {
		return timed(func() error { return s.execute(id, "bash", "true") })
	})
	if err != nil {
		return err
	}
	t.add("spawn `true` in a running sandbox", ours, "15 (40)", samples)
	python, err := repeat(ctx, n.spawn/2, func() (time.Duration, error) {
		return timed(func() error { return s.execute(id, "python", "print(1+1)") })
	})
	if err != nil {
		return err
	}
	t.add("run `print(1+1)` in a new Python process", ours, "", python)
	return nil
}

func burstRows(ctx context.Context, o options, n rounds, t *table) error {
	for _, size := range []int{n.burst, 5} {
		fmt.Printf("Cloud Sandbox, burst of %d, pool of %d\n", n.burst, size)
		s, err := startServer(ctx, o, size, max(size, 50))
		if err != nil {
			return err
		}
		samples, err := burst(s, n.burst)
		s.stop()
		if err != nil {
			return err
		}
		goal := ""
		if size == n.burst {
			goal = "350"
		}
		t.add(fmt.Sprintf("burst of %d creates at once, pool of %d", n.burst, size), ours, goal, samples)
	}
	return nil
}

func burst(s *server, n int) ([]time.Duration, error) {
	samples, ids, errs := make([]time.Duration, n), make([]string, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			samples[i], errs[i] = timed(func() (err error) { ids[i], err = s.acquire(); return err })
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != "" {
			errs = append(errs, s.release(id))
		}
	}
	return samples, errors.Join(errs...)
}

func coldRows(ctx context.Context, s *server, n rounds, t *table) error {
	cold, err := repeat(ctx, n.cold, func() (time.Duration, error) {
		d, _, err := s.create("")
		return d, err
	})
	if err != nil {
		return err
	}
	t.add("cold create until the guest answers", ours, "80 (150)", cold)
	node, err := repeat(ctx, n.cold, func() (time.Duration, error) {
		_, d, err := s.create("node -v")
		return d, err
	})
	if err != nil {
		return err
	}
	t.add("create until `node -v` has finished, cold", ours, "150", node)
	return nil
}
