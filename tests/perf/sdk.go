package perf

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	v1 "github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// sdkProgram does the operations of its input with E2B's JavaScript SDK and with our
// TypeScript SDK.
//
//go:embed sdk.mjs
var sdkProgram []byte

// sdk is that program as it runs.
type sdk struct {
	cmd     *exec.Cmd
	input   io.WriteCloser
	answers *bufio.Scanner
}

// startSDK starts the program in a folder of its own below o.work, as a user of the
// server.
func startSDK(ctx context.Context, o options, name, key string) (_ *sdk, err error) {
	dir, scratch := o.sdks, filepath.Join(o.work, name)
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return nil, err
	}
	// One folder above E2B's packages, where Node.js looks next.
	packages := filepath.Join(o.work, "node_modules")
	if err := os.MkdirAll(packages, 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(o.typescript, filepath.Join(packages, "cloud-sandbox")); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	program := filepath.Join(scratch, "sdk.mjs") // next to node_modules, where Node.js looks for the SDK
	if err := os.WriteFile(program, sdkProgram, 0o644); err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join(dir, "new", "js", "node_modules"), filepath.Join(scratch, "node_modules")); err != nil {
		return nil, err
	}
	s := &sdk{cmd: exec.CommandContext(ctx, filepath.Join(dir, "node"), program)}
	url := o.url()
	s.cmd.Env = append(os.Environ(), "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_API_KEY="+key,
		"CLOUD_SANDBOX_URL="+url, "CLOUD_SANDBOX_API_KEY="+key)
	s.cmd.Stderr = os.Stderr
	if s.input, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.answers = bufio.NewScanner(output)
	return s, s.cmd.Start()
}

// do has the program perform one operation and returns its duration there.
func (s *sdk) do(operation string) (time.Duration, error) {
	if _, err := fmt.Fprintln(s.input, operation); err != nil {
		return 0, err
	}
	if !s.answers.Scan() {
		return 0, errors.Join(errors.New("the SDK's program ended"), s.answers.Err())
	}
	var answer struct {
		MS    float64
		Error string
	}
	if err := json.Unmarshal(s.answers.Bytes(), &answer); err != nil {
		return 0, err
	}
	if answer.Error != "" {
		return 0, fmt.Errorf("%s: %s", operation, answer.Error)
	}
	return time.Duration(answer.MS * float64(time.Millisecond)), nil
}

func (s *sdk) stop() error {
	s.input.Close()
	return s.cmd.Wait()
}

// measureSDK measures the waits of users of E2B's SDK and of our TypeScript SDK,
// including the SDK's own time.
func measureSDK(ctx context.Context, o options, n rounds, report *bench.Report, rivals *rivals) error {
	var failed error
	for _, pool := range []int{5, 0} {
		failed = errors.Join(failed, measureSDKWith(ctx, o, pool, n, report, rivals))
	}
	return failed
}

func measureSDKWith(ctx context.Context, o options, pool int, n rounds, report *bench.Report, rivals *rivals) (err error) {
	server, err := startServer(ctx, o, pool, 10*pool)
	if err != nil {
		return err
	}
	defer server.stop()
	key, err := server.client.CreateKey(ctx, v1.KeyRequest{Name: "bench"})
	if err != nil {
		return err
	}
	s, err := startSDK(ctx, o, fmt.Sprintf("sdk-%d", pool), key.Secret)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	meter := rivals.meter(server, report, pool)
	measure := func(operation, goal, does string, times int) error {
		return meter.Rounds(ctx, operation, goal, times, func(context.Context) (time.Duration, error) { return s.do(does) })
	}
	if pool == 0 {
		return measure("E2B's SDK: create, cold", "110", "create", n.sdk)
	}
	for _, m := range []struct{ operation, goal, does string }{
		{"E2B's SDK: create, warm", "15", "create"},
		{"TypeScript SDK: create, warm", "15", "ourCreate"},
		{"E2B's SDK: create until `commands.run('true')` has finished, warm", "40", "createAndRun"},
	} {
		if err := measure(m.operation, m.goal, m.does, n.sdk); err != nil {
			return err
		}
	}
	for _, does := range []string{"open", "ourOpen"} {
		if _, err := s.do(does); err != nil {
			return err
		}
	}
	for _, m := range []struct{ operation, goal, does string }{
		{"E2B's SDK: `runCode('x+=1; x')`", "5", "runCode"},
		{"TypeScript SDK: `runCode('x+=1; x')`", "5", "ourRunCode"},
		{"E2B's SDK: write a file of 10 MB", "", "write"},
		{"E2B's SDK: read it", "", "read"},
	} {
		if err := measure(m.operation, m.goal, m.does, n.sdk); err != nil {
			return err
		}
	}
	paused := &bench.Series{Operation: "E2B's SDK: pause", Who: bench.Ours}
	connected := &bench.Series{Operation: "E2B's SDK: connect to a paused sandbox", Who: bench.Ours, Goal: "130"}
	does := func(operation string) func() error {
		return func() error { _, err := s.do(operation); return err }
	}
	report.Begin()
	err = bench.RepeatBoth(ctx, paused, connected, n.Saves, func(context.Context, int) (pause, connect func() error) {
		return does("pause"), does("connect")
	})
	if err != nil {
		return err
	}
	report.Add(paused, connected)
	for _, does := range []string{"close", "ourClose"} {
		if _, err := s.do(does); err != nil {
			return err
		}
	}
	return nil
}
