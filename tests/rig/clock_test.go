package rig

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// clockVariable has this test binary print its time, one line for each line that it reads.
const clockVariable = "RIG_PRINTS_ITS_TIME"

// The wall clock of a running process jumps there and back, and its timers do not.
func TestClock(t *testing.T) {
	if os.Getenv(clockVariable) != "" {
		start := time.Now()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			now := time.Now()
			_, _ = io.WriteString(os.Stdout, strconv.FormatInt(now.Unix(), 10)+" "+strconv.FormatInt(int64(now.Sub(start)), 10)+"\n")
		}
		os.Exit(0)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := Command(self, "-test.run=^TestClock$")
	cmd.Env = append(os.Environ(), clockVariable+"=1")
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	ask := func() (wall time.Time, since time.Duration) {
		t.Helper()
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		unix, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		seconds, wallErr := strconv.ParseInt(unix, 10, 64)
		ns, sinceErr := strconv.ParseInt(rest, 10, 64)
		if err := errors.Join(err, wallErr, sinceErr); err != nil {
			t.Fatal(err)
		}
		return time.Unix(seconds, 0), time.Duration(ns)
	}
	ask()
	c, err := ClockOf(cmd.Process.Pid)
	if errors.Is(err, ErrClock) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []time.Duration{0, 4 * time.Minute, -3 * time.Minute, 0} {
		if err := c.Set(offset); err != nil {
			t.Fatal(err)
		}
		wall, since := ask()
		if off := time.Until(wall) - offset; off < -Patience/2 || off > Patience/2 {
			t.Errorf("with an offset of %v, its clock is off by %v", offset, off+offset)
		}
		if since < 0 || since > Patience {
			t.Errorf("with an offset of %v, %v have passed for its timers", offset, since)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ClockOf(1 << 30); err == nil {
		t.Error("the clock of no process is set")
	}
}
