package rig

import (
	"context"
	"os/exec"
	"time"
)

// waitDelay bounds how long a test waits for the output of a program that has ended or
// timed out. Without it, a child that keeps the pipe open blocks the test.
const waitDelay = 10 * time.Second

// Command is exec.Command for tests.
func Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.WaitDelay = waitDelay
	return cmd
}

// CommandContext is exec.CommandContext for tests.
func CommandContext(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = waitDelay
	return cmd
}
