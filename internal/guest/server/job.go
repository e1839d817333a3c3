package server

import (
	"fmt"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Job is a running program with everything it starts. The caller that starts one
// takes its end from Exited, or ends it by Terminate, and then calls Release.
type Job struct {
	guest   *Guest
	run     *run
	child   *Child
	command Command
	shell   bool // a bash that was started ahead could have been it
}

// StartJob is Start for a program of the user: its descendants can be found again,
// and an end by lack of memory is detected.
func (g *Guest) StartJob(c Command, fds []int, terminal bool) (*Job, error) {
	r := &run{mark: fmt.Sprintf("%s=%d-%d", runMark, os.Getpid(), g.runs.Add(1)), start: math.MaxInt64}
	c.Env = append(c.Env, r.mark)
	g.shells.disturbed()
	child, err := g.Start(c, fds, terminal)
	if err != nil {
		return nil, err
	}
	r.leader = child.PID
	g.track(r)
	return &Job{guest: g, run: r, child: child, command: c}, nil
}

// PID is the program's process ID, and also the ID of its group and session.
func (j *Job) PID() int { return j.child.PID }

// Exited yields the exit status of the program, once.
func (j *Job) Exited() <-chan syscall.WaitStatus { return j.child.Exited }

// Countdown is Guest.Countdown.
func (j *Job) Countdown(d time.Duration) (expired <-chan struct{}, stop func()) {
	return j.guest.Countdown(d)
}

// Release records that the Job has ended.
func (j *Job) Release() {
	j.guest.untrack(j.run)
	j.guest.shells.disturbed()
	if j.shell {
		j.guest.shells.used(j.guest)
	}
}

// Signal sends a signal to the program's group.
func (j *Job) Signal(s syscall.Signal) error { return unix.Kill(-j.run.leader, s) }

// claimHidden makes every process that began at this moment or later, and has wiped
// all traces of its starter, a part of the Job. It is for short Jobs.
func (j *Job) claimHidden(ticks int64) { j.run.start = ticks }

// Terminate ends the whole Job: SIGTERM, a second's grace, SIGKILL.
func (j *Job) Terminate() syscall.WaitStatus {
	known, asked := askFamily(j.run)
	if !asked {
		return <-j.child.Exited
	}
	var status syscall.WaitStatus
	exited := false
	select {
	case status = <-j.child.Exited:
		exited = true
	case <-time.After(termGrace):
	}
	killFamily(j.run, known)
	if !exited {
		status = <-j.child.Exited
	}
	return status
}

// Kill ends the whole Job at once, for a caller that does not need the status.
func (j *Job) Kill() { killFamily(j.run, map[int]bool{}) }

// Cut is the reason why a Job was ended before it ended by itself.
type Cut int

// Reasons why a Job was ended.
const (
	CutByNobody Cut = iota
	CutByTimeout
	CutByClient
)

// Judge turns an end into a status.
func (j *Job) Judge(status syscall.WaitStatus, why Cut) RunResult {
	g, r, c := j.guest, j.run, j.command
	result := RunResult{Status: StatusOK, ExitCode: status.ExitStatus()}
	if status.Signaled() {
		result.Status, result.ExitCode, result.Signal = StatusKilled, -1, int(status.Signal())
	}
	r.mu.Lock()
	oom := r.oom || result.Signal == int(syscall.SIGKILL) && why == CutByNobody && g.Reaper.LackedMemory()
	r.mu.Unlock()
	switch {
	case oom && (result.Status != StatusOK || result.ExitCode != 0):
		result.Status = StatusOOM
	case why == CutByTimeout:
		result.Status = StatusTimeout
	case why == CutByClient:
		result.Status = StatusKilled
	case result.Status == StatusOK && result.ExitCode == 0:
	case crowded(c.User.UID, g.pidsLimit()):
		result.Status = StatusPids
	case slices.ContainsFunc([]string{c.Cwd, "/", "/tmp"}, Full):
		result.Status = StatusDiskFull
	}
	return result
}

// Piped is a program with pipes.
type Piped struct {
	*Job
	Stdin          *os.File // nil: it has no input
	Stdout, Stderr *os.File
}

func (p *Piped) close() {
	for _, f := range []*os.File{p.Stdin, p.Stdout, p.Stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// StartPiped starts a command with a pipe for each output, and one for its input if
// it has any. For a bash command it uses a bash that was started ahead, if one
// fits.
func (g *Guest) StartPiped(c Command, input bool) (*Piped, error) {
	code, shell := shellCode(c)
	if shell {
		if p := g.takeShell(c, code, input); p != nil {
			p.shell = true
			return p, nil
		}
	}
	p, err := g.startPiped(c, input, func(theirs []int) []int { return theirs })
	if err == nil {
		p.shell = shell
	}
	return p, err
}

// startPiped starts a command with the descriptors that place returns for the
// program's ends of the pipes.
func (g *Guest) startPiped(c Command, input bool, place func(theirs []int) []int) (_ *Piped, err error) {
	p := new(Piped)
	theirs := make([]int, 3)
	held := 0 // how many of theirs, counted from the last one, are ours to close
	defer func() {
		for _, fd := range theirs[3-held:] {
			unix.Close(fd)
		}
		if err != nil {
			p.close()
		}
	}()
	if p.Stderr, theirs[2], err = OutputPipe(); err != nil {
		return nil, err
	}
	held++
	if p.Stdout, theirs[1], err = OutputPipe(); err != nil {
		return nil, err
	}
	held++
	if input {
		if p.Stdin, theirs[0], err = InputPipe(); err == nil {
			held++
		}
	} else {
		theirs[0], err = noInput()
	}
	if err != nil {
		return nil, err
	}
	if p.Job, err = g.StartJob(c, place(theirs), false); err != nil {
		return nil, err
	}
	return p, nil
}
