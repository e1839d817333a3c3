package execution

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Guest is the agent inside one Boot. It joins the ports below for the code that opens
// Guests and hands them out. All other code takes only the ports that it calls.
//
// A Guest's answers are hostile input: an implementation bounds sizes, counts and times
// before it passes anything on.
//
// Methods of all ports are safe for concurrent use and return soon after ctx ends. An
// error carries a Code: Invalid for a wrong path, user or directory, NotFound,
// Denied, Conflict, TooLarge for a full disk, Unavailable when the Guest does
// not answer or the connection breaks.
type Guest interface {
	Runner
	Interpreters
	Processes
	ProcessStreams
	Files
	Trees
	Inspector
	// Warm opens a connection ahead of the first call.
	Warm(ctx context.Context) error
	// Close frees idle connections; calls in progress continue.
	Close()
}

// Runner runs programs in a Guest. The rules of Guest apply.
type Runner interface {
	// Run runs one program to its end and calls handle serially, for its start and each
	// piece of its output. An error of handle or the end of ctx kills the program and
	// everything it started, unless it is a Process of its own (RunRequest.As).
	Run(ctx context.Context, req RunRequest, handle func(RunEvent) error) (RunEnd, error)
}

// Files works on single files in a Guest, as the Sandbox's default user. The rules of
// Guest apply.
type Files interface {
	// ReadFile opens a regular file. The caller closes Body.
	ReadFile(ctx context.Context, path string, opts ReadOptions) (*FileBody, error)
	// WriteFile replaces the file's content with all of body and makes missing
	// directories above it. size is -1 when it is not known.
	WriteFile(ctx context.Context, path string, body io.Reader, size int64) (Entry, error)
	// List returns the entries below a directory, down to depth levels, at least 1.
	// truncated reports that the reply was cut at its size limit.
	List(ctx context.Context, path string, depth int) (entries []Entry, truncated bool, err error)
	// Stat does not follow a symbolic link at the end of path.
	Stat(ctx context.Context, path string) (Entry, error)
	// MakeDir makes a directory and its missing parents. An existing directory is a
	// Conflict.
	MakeDir(ctx context.Context, path string) (Entry, error)
	Move(ctx context.Context, source, destination string) (Entry, error)
	// Remove removes a file or a whole directory.
	Remove(ctx context.Context, path string) error
}

// Inspector reports on the inside of a Guest. Its values are the Guest's claims. The
// rules of Guest apply.
type Inspector interface {
	// ListPorts returns the sockets that listen inside, by port and address, each once.
	// truncated reports that the reply was cut at its size limit. Unsupported: the Guest
	// is of an earlier version.
	ListPorts(ctx context.Context) (all []Listener, truncated bool, err error)
	// Load returns the Sandbox's current resource use; CPU is averaged over a short
	// interval.
	Load(ctx context.Context) (Load, error)
	// Logs returns the entries that programs inside logged at E2B's events address,
	// oldest first. Their times are the Guest's claims. None: the Guest is of an earlier
	// version.
	Logs(ctx context.Context) ([]LogEntry, error)
}

// Dial connects to a TCP port of one Boot.
type Dial func(ctx context.Context, port uint16) (net.Conn, error)

// NewGuest makes the client of one Boot's Guest, without connecting. sandboxID is needed
// for the Sandbox's access token.
type NewGuest func(sandboxID string, dial Dial) Guest

// RunRequest asks for one program.
type RunRequest struct {
	Args    []string // Args[0] is looked up in PATH
	Env     map[string]string
	Cwd     string        // empty: the Sandbox's default
	User    string        // empty: the Sandbox's default
	Stdin   []byte        // then end of file
	Timeout time.Duration // the program is killed after it
	// MaxOutput is how many bytes of each stream are passed on; further bytes are read
	// and counted. Zero: no bound.
	MaxOutput int64
	As        *RunAs // nil: the program ends with the call
}

// RunAs runs the program as a Process, which outlives the call: only its own end, its
// timeout and EndProcess end it. A Guest of an earlier version does not support this;
// there the program ends with the call.
type RunAs struct {
	ID          string // of the Process
	Key         string // idempotency key: follows the Process started with it, if any; empty: none
	Fingerprint []byte // distinguishes requests with the same Key
	// Attach is whether to follow an existing Process instead of starting one.
	Attach bool
	// Again is whether the Process may have been started before: a Guest without support
	// for such Processes then starts nothing.
	Again  bool
	From   int64   // offset of the first wanted output
	Source *Source // nil: the program needs no source file
}

// Source is code that a program reads or is compiled from. Its folder is removed
// afterwards.
type Source struct {
	Folder, File string
	Code         string
	Compile      []string // runs first; nil: no compilation
}

// RunEvent is a start, a piece of output, or a result of code in a context. A Process
// sends Process first and its output as Pieces.
type RunEvent struct {
	Process  *ProcessInfo
	Repeated bool // with Process: it was started before
	Pieces   []OutputPiece

	Started bool
	PID     int64 // with Started of a program; the Guest's claim
	Cell    *Cell // with Started in a context
	Stdout  []byte
	Stderr  []byte
	Value   *Value
	Failure *Failure // of a Process, Pieces hold its traceback
}

// RunEnd describes the end of a program, as the Guest claims.
type RunEnd struct {
	Status   Status // StatusOK when it exited by itself, with any code; StatusError when it did not start
	ExitCode int    // when it exited by itself
	Signal   int    // that ended it, with StatusKilled and others; 0: none
	Message  string // may be empty

	StdoutDropped int64 // bytes beyond MaxOutput
	StderrDropped int64

	Took           time.Duration // of a Process
	Unmade         bool          // the end of the compiler or of the write of the code, not of the program
	Lost           bool          // of a context: its interpreter ended
	Interrupted    bool          // of a context: on request
	ResultsDropped int64         // Values beyond the limit of one execution
}

// ReadOptions holds the HTTP headers of a conditional read (RFC 9110, sections 13 and
// 14), each empty if absent.
type ReadOptions struct {
	Range             string // of one range; the caller removes other forms
	IfRange           string
	IfMatch           string
	IfNoneMatch       string
	IfModifiedSince   string
	IfUnmodifiedSince string
}

// ReadOutcome is the outcome of a conditional read.
type ReadOutcome int

// The outcomes of a read.
const (
	ReadWhole        ReadOutcome = iota
	ReadPart                     // see Start and Size
	ReadNotModified              // Body is empty, as for the following outcomes
	ReadPrecondition             // IfMatch or IfUnmodifiedSince does not hold
	ReadOutOfRange               // the range is outside the file, which has Total bytes
)

// FileBody is the content of a file, or of the requested part.
type FileBody struct {
	Body       io.ReadCloser
	Outcome    ReadOutcome
	Start      int64 // of a part
	Size       int64 // of Body; -1 when not known
	Total      int64 // of the file, with a part or out of range
	ModifiedAt time.Time
	ETag       string // as an HTTP header value; may be empty
}

// Refusal returns the error for a reader that gets no content: a condition does not
// hold, or the range is outside the file. A reader over HTTP gets ReadNotModified as a
// success.
func (f FileBody) Refusal() error {
	switch f.Outcome {
	case ReadPrecondition, ReadNotModified:
		return sandbox.Errorf(sandbox.Conflict, "the file has changed: its ETag is not the requested one")
	case ReadOutOfRange:
		return sandbox.Errorf(sandbox.Invalid, "the range is beyond the file, which has %d bytes", f.Total)
	}
	return nil
}

// Entry is a file, directory or link as the Guest describes it.
type Entry struct {
	Name          string
	Path          string
	Type          string // "file", "directory", "symlink" or "other"
	Size          int64
	Mode          uint32 // permission bits with setuid, setgid and sticky
	Owner         string
	Group         string
	ModifiedAt    time.Time
	SymlinkTarget string // of a symlink
}

// Kind is Type, or "other" for an unknown type, which a hostile Guest may send.
func (e Entry) Kind() string {
	switch e.Type {
	case "file", "directory", "symlink":
		return e.Type
	}
	return "other"
}

// Plausible clamps t to the times that RFC 3339 and clients can express, because programs
// in a Sandbox may set any time on their files.
func Plausible(t time.Time) time.Time {
	first, last := time.Unix(0, 0), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	switch {
	case t.Before(first):
		return first
	case t.After(last):
		return last
	}
	return t
}
