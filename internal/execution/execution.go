// Package execution runs code in Sandboxes: it selects the program for a language,
// enforces timeouts and output bounds, and maps ends to statuses.
package execution

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Defaults and bounds of an execution.
const (
	DefaultTimeout = 60 * time.Second
	MaxTimeout     = time.Hour
	// NoTimeout, as the Timeout of a Request, lets the program run without a limit. It
	// needs a Sandbox.
	NoTimeout        time.Duration = -1
	DefaultMaxOutput               = 1 << 20  // bytes, each stream
	MaxMaxOutput                   = 16 << 20 // bytes, each stream
	MaxCode                        = 1 << 20  // bytes
	MaxStdin                       = 1 << 20  // bytes
	maxCwd                         = 4096     // bytes
	maxUser                        = 64       // bytes
)

const (
	// guardTime is the extra time that a Guest has, beyond the timeout that it enforces,
	// to report that timeout.
	guardTime = 5 * time.Second
	// lossTime bounds the wait for the record of a Sandbox's end after its connection
	// broke.
	lossTime = 3 * time.Second
	// releaseTime bounds the time to end a borrowed Sandbox.
	releaseTime = 30 * time.Second
	// borrowMargin is how much longer than its execution a borrowed Sandbox may live, in
	// case it is never released.
	borrowMargin = time.Minute
)

// Status says how an execution ended.
type Status string

const (
	StatusOK       Status = "ok"
	StatusError    Status = "error"     // the code failed, or could not be started
	StatusTimeout  Status = "timeout"   // it ran longer than it was given
	StatusOOM      Status = "oom"       // it was ended to free memory
	StatusPids     Status = "pids"      // it reached the limit of processes
	StatusDiskFull Status = "disk_full" // it reached the limit of the disk
	StatusKilled   Status = "killed"    // a signal ended it, or its Sandbox ended under it
	StatusPaused   Status = "paused"    // its Sandbox was paused: it continues on resume
)

// Statuses lists every Status.
func Statuses() []Status {
	return []Status{StatusOK, StatusError, StatusTimeout, StatusOOM, StatusPids, StatusDiskFull, StatusKilled, StatusPaused}
}

// Request asks for one execution. Zero fields mean the defaults.
type Request struct {
	Sandbox   string // ID or name; empty: one is borrowed for this execution
	Code      string
	Language  string        // may be empty with a Context
	Context   string        // ID of a context; empty: the default one, where the language has any
	Timeout   time.Duration // zero: DefaultTimeout; at most MaxTimeout, or NoTimeout
	Env       map[string]string
	Cwd       string
	User      string
	Stdin     string
	MaxOutput int // bytes kept of each stream; zero: DefaultMaxOutput

	// Key is an idempotency key: the request follows the execution that an earlier
	// request with this Key started in the Sandbox. That execution outlives its client
	// for a while. Empty: none.
	Key string
	// Resume is the position that an earlier request's emit had reached.
	Resume Cursor
	// Again is whether this is not the first request with Key: if no Process with the Key
	// is found, nothing is run.
	Again bool
}

// Cursor is a listener's position.
type Cursor struct {
	Stdout, Stderr int64 // offset of the first byte of each stream that the listener lacks
	Values         int   // number that the listener has
}

// Result describes a finished execution. It holds spooled output until Close.
type Result struct {
	SandboxID     string
	ProcessID     string // ID of the Process as clients see it; empty: the Guest is of an earlier version
	Offset        int64  // of the next output
	Status        Status
	Stdout        *spool.Spool // valid UTF-8, at most MaxOutput bytes
	Stderr        *spool.Spool
	StdoutBytes   *spool.Spool // at most MaxOutput; nil: same as Stdout
	StderrBytes   *spool.Spool
	StdoutDropped int64 // bytes beyond Stdout
	StderrDropped int64
	ExitCode      int      // 128 + signal when a signal ended it, 124 after a timeout
	Problem       *Problem // nil when Status is StatusOK
	Duration      time.Duration
	Cell          *Cell // nil: not in a context
	Values        Values
	ValuesDropped int64 // beyond the limit of one execution
}

// Close releases the output and values of a Result.
func (r *Result) Close() {
	for _, s := range []*spool.Spool{r.Stdout, r.Stderr, r.StdoutBytes, r.StderrBytes, &r.Values.spool} {
		s.Close()
	}
}

// Problem explains why a Result is not StatusOK.
type Problem struct {
	// Name is the name of an exception, or "exit_code", "not_started", "compile_error",
	// "signal", "timeout", "oom", "pids", "disk_full", "interrupted",
	// "context_restarted", "sandbox_paused" or "sandbox_ended".
	Name      string
	Message   string
	Traceback string // of an exception
}

// EventKind is the kind of an Event.
type EventKind string

const (
	EventStart  EventKind = "start" // the Sandbox is known; SandboxID is set
	EventStdout EventKind = "stdout"
	EventStderr EventKind = "stderr"
	EventValue  EventKind = "display" // Value is set
	EventGap    EventKind = "dropped" // Dropped is set
)

// Event reports progress of running code. Texts are valid UTF-8; the Texts of one stream,
// joined, are the whole stream.
type Event struct {
	Kind      EventKind
	SandboxID string // of a start, like ProcessID
	ProcessID string // as in a Result
	Text      string
	Bytes     []byte // the exact bytes, where Text differs from them; else nil
	Value     *Value
	Dropped   int64  // bytes of output that are no longer kept
	Next      Cursor // of a listener that has this Event
}

// Config holds the dependencies of a Service.
type Config struct {
	Sandboxes sandboxes
	Guests    *Guests
	// Spools bounds unread Results; nil: no bound.
	Spools *spool.Budget
	Log    *slog.Logger
	// Observe is called for every execution that ended; may be nil.
	Observe func(language string, status Status, took time.Duration)
	// Event is called for executions that a limit ended; may be nil.
	Event func(e sandbox.Event)
}

// sandboxes is the part of the session manager that an execution calls to find a Sandbox
// or borrow one.
type sandboxes interface {
	Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error)
	Get(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error)
	End(ctx context.Context, tenant sandbox.TenantID, idOrName string, cause sandbox.Cause) (sandbox.Sandbox, error)
}

// Service runs code. Its methods are safe for concurrent use.
type Service struct {
	Config
}

// New returns a Service.
func New(c Config) *Service {
	if c.Event == nil {
		c.Event = func(sandbox.Event) {}
	}
	if c.Observe == nil {
		c.Observe = func(string, Status, time.Duration) {}
	}
	return &Service{Config: c}
}

// Run runs req to its end. emit, if not nil, is called serially for each Event; its error
// ends the execution and is returned. The end of ctx ends the execution too, unless its
// cause is Unavailable: then this server is shutting down, and the client reconnects to
// the next one. With a Key, the execution first continues for abandonTime, in which a
// request with the same Key can take it up. Code that fails, times out or dies with its
// Sandbox is a Result, not an error. So is code whose Sandbox was paused; it continues on
// resume.
//
// Run returns Invalid or TooLarge for a request that cannot be run, NotFound for an
// absent Sandbox, Conflict for a Sandbox that is not running, Unavailable for a Sandbox
// that does not answer, and any error of creating a borrowed Sandbox.
func (s *Service) Run(ctx context.Context, tenant sandbox.TenantID, req Request, emit func(Event) error) (Result, error) {
	lang, err := req.complete()
	if err != nil {
		return Result{}, err
	}
	if err := s.Spools.Enter(ctx, string(tenant), 2*int64(req.MaxOutput)); err != nil {
		return Result{}, err
	}
	if req.Sandbox == "" {
		return s.runBorrowed(ctx, tenant, lang, req, emit)
	}
	return s.run(ctx, tenant, lang, req, emit)
}

// complete fills in defaults and checks everything that needs no Sandbox. Afterwards a
// zero Timeout means no timeout.
func (r *Request) complete() (language, error) {
	switch r.Timeout {
	case 0:
		r.Timeout = DefaultTimeout
	case NoTimeout:
		if r.Timeout = 0; r.Sandbox == "" {
			return language{}, sandbox.Errorf(sandbox.Invalid, "timeout_seconds 0, for no limit, needs a sandbox_id: a sandbox that is borrowed for one execution needs a limit")
		}
	}
	if r.MaxOutput == 0 {
		r.MaxOutput = DefaultMaxOutput
	}
	lang, err := r.language()
	if err != nil {
		return lang, err
	}
	if err := r.checkSizes(); err != nil {
		return lang, err
	}
	_, noBound := OutputBound(r.MaxOutput, MaxMaxOutput)
	switch {
	case strings.TrimSpace(r.Code) == "":
		err = sandbox.Errorf(sandbox.Invalid, "code is empty")
	case strings.ContainsRune(r.Code+r.Cwd+r.User, 0):
		err = sandbox.Errorf(sandbox.Invalid, "code, cwd and user must not hold a zero byte")
	case r.Timeout < 0 || r.Timeout > MaxTimeout:
		err = sandbox.Errorf(sandbox.Invalid, "timeout_seconds must be more than 0 and at most %d, or 0 for no limit", int(MaxTimeout.Seconds()))
	case noBound != nil:
		err = noBound
	case !validKey(r.Key):
		err = errKeyForm()
	case r.Key != "" && r.Sandbox == "":
		err = sandbox.Errorf(sandbox.Invalid, "an Idempotency-Key needs a sandbox_id: a sandbox that is borrowed for one execution ends with its request")
	default:
		err = sandbox.CheckEnv(r.Env)
	}
	return lang, err
}

// language finds the Request's language. It may be left out when a Context is named.
func (r *Request) language() (language, error) {
	if r.Context == "" {
		return languageNamed(r.Language)
	}
	if r.Sandbox == "" {
		return language{}, sandbox.Errorf(sandbox.Invalid, "context_id names a context of a sandbox: sandbox_id is missing")
	}
	if r.User != "" {
		return language{}, sandbox.Errorf(sandbox.Invalid, "a context has its own user: leave out user or context_id")
	}
	if r.Language == "" {
		return language{kept: true}, nil
	}
	lang, err := languageNamed(r.Language)
	lang.kept = lang.kept || lang.asked
	if err == nil && !lang.kept {
		err = sandbox.Errorf(sandbox.Invalid, "%s keeps no state between executions; a context runs %s", lang.name, keptNames())
	}
	return lang, err
}

func (r *Request) checkSizes() error {
	for _, f := range []struct {
		name string
		size int
		max  int
	}{
		{"code", len(r.Code), MaxCode},
		{"stdin", len(r.Stdin), MaxStdin},
		{"cwd", len(r.Cwd), maxCwd},
		{"user", len(r.User), maxUser},
	} {
		if f.size > f.max {
			return sandbox.Errorf(sandbox.TooLarge, "%s has %d bytes; it may have at most %d", f.name, f.size, f.max)
		}
	}
	return nil
}

// runBorrowed runs req in a Sandbox created for it, which is always ended.
func (s *Service) runBorrowed(ctx context.Context, tenant sandbox.TenantID, lang language, req Request, emit func(Event) error) (Result, error) {
	sb, err := s.Sandboxes.Create(ctx, tenant, sandbox.CreateRequest{
		Timeout: max(sandbox.DefaultAcquireTimeout, req.Timeout+guardTime+borrowMargin),
	})
	if err != nil {
		return Result{}, fmt.Errorf("borrow a sandbox: %w", err)
	}
	defer s.release(ctx, tenant, sb.ID)
	req.Sandbox = sb.ID
	return s.run(ctx, tenant, lang, req, emit)
}

// release ends a borrowed Sandbox, even after ctx has ended. It ignores NotFound.
func (s *Service) release(ctx context.Context, tenant sandbox.TenantID, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	s.Guests.Forget(id)
	if _, err := s.Sandboxes.End(ctx, tenant, id, sandbox.CauseReleased); err != nil && !errors.Is(err, sandbox.NotFound) {
		s.Log.ErrorContext(ctx, "releasing a borrowed sandbox failed; its deadline ends it",
			telemetry.KeySandbox, id, telemetry.KeyError, err.Error())
	}
}

// End ends a Tenant's Sandbox at its owner's request and returns its last record. It
// returns NotFound for a Sandbox that is absent or has ended.
func (s *Service) End(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	if err := s.Guests.TellUse(ctx); err != nil { // so that the termination record has the last output
		s.Log.WarnContext(ctx, "reporting the use of sandboxes before an end failed", telemetry.KeyError, err.Error())
	}
	sb, err := s.Sandboxes.End(ctx, tenant, idOrName, sandbox.CauseReleased)
	if err != nil {
		return sb, Absent(idOrName, err)
	}
	s.Guests.Forget(sb.ID)
	return sb, nil
}

// limits reports whether a limit of the Sandbox ended an execution. A timeout does not
// count: the client sets it.
func limits(s Status) bool { return s == StatusOOM || s == StatusPids || s == StatusDiskFull }

// errPaused is the error of a request during which the Sandbox was paused.
func errPaused(cause error) error {
	e := sandbox.Errorf(sandbox.Unavailable, "the sandbox was paused just now: try again, and it resumes").WithCause(cause)
	e.RetryAfter = time.Second
	return e
}

// awaitEnd polls the record of sb until its Boot has ended, or for lossTime.
func (s *Service) awaitEnd(ctx context.Context, sb sandbox.Sandbox) (now sandbox.Sandbox, ended bool, err error) {
	late := time.NewTimer(lossTime)
	defer late.Stop()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		now, err = s.Sandboxes.Get(ctx, sb.Tenant, sb.ID)
		if err != nil || !now.Live() || now.Boot != sb.Boot {
			return now, err == nil, err
		}
		select {
		case <-ctx.Done():
			return now, false, context.Cause(ctx)
		case <-late.C:
			return now, false, nil
		case <-time.After(pause):
		}
	}
}

// statusOf maps the end of a Sandbox to the Status of code that ran in it.
func statusOf(cause sandbox.Cause) Status {
	switch cause {
	case sandbox.CauseOOM:
		return StatusOOM
	case sandbox.CauseDiskFull:
		return StatusDiskFull
	}
	return StatusKilled
}

// result combines the Guest's report of the end with the kept output.
func result(id string, req Request, end RunEnd, out *output) Result {
	res := Result{
		SandboxID:     id,
		Offset:        out.next,
		Stdout:        &out.stdout.kept,
		StdoutBytes:   out.stdout.exact,
		StderrBytes:   out.stderr.exact,
		StdoutDropped: out.stdout.dropped + max(end.StdoutDropped, 0) + out.gaps,
		Stderr:        &out.stderr.kept,
		StderrDropped: out.stderr.dropped + max(end.StderrDropped, 0),
		Cell:          out.cell,
		Values:        out.values,
		ValuesDropped: out.valuesDropped + max(end.ResultsDropped, 0),
	}
	res.Status, res.ExitCode, res.Problem = verdict(req, end)
	switch {
	case res.Problem == nil || out.failure == nil || res.Status != StatusError:
	case end.Status == StatusOK:
		res.Problem = &Problem{out.failure.Name, out.failure.Message, out.failure.Traceback}
	}
	if res.Cell != nil && end.Lost {
		res.Cell.Lost = true
		if res.Problem != nil {
			res.Problem.Message += "; the context's variables are gone with its interpreter"
		}
	}
	return res
}

// Exit codes as in shells.
const (
	exitTimeout = 124 // as of timeout(1)
	exitUnknown = 125 // it has not ended
	exitNotRun  = 126
	exitSignal  = 128 // and the signal's number
	exitKilled  = exitSignal + int(syscall.SIGKILL)
)

// verdict maps an end to the client's status, exit code and Problem.
func verdict(req Request, end RunEnd) (Status, int, *Problem) {
	code := exitCode(end)
	switch end.Status {
	case StatusOK:
		if code == 0 {
			return StatusOK, 0, nil
		}
		if end.Unmade {
			return StatusError, code, problem("compile_error", "the code could not be compiled, or written to be; stderr says why")
		}
		return StatusError, code, problem("exit_code", "it ended with exit code %d", code)
	case StatusTimeout:
		return StatusTimeout, exitTimeout, problem("timeout", "it ran longer than its limit of %s", req.Timeout)
	case StatusOOM:
		return StatusOOM, cmp.Or(code, exitKilled), problem("oom", "%s", cmp.Or(end.Message, "it was ended because the sandbox ran out of memory"))
	case StatusPids:
		return StatusPids, cmp.Or(code, exitKilled), problem("pids", "%s", cmp.Or(end.Message, "it reached the sandbox's limit of processes"))
	case StatusDiskFull:
		return StatusDiskFull, cmp.Or(code, exitKilled), problem("disk_full", "%s", cmp.Or(end.Message, "the disk of the sandbox is full"))
	case StatusPaused:
		return StatusPaused, exitUnknown, problem("sandbox_paused", "%s", end.Message)
	case StatusKilled:
		if end.Message != "" && end.Lost {
			return StatusKilled, exitKilled, problem("context_restarted", "%s", end.Message)
		}
		if end.Signal > 0 {
			return StatusKilled, code, problem("signal", "signal %d ended it: %s", code-exitSignal, syscall.Signal(code-exitSignal))
		}
		return StatusKilled, exitKilled, problem("sandbox_ended", "%s", cmp.Or(end.Message, "its sandbox ended"))
	}
	return StatusError, cmp.Or(code, exitNotRun), problem("not_started", "%s", cmp.Or(end.Message, "it could not be started"))
}

func problem(name, format string, args ...any) *Problem {
	return &Problem{Name: name, Message: fmt.Sprintf(format, args...)}
}

// exitCode returns a shell's exit code for the end. It is within 0 to 255 even if the
// Guest's is not.
func exitCode(end RunEnd) int {
	if end.Signal > 0 {
		return exitSignal + end.Signal&0x7f
	}
	return end.ExitCode & 0xff
}
