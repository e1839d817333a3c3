package rig

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A child that keeps the pipe open does not block a test.
func TestCommandsEnd(t *testing.T) {
	t.Parallel()
	start := time.Now()
	out, err := Command("sh", "-c", "echo begun; sleep 300 & exit 0").CombinedOutput()
	if !errors.Is(err, exec.ErrWaitDelay) || string(out) != "begun\n" {
		t.Errorf("%q, %v", out, err)
	}
	if took := time.Since(start); took > 4*waitDelay {
		t.Errorf("it took %v", took)
	}
}

// Tests of a built server start programs only with Command and CommandContext.
func TestEveryCommandEnds(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, filepath.Join("..", "rig")) || strings.HasPrefix(path, filepath.Join("..", "perf")) {
			return err
		}
		text, err := os.ReadFile(path)
		for _, call := range []string{"exec.Command(", "exec.CommandContext("} {
			if strings.Contains(string(text), call) {
				t.Errorf("%s calls %s): use rig.Command, whose end nothing delays", path, call)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
