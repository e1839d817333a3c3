//go:build linux

package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// What our packages do before main runs is done for every sentry several times over,
// and stays in its heap: a thousand of them live side by side.
func TestLittleIsDoneBeforeMain(t *testing.T) {
	const most = 16 << 10 // bytes that a package may allocate
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^init (github\.com/cloud-sandbox/\S+) .* (\d+) bytes, \d+ allocs$`)
	seen := 0
	for s := bufio.NewScanner(&trace); s.Scan(); {
		m := line.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		seen++
		if n, err := strconv.Atoi(m[2]); err != nil || n > most {
			t.Errorf("%s allocates %s bytes before main", m[1], m[2])
		}
	}
	if seen == 0 {
		t.Fatalf("no package of ours in %q", trace.String())
	}
}
