package server

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// maxBirths bounds how many PIDs are looked at in one call. A process that is missed
// because of it joins its group later, by joinLate.
const maxBirths = 1024

// births finds processes that were born since it was made. The thousands of older
// processes cost nothing.
type births struct {
	own   []byte // command line of this process, which a child has until its exec
	last  int    // the highest PID so far
	young []int  // born, and before their exec
}

func newBirths() *births {
	own, _ := os.ReadFile("/proc/self/cmdline")
	return &births{own: own, last: lastPid()}
}

// named returns the PID of the process whose last argument is name; 0 when no such
// process was born so far.
func (b *births) named(name string) int {
	last := lastPid()
	if last < b.last { // PIDs wrapped around
		b.last = 0
	}
	for pid := max(b.last, last-maxBirths) + 1; pid <= last; pid++ {
		b.young = append(b.young, pid)
	}
	b.last = last
	var young []int
	for _, pid := range b.young {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		switch {
		case err != nil: // it has ended
		case isNamed(args, name):
			return pid
		case len(args) == 0 || bytes.Equal(args, b.own):
			young = append(young, pid)
		}
	}
	b.young = young
	return 0
}

// lastPid is the most recent PID (proc_loadavg(5)); 0 when it cannot be read.
func lastPid() int {
	load, _ := os.ReadFile("/proc/loadavg")
	_, field, _ := bytes.Cut(load, []byte("/"))
	_, field, _ = bytes.Cut(field, []byte(" "))
	pid, _ := strconv.Atoi(string(bytes.TrimSpace(field)))
	return pid
}
