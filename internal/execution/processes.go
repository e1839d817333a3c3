package execution

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// Defaults and bounds of a Process.
const (
	DefaultYield         = 10 * time.Second
	MaxYield             = 10 * time.Minute
	DefaultProcessOutput = 1 << 20 // bytes of output in the response to a start
	MaxProcessOutput     = 8 << 20
	MaxProcessTimeout    = 24 * time.Hour
	MaxCommand           = 96 << 10 // bytes; of all arguments together too
	MaxArgs              = 1024
	MaxIdempotencyKey    = 255 // bytes
	MaxTerminalSide      = 4096
)

// Processes starts, lists and ends the Processes in a Guest. They are named by IDs of the
// form guestProcessID or by names. All answers are the Guest's claims, within bounds.
//
// Errors are as in Guest: NotFound for a Process that is absent or no longer kept,
// Conflict if its state does not allow the call.
type Processes interface {
	// StartProcess starts a Process and waits for its end for at most req.Wait.
	StartProcess(ctx context.Context, req ProcessStart) (ProcessStarted, error)
	// ListProcesses returns the running Processes and the last ended ones, in the order
	// of their start.
	ListProcesses(ctx context.Context) ([]ProcessInfo, error)
	GetProcess(ctx context.Context, id string) (ProcessInfo, error)
	// WaitProcess returns when the condition holds, when it cannot hold because the
	// Process has ended, or after timeout.
	WaitProcess(ctx context.Context, id string, c Condition, timeout time.Duration) (Waited, error)
	// EndProcess ends a Process and everything it started, and returns after that. Code
	// in a context is interrupted.
	EndProcess(ctx context.Context, id string) (ProcessInfo, error)
	// EndProcessOf is EndProcess for the Process started with a key.
	EndProcessOf(ctx context.Context, key string) (ProcessInfo, error)
	// AbandonProcess ends a Process after a while, unless a client begins to follow it by
	// Run, Execute or ReadOutput before. It returns at once.
	AbandonProcess(ctx context.Context, id string, after time.Duration) error
}

// ProcessStreams reads the output of the Processes in a Guest and sends them input and
// signals. The rules of Processes apply.
type ProcessStreams interface {
	// ReadOutput calls handle serially: first with the Process and the start position,
	// then with the output from there on, and last with the Process again. With follow it
	// continues until the Process has ended. A negative from counts from the end. An
	// error of handle ends it and is returned.
	ReadOutput(ctx context.Context, id string, from int64, follow bool, handle func(Output) error) error
	// WriteInput returns how many bytes of the data the Process has now. They are fewer
	// than all if it does not read.
	WriteInput(ctx context.Context, id string, in Input) (int64, error)
	SignalProcess(ctx context.Context, id string, signal int) (ProcessInfo, error)
	ResizeProcess(ctx context.Context, id string, size TerminalSize) (ProcessInfo, error)
}

// Input is standard input for a Process.
type Input struct {
	Data []byte
	EOF  bool // Data ends the input
	// From is the offset of Data's first byte in all input from WriteInput. Bytes that
	// the Process already has are skipped. Nil: Data follows the input so far.
	From *int64
}

// TerminalSize is in characters.
type TerminalSize struct{ Cols, Rows int }

// ProcessStart asks a Guest to start a Process.
type ProcessStart struct {
	ID      string
	Args    []string // Args[0] is looked up in PATH; empty: Command
	Command string   // for bash
	Shell   string   // session with the initial state of Command; empty: none
	Name    string
	User    string // empty: the Sandbox's default
	Cwd     string // empty: the Sandbox's default
	Env     map[string]string
	PTY     *TerminalSize // nil: no terminal
	Stdin   []byte
	// KeepStdin leaves the input open after Stdin.
	KeepStdin   bool
	Timeout     time.Duration // zero: none
	Key         string        // idempotency key; empty: none
	Fingerprint []byte        // distinguishes requests with the same Key
	Wait        time.Duration // for its end; zero: do not wait
	MaxOutput   int64         // bytes of output in the response
}

// ProcessStarted is a Guest's answer to a ProcessStart.
type ProcessStarted struct {
	ProcessInfo
	Repeated bool // an earlier request with the same Key started it
	Output   []OutputPiece
}

// ProcessInfo describes a Process, as the Guest claims.
type ProcessInfo struct {
	ID          string
	Name        string
	PID         int64
	Command     string // shortened
	Cwd         string
	User        string
	Shell       string
	PTY         *TerminalSize // nil: it has no terminal
	StartedAt   time.Time
	EndedAt     time.Time // zero while it runs
	Timeout     time.Duration
	OutputStart int64   // offset of the first kept byte
	OutputEnd   int64   // bytes written in all
	End         *RunEnd // nil while it runs
}

// OutputPiece is contiguous output of one stream.
type OutputPiece struct {
	Offset int64 // of its first byte, over both streams
	Stderr bool
	Data   []byte
}

// Output is one step of ReadOutput.
type Output struct {
	Process *ProcessInfo // in the first and last step
	Pieces  []OutputPiece
	Next    int64 // offset after Pieces
}

// Condition is the condition of a wait: the field that is set, or the end of the Process
// if none is.
type Condition struct {
	Port int    // a TCP port accepts on the loopback address
	HTTP int    // an HTTP request to this port is answered below 500
	Path string // of that request, with the query
	Log  string // a regular expression that a line of output matches
}

// Waited is the result of WaitProcess.
type Waited struct {
	ProcessInfo
	Met        bool
	HTTPStatus int
	Line       string // the matching line, shortened
	Offset     int64  // after Line
}

// A Process is a program in a Sandbox as its client sees it.
type Process struct {
	ProcessInfo
	SandboxID string
	PublicID  string // includes the timeline
	Timeline  int64

	// The following fields are set once it has ended.
	Status   Status
	ExitCode int
	Problem  *Problem // nil when Status is StatusOK
}

// ProcessRef names a Process.
type ProcessRef struct {
	Sandbox string // ID or name
	Process string // ID or name
}

// StartRequest asks for a Process. Zero fields mean the defaults.
type StartRequest struct {
	Sandbox    string // ID or name
	Command    string // for bash; or else Args
	Args       []string
	Shell      string
	Name       string
	User       string
	Cwd        string
	Env        map[string]string
	PTY        *TerminalSize
	Stdin      string
	KeepStdin  bool
	Background bool          // respond at once
	Yield      time.Duration // time until the response; zero: DefaultYield
	MaxOutput  int           // bytes of output in the response; zero: DefaultProcessOutput
	Timeout    time.Duration // of the Process; zero: none
	Key        string        // Idempotency-Key; empty: none
}

// Started is the response to a StartRequest.
type Started struct {
	Process
	Repeated bool         // an earlier request with the same Key started it
	Stdout   *spool.Spool // valid UTF-8
	Stderr   *spool.Spool
	// The exact bytes of a stream whose text has replacements; else nil.
	StdoutBytes, StderrBytes *spool.Spool

	Offset int64 // where Stdout and Stderr end
}

// Close releases the output of a Started.
func (s *Started) Close() {
	for _, kept := range []*spool.Spool{s.Stdout, s.Stderr, s.StdoutBytes, s.StderrBytes} {
		kept.Close()
	}
}

var (
	processNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
	processIDPattern   = regexp.MustCompile(`^p([0-9]{1,18})-([a-z0-9]{12,32})$`)
	guestProcessID     = regexp.MustCompile(`^#[a-z0-9]{12,32}$`)
)

// ValidGuestProcessID reports whether s has the form of a Guest's Process ID. No name has
// this form.
func ValidGuestProcessID(s string) bool { return guestProcessID.MatchString(s) }

// newProcessID returns a fresh ID in the Guest's form.
func newProcessID() string {
	const length = 16
	return "#" + strings.ToLower(rand.Text())[:length]
}

// publicID returns the ID that clients see for a Guest's Process ID.
func publicID(timeline int64, guestID string) string {
	return "p" + strconv.FormatInt(timeline, 10) + "-" + strings.TrimPrefix(guestID, "#")
}

// guestID returns the ID that the Guest of sb uses for the client's ID or name. Conflict
// when the ID is of an earlier timeline of sb.
func guestID(sb sandbox.Sandbox, process string) (string, error) {
	m := processIDPattern.FindStringSubmatch(process)
	if m == nil {
		if !processNamePattern.MatchString(process) {
			return "", sandbox.Errorf(sandbox.Invalid, "%.64q is neither the ID nor the name of a process", process)
		}
		return process, nil
	}
	timeline, err := strconv.ParseInt(m[1], 10, 64)
	switch {
	case err != nil || timeline > sb.Timeline:
		return "", sandbox.Errorf(sandbox.NotFound, "no such process")
	case timeline < sb.Timeline:
		return "", sandbox.Errorf(sandbox.Conflict, "this process ID is of timeline %d, and the sandbox has gone back to an earlier state since: its timeline is %d; list its processes", timeline, sb.Timeline)
	}
	return "#" + m[2], nil
}

// StartProcess starts a Process and returns when it has ended, or after req.Yield with
// the output so far. The output is spooled until Close. The Process continues after ctx
// ends.
//
// It returns Invalid or TooLarge for an invalid request, NotFound for an absent Sandbox,
// Conflict for a Sandbox that is not running, for a name or shell in use and for a Key of
// another request, and Exhausted at the limit of processes.
func (s *Service) StartProcess(ctx context.Context, tenant sandbox.TenantID, req StartRequest) (Started, error) {
	if err := req.complete(); err != nil {
		return Started{}, err
	}
	sb, guest, err := s.Guests.Open(ctx, tenant, req.Sandbox)
	if err != nil {
		return Started{}, err
	}
	start := req.start()
	ctx, cancel := context.WithTimeout(ctx, start.Wait+startTime)
	defer cancel()
	got, err := guest.StartProcess(ctx, start)
	if err != nil {
		return Started{}, begun(s.broken(ctx, sb, err))
	}
	out := startOutput{service: s, sb: sb, left: req.MaxOutput}
	for i := range out.texts {
		out.texts[i] = text{cap: math.MaxInt, kept: s.Spools.New(string(tenant))}
	}
	out.add(got.Output)
	if out.left > 0 && out.taken >= start.MaxOutput { // there is more, or there was
		_ = guest.ReadOutput(ctx, got.ID, out.end, false, func(o Output) error { // a failure is ignored: the client can read the rest later
			if o.Process != nil {
				got.ProcessInfo = *o.Process
			}
			out.add(o.Pieces)
			return out.full()
		})
	}
	return out.started(got), nil
}

// firstOutput is the number of output bytes in the Guest's answer to a start. Further
// output is read in pieces.
const firstOutput = 64 << 10

// startTime is the extra time that a Guest has, beyond the requested wait, to answer a
// call about a Process.
const startTime = 20 * time.Second

// complete fills in defaults and checks everything that needs no Sandbox.
func (r *StartRequest) complete() error {
	r.Yield = cmp.Or(r.Yield, DefaultYield)
	r.MaxOutput = cmp.Or(r.MaxOutput, DefaultProcessOutput)
	if r.PTY != nil && r.Command == "" && len(r.Args) == 0 && r.Shell == "" {
		r.Args = []string{"bash", "-l"}
	}
	_, noYield := YieldOf(r.Yield.Milliseconds())
	_, noBound := OutputBound(r.MaxOutput, MaxProcessOutput)
	if err := cmp.Or(r.checkProgram(), r.checkSizes(), r.PTY.check(), noYield, noBound); err != nil {
		return err
	}
	switch {
	case r.Timeout < 0 || r.Timeout > MaxProcessTimeout:
		return sandbox.Errorf(sandbox.Invalid, "timeout_seconds must be more than 0 and at most %d", int(MaxProcessTimeout.Seconds()))
	case !validKey(r.Key):
		return errKeyForm()
	}
	if err := checkProcessName("name", r.Name); err != nil {
		return err
	}
	return sandbox.CheckEnv(r.Env)
}

// checkProgram checks the command, arguments and shell.
func (r *StartRequest) checkProgram() error {
	all := r.Command
	for _, a := range r.Args {
		all += a
	}
	switch {
	case r.Command != "" && len(r.Args) > 0:
		return sandbox.Errorf(sandbox.Invalid, "give either command or argv, not both")
	case strings.TrimSpace(r.Command) == "" && len(r.Args) == 0:
		return sandbox.Errorf(sandbox.Invalid, "command and argv are missing: send one of them")
	case len(r.Args) > 0 && r.Args[0] == "":
		return sandbox.Errorf(sandbox.Invalid, "argv names no program")
	case len(r.Args) > MaxArgs:
		return sandbox.Errorf(sandbox.TooLarge, "argv has %d items; it may have at most %d", len(r.Args), MaxArgs)
	case len(all) > MaxCommand:
		return sandbox.Errorf(sandbox.TooLarge, "the command has %d bytes; it may have at most %d: write a file and run that", len(all), MaxCommand)
	case strings.ContainsRune(all+r.Cwd+r.User, 0):
		return sandbox.Errorf(sandbox.Invalid, "command, argv, cwd and user must not hold a zero byte")
	case r.Shell != "" && r.Command == "":
		return sandbox.Errorf(sandbox.Invalid, "shell needs a command")
	}
	return checkProcessName("shell", r.Shell)
}

func (r *StartRequest) checkSizes() error {
	for _, f := range []struct {
		name      string
		size, max int
	}{{"stdin", len(r.Stdin), MaxStdin}, {"cwd", len(r.Cwd), maxCwd}, {"user", len(r.User), maxUser}} {
		if f.size > f.max {
			return sandbox.Errorf(sandbox.TooLarge, "%s has %d bytes; it may have at most %d", f.name, f.size, f.max)
		}
	}
	return nil
}

func checkProcessName(field, name string) error {
	if name != "" && (!processNamePattern.MatchString(name) || processIDPattern.MatchString(name)) {
		return sandbox.Errorf(sandbox.Invalid, "%s must be 1 to 63 of a-z, 0-9, '.', '_' and '-', begin and end with a letter or digit, and not look like a process ID", field)
	}
	return nil
}

// check accepts nil: no terminal.
func (t *TerminalSize) check() error {
	if t != nil && (t.Cols < 1 || t.Cols > MaxTerminalSide || t.Rows < 1 || t.Rows > MaxTerminalSide) {
		return sandbox.Errorf(sandbox.Invalid, "cols and rows of a terminal must be between 1 and %d", MaxTerminalSide)
	}
	return nil
}

func errKeyForm() error {
	return sandbox.Errorf(sandbox.Invalid, "the header Idempotency-Key must be 1 to %d printable ASCII characters", MaxIdempotencyKey)
}

// validKey accepts the empty key, which means none.
func validKey(key string) bool {
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return false
		}
	}
	return len(key) <= MaxIdempotencyKey
}

// start converts the request for the Guest.
func (r *StartRequest) start() ProcessStart {
	p := ProcessStart{
		ID: newProcessID(), Args: r.Args, Command: r.Command, Shell: r.Shell, Name: r.Name, User: r.User, Cwd: r.Cwd, Env: r.Env,
		PTY: r.PTY, Stdin: []byte(r.Stdin), KeepStdin: r.KeepStdin, Timeout: r.Timeout, Key: r.Key, MaxOutput: int64(min(r.MaxOutput, firstOutput)),
	}
	if !r.Background {
		p.Wait = r.Yield
	}
	if r.Key != "" {
		p.Fingerprint = r.fingerprint()
	}
	return p
}

// fingerprint is equal for requests for the same Process. It ignores how the client
// waits.
func (r *StartRequest) fingerprint() []byte {
	c := *r
	c.Sandbox, c.Background, c.Yield, c.MaxOutput = "", false, 0, 0
	return sumOf(c)
}

// sumOf returns a hash of a request of strings and numbers.
func sumOf(request any) []byte {
	text, err := json.Marshal(request)
	if err != nil {
		panic(fmt.Sprintf("a request is not JSON: %v", err))
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

// startOutput collects the output in the response to a start.
type startOutput struct {
	service *Service
	sb      sandbox.Sandbox
	texts   [2]text // of stdout and stderr
	last    OutputPiece
	taken   int64 // bytes
	left    int   // bytes that the client wants
	end     int64 // offset
}

// errEnough ends the reading of output once enough is read.
var errEnough = errors.New("no more output is needed")

// full returns errEnough when no more output is needed.
func (o *startOutput) full() error {
	if o.left <= 0 {
		return errEnough
	}
	return nil
}

// add appends pieces up to the wanted size and the room of the spool.
func (o *startOutput) add(pieces []OutputPiece) {
	for _, p := range pieces {
		p.Data = p.Data[:min(len(p.Data), o.left)]
		if len(p.Data) == 0 {
			return
		}
		o.flush()
		if o.left == 0 {
			return
		}
		o.last, o.left, o.taken = p, o.left-len(p.Data), o.taken+int64(len(p.Data))
		o.end = p.Offset + int64(len(p.Data))
	}
}

// flush adds the last piece to its stream. If the spool has no room for it, the collected
// output ends before it, and the client can read it later.
func (o *startOutput) flush() {
	if len(o.last.Data) == 0 {
		return
	}
	stream := &o.texts[0]
	if o.last.Stderr {
		stream = &o.texts[1]
	}
	stream.add(o.last.Data)
	if stream.dropped > 0 {
		o.left, o.end = 0, o.last.Offset
	} else {
		o.service.Guests.Wrote(o.sb.ID, o.last.Data)
	}
	o.last.Data = nil
}

// started converts a Guest's answer for the client.
func (o *startOutput) started(got ProcessStarted) Started {
	if cut := CutCharacter(o.last.Data); got.End == nil && cut < len(o.last.Data) {
		// The rest of its last character comes with the next read.
		o.last.Data = o.last.Data[:len(o.last.Data)-cut]
		o.end -= int64(cut)
	}
	o.flush()
	for i := range o.texts {
		o.texts[i].end()
	}
	return Started{
		Process: processOf(o.sb, got.ProcessInfo), Repeated: got.Repeated,
		Stdout: &o.texts[0].kept, Stderr: &o.texts[1].kept, Offset: o.end,
		StdoutBytes: o.texts[0].exact, StderrBytes: o.texts[1].exact,
	}
}

// processOf converts a Guest's ProcessInfo for the client.
func processOf(sb sandbox.Sandbox, info ProcessInfo) Process {
	p := Process{ProcessInfo: info, SandboxID: sb.ID, PublicID: publicID(sb.Timeline, info.ID), Timeline: sb.Timeline}
	if info.End != nil {
		p.Status, p.ExitCode, p.Problem = verdict(Request{Timeout: info.Timeout}, *info.End)
		if p.Status == StatusKilled && info.End.Signal == 0 { // its Sandbox still runs
			p.Problem = problem("signal", "it ended on request")
		}
	}
	return p
}

// open finds the Sandbox and the Guest's ID of the Process.
func (s *Service) open(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef) (sandbox.Sandbox, Guest, string, error) {
	sb, guest, err := s.Guests.Open(ctx, tenant, ref.Sandbox)
	if err != nil {
		return sb, nil, "", err
	}
	id, err := guestID(sb, ref.Process)
	return sb, guest, id, err
}

// ListProcesses returns the Processes of a Sandbox in the order of their start: all
// running ones and the last ended ones.
func (s *Service) ListProcesses(ctx context.Context, tenant sandbox.TenantID, idOrName string) ([]Process, error) {
	sb, guest, err := s.Guests.Open(ctx, tenant, idOrName)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	infos, err := guest.ListProcesses(ctx)
	if err != nil {
		return nil, s.broken(ctx, sb, err)
	}
	all := make([]Process, len(infos))
	for i, info := range infos {
		all[i] = processOf(sb, info)
	}
	return all, nil
}

// controlled is the part of a Guest that works on existing Processes.
type controlled interface {
	Processes
	ProcessStreams
}

// about makes one call about a Process, with limit as its timeout.
func (s *Service) about(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, limit time.Duration, call func(ctx context.Context, guest controlled, id string) (ProcessInfo, error)) (Process, error) {
	sb, guest, id, err := s.open(ctx, tenant, ref)
	if err != nil {
		return Process{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	info, err := call(ctx, guest, id)
	if err != nil {
		return Process{}, begun(s.broken(ctx, sb, err))
	}
	return processOf(sb, info), nil
}

// GetProcess returns the current state of a Process.
func (s *Service) GetProcess(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef) (Process, error) {
	return s.about(ctx, tenant, ref, startTime, func(ctx context.Context, g controlled, id string) (ProcessInfo, error) {
		return g.GetProcess(ctx, id)
	})
}

// EndProcess ends a Process and everything it started, and returns it after that.
func (s *Service) EndProcess(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef) (Process, error) {
	return s.about(ctx, tenant, ref, startTime, func(ctx context.Context, g controlled, id string) (ProcessInfo, error) {
		return g.EndProcess(ctx, id)
	})
}

// AbandonProcess ends a Process after a while, unless a client begins to read its output
// before.
func (s *Service) AbandonProcess(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, after time.Duration) error {
	sb, guest, id, err := s.open(ctx, tenant, ref)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	return s.broken(ctx, sb, guest.AbandonProcess(ctx, id, after))
}

// EndExecution ends the execution that was started with an idempotency key in a
// Sandbox, and returns it after that. NotFound when no execution was started with the
// key.
func (s *Service) EndExecution(ctx context.Context, tenant sandbox.TenantID, idOrName, key string) (Process, error) {
	sb, guest, err := s.Guests.Open(ctx, tenant, idOrName)
	if err != nil {
		return Process{}, err
	}
	if key == "" || !validKey(key) {
		return Process{}, errKeyForm()
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	info, err := guest.EndProcessOf(ctx, key)
	if err != nil {
		return Process{}, s.broken(ctx, sb, err)
	}
	return processOf(sb, info), nil
}

// ReadOutput calls handle with the output of a Process from an offset on; a negative
// offset counts from the end. See Processes.ReadOutput. With follow it continues until
// the Process has ended.
func (s *Service) ReadOutput(ctx context.Context, tenant sandbox.TenantID, ref ProcessRef, from int64, follow bool, handle func(*Process, Output) error) error {
	sb, guest, id, err := s.open(ctx, tenant, ref)
	if err != nil {
		return err
	}
	var failed error // of handle
	err = guest.ReadOutput(ctx, id, from, follow, func(o Output) error {
		var p *Process
		if o.Process != nil {
			known := processOf(sb, *o.Process)
			p = &known
		}
		failed = handle(p, o)
		return failed
	})
	if failed != nil {
		return failed
	}
	return s.broken(ctx, sb, err)
}

// broken explains an Unavailable of a Guest: it returns Conflict when the Sandbox has
// ended since, or else err, which may be nil.
func (s *Service) broken(ctx context.Context, sb sandbox.Sandbox, err error) error {
	if ctx.Err() != nil || !errors.Is(err, sandbox.Unavailable) {
		return err
	}
	s.Guests.Forget(sb.ID)
	now, ended, look := s.awaitEnd(ctx, sb)
	switch {
	case look != nil && ctx.Err() == nil:
		return Absent(sb.ID, look)
	case !ended:
		return err
	case now.Ended == nil:
		return errPaused(err)
	}
	return errNotRunning(now)
}
