package launch

import (
	"bufio"
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A process that does not heed SIGTERM is killed, and one that does is not.
func TestEndProcess(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		stop         bool
		grace        time.Duration
		want         syscall.Signal
	}{
		{"ends by itself", "echo ready; read -r line", false, time.Minute, syscall.SIGTERM},
		{"ignores SIGTERM", "trap '' TERM; echo ready; read -r line", false, 50 * time.Millisecond, syscall.SIGKILL},
		{"is stopped", "echo ready; read -r line", true, 50 * time.Millisecond, syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := startReady(t, tt.script)
			if tt.stop {
				if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				var status syscall.WaitStatus
				if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
					t.Fatalf("it is %v, %v", status, err)
				}
			}
			if err := endProcess(t.Context(), cmd.Process.Pid, tt.grace); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != tt.want {
				t.Errorf("it ended with %v, want %v", status.Signal(), tt.want)
			}
			if err := endProcess(t.Context(), cmd.Process.Pid, tt.grace); err != nil {
				t.Errorf("one that has ended: %v", err)
			}
		})
	}
}

// A caller that gives up within the grace leaves the process alone from then on.
func TestEndProcessGivesUp(t *testing.T) {
	cmd := startReady(t, "trap '' TERM; echo ready; read -r line")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := endProcess(ctx, cmd.Process.Pid, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("endProcess = %v", err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("it is gone: %v", err)
	}
}

// startReady runs a script of the shell until it says that it is ready. It reads from
// a pipe without a writer.
func startReady(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		stdin.Close()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	return cmd
}
