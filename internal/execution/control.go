package execution

import (
	"context"
	"errors"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Bounds of input and of waiting.
const (
	MaxInput     = 1 << 20 // bytes of one WriteInput
	DefaultWait  = time.Minute
	MaxWait      = time.Hour
	MaxCondition = 2048 // bytes
	// inputTime exceeds the time that a Guest waits for a Process to read.
	inputTime = 45 * time.Second
)

// WriteInput writes to the standard input of a Process. If the Process does not read all
// of it, WriteInput returns Timeout with the number of bytes it took.
func (s *Service) WriteInput(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, in Input) error {
	n, err := s.writeInput(ctx, tenant, ref, in)
	if err == nil && n < int64(len(in.Data)) {
		return sandbox.Errorf(sandbox.Timeout, "the process does not read: it took %d of %d bytes", n, len(in.Data))
	}
	return err
}

// feedPace is the minimum time between two attempts to write input that a Process did not
// read.
const feedPace = time.Second

// Feed is WriteInput that retries until ctx ends while the Process does not read, and, if
// in has an offset, while the Guest does not answer.
func (s *Service) Feed(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, in Input) error {
	for {
		start := time.Now()
		n, err := s.writeInput(ctx, tenant, ref, in)
		again := in.From != nil && errors.Is(err, sandbox.Unavailable) && ctx.Err() == nil
		if err != nil && !again || err == nil && n == int64(len(in.Data)) {
			return err
		}
		in.Data = in.Data[n:]
		if in.From != nil {
			in.From = new(*in.From + n)
		}
		select { // a hostile Guest may answer at once
		case <-time.After(feedPace - time.Since(start)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// writeInput returns how many bytes of the data the Process has.
func (s *Service) writeInput(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, in Input) (int64, error) {
	if len(in.Data) > MaxInput {
		return 0, sandbox.Errorf(sandbox.TooLarge, "one write may have at most %d bytes", MaxInput)
	}
	ctx, leave := context.WithCancel(ctx) // ends this call's use of the Sandbox
	defer leave()
	sb, guest, id, err := s.open(ctx, tenant, ref)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, inputTime)
	defer cancel()
	n, err := guest.WriteInput(ctx, id, in)
	return n, begun(s.broken(ctx, sb, err))
}

// Signal sends a signal, by its name with or without SIG or its number, to a
// Process and its group.
func (s *Service) Signal(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, signal string) (Process, error) {
	number, err := signalNumber(signal)
	if err != nil {
		return Process{}, err
	}
	return s.about(ctx, tenant, ref, startTime, func(ctx context.Context, g controlled, id string) (ProcessInfo, error) {
		return g.SignalProcess(ctx, id, number)
	})
}

func signalNumber(signal string) (int, error) {
	const last = 31
	if n, err := strconv.Atoi(signal); err == nil && n >= 1 && n <= last {
		return n, nil
	}
	if n := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(signal), "SIG")); n > 0 && n <= last {
		return int(n), nil
	}
	return 0, sandbox.Errorf(sandbox.Invalid, "%.32q is not a signal: give a name like TERM, KILL, INT, HUP or USR1, or a number from 1 to %d", signal, last)
}

// Resize changes the size of a Process's terminal.
func (s *Service) Resize(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, size TerminalSize) (Process, error) {
	if err := size.check(); err != nil {
		return Process{}, err
	}
	return s.about(ctx, tenant, ref, startTime, func(ctx context.Context, g controlled, id string) (ProcessInfo, error) {
		return g.ResizeProcess(ctx, id, size)
	})
}

// WaitResult is the result of Wait.
type WaitResult struct {
	Process
	Met        bool
	HTTPStatus int // of the last response; 0: there was none
	Line       string
	Offset     int64 // after Line
}

// Wait returns when the condition holds, when the Process has ended, or after
// timeout; zero means DefaultWait. For the form of the condition see
// parseCondition.
func (s *Service) Wait(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, condition string, timeout time.Duration) (WaitResult, error) {
	if timeout == 0 {
		timeout = DefaultWait
	}
	if timeout < 0 || timeout > MaxWait {
		return WaitResult{}, sandbox.Errorf(sandbox.Invalid, "timeout_seconds must be more than 0 and at most %d", int(MaxWait.Seconds()))
	}
	c, err := parseCondition(condition)
	if err != nil {
		return WaitResult{}, err
	}
	var w Waited
	p, err := s.about(ctx, tenant, ref, timeout+startTime, func(ctx context.Context, g controlled, id string) (ProcessInfo, error) {
		w, err = g.WaitProcess(ctx, id, c, timeout)
		return w.ProcessInfo, err
	})
	return WaitResult{Process: p, Met: w.Met, HTTPStatus: w.HTTPStatus, Line: w.Line, Offset: w.Offset}, err
}

// parseCondition reads "exit" or nothing, "port:N", "http:N/path" or
// "log:REGEX".
func parseCondition(s string) (Condition, error) {
	if len(s) > MaxCondition {
		return Condition{}, sandbox.Errorf(sandbox.TooLarge, "for has %d bytes; it may have at most %d", len(s), MaxCondition)
	}
	kind, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "" || s == "exit":
		return Condition{}, nil
	case kind == "port":
		port, err := Port(rest)
		return Condition{Port: int(port)}, err
	case kind == "http":
		number, path, _ := strings.Cut(rest, "/")
		port, err := Port(number)
		if err != nil {
			return Condition{}, err
		}
		if u, err := url.Parse("/" + path); err != nil || u.Host != "" || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return Condition{}, sandbox.Errorf(sandbox.Invalid, "the path of for=http:PORT/path is malformed")
		}
		return Condition{HTTP: int(port), Path: "/" + path}, nil
	case kind == "log":
		if _, err := regexp.Compile(rest); err != nil || rest == "" {
			return Condition{}, sandbox.Errorf(sandbox.Invalid, "the expression of for=log:REGEX is not one that RE2 knows").WithCause(err)
		}
		return Condition{Log: rest}, nil
	}
	return Condition{}, sandbox.Errorf(sandbox.Invalid, "for must be exit, port:N, http:N/path or log:REGEX")
}

// Port reads the number of a port; another text is Invalid.
func Port(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, sandbox.Errorf(sandbox.Invalid, "%.16q is not a port: it must be a number from 1 to 65535", s)
	}
	return uint16(n), nil
}
