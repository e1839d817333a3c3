package execution

import (
	"context"
	"io"
	"net"
	"time"
)

// Guest is the agent inside one Boot. It joins the ports below for the code that opens
// Guests and hands them out; everything else takes the ports whose methods it calls.
//
// What a Guest answers is hostile input: an implementation bounds sizes,
// counts and times before it hands anything over.
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
	// Close frees idle connections; calls under way are not disturbed.
	Close()
}

// Runner runs programs in a Guest. The rules of Guest apply.
type Runner interface {
	// Run runs one program to its end and calls handle, one call at a time, for
	// its start and each piece of its output. An error of handle, and the end of
	// ctx, kill the program and everything it started, unless it is a Process of
	// its own (RunRequest.As).
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
	// List returns what is below a directory, down to depth levels, at least 1.
	// truncated says that there was more than a reply may hold.
	List(ctx context.Context, path string, depth int) (entries []Entry, truncated bool, err error)
	// Stat does not follow a symbolic link at the end of path.
	Stat(ctx context.Context, path string) (Entry, error)
	// MakeDir makes a directory and those above it. An existing directory is a
	// Conflict.
	MakeDir(ctx context.Context, path string) (Entry, error)
	Move(ctx context.Context, source, destination string) (Entry, error)
	// Remove removes a file or a whole directory.
	Remove(ctx context.Context, path string) error
}

// Inspector tells what goes on inside a Guest, by the Guest's word. The rules of Guest
// apply.
type Inspector interface {
	// ListPorts returns what listens inside, by port and address, each once.
	// truncated says that there was more than a reply may hold. Unsupported: the
	// Guest is of an earlier version.
	ListPorts(ctx context.Context) (all []Listener, truncated bool, err error)
	// Load returns what the Sandbox uses now; CPU is measured over a moment.
	Load(ctx context.Context) (Load, error)
	// Logs returns what programs inside logged at E2B's events address, oldest first,
	// at times by the Guest's word. None: the Guest is of an earlier version.
	Logs(ctx context.Context) ([]LogEntry, error)
}

// Dial connects to a TCP port of one Boot.
type Dial func(ctx context.Context, port uint16) (net.Conn, error)

// NewGuest makes the client of one Boot's Guest, without connecting. The ID is
// that of the Sandbox, for its access token.
type NewGuest func(sandboxID string, dial Dial) Guest

// RunRequest asks for one program.
type RunRequest struct {
	Args    []string // Args[0] is looked up in PATH
	Env     map[string]string
	Cwd     string        // empty: the Sandbox's default
	User    string        // empty: the Sandbox's default
	Stdin   []byte        // then end of file
	Timeout time.Duration // of the program, which is killed after it
	// MaxOutput is how many bytes of each stream are passed on; the rest is
	// read and counted. Zero: no bound.
	MaxOutput int64
	As        *RunAs // nil: the program ends with the call
}

// RunAs makes what runs a Process, which outlives the call: only its own end, its
// timeout and EndProcess end it. A Guest of an earlier version knows no such
// Process; there it ends with the call.
type RunAs struct {
	ID          string // of the Process
	Key         string // idempotency key: what was started with it is followed; empty: none
	Fingerprint []byte // tells requests with the same Key apart
	// Attach is whether the Process is there already, and is only followed.
	Attach bool
	// Again is whether it may have been started before: a Guest that knows no such
	// Processes starts nothing then.
	Again  bool
	From   int64   // offset of the first output that is wanted
	Source *Source // what the program is made of; nil: it is there
}

// Source is code that a program is made of, or reads, in a folder that is removed
// afterwards.
type Source struct {
	Folder, File string
	Code         string
	Compile      []string // runs first; nil: nothing has to
}

// RunEvent is a start, a piece of output, or what code in a context gives. Of a
// Process output comes as Pieces, and Process comes first.
type RunEvent struct {
	Process  *ProcessInfo
	Repeated bool // with Process: it was started before
	Pieces   []OutputPiece

	Started bool
	PID     int64 // with Started of a program; the Guest's word
	Cell    *Cell // with Started in a context
	Stdout  []byte
	Stderr  []byte
	Value   *Value
	Failure *Failure // of a Process, Pieces hold its traceback
}

// RunEnd is how a program ended, by the Guest's word.
type RunEnd struct {
	Status   Status // StatusOK when it exited by itself, whatever its code; StatusError when it did not start
	ExitCode int    // when it exited by itself
	Signal   int    // that ended it, with StatusKilled and others; 0 when none did
	Message  string // may be empty

	StdoutDropped int64 // bytes beyond MaxOutput
	StderrDropped int64

	Took           time.Duration // of a Process
	Unmade         bool          // it was a compiler that ended, or what wrote the code to a file
	Lost           bool          // of a context: its interpreter ended
	Interrupted    bool          // of a context: on request
	ResultsDropped int64         // Values beyond what one execution may give
}

// ReadOptions is the conditional part of a read: headers of HTTP (RFC 9110,
// sections 13 and 14), each empty when it is not there.
type ReadOptions struct {
	Range             string // of one range; anything else is for the caller to take out
	IfRange           string
	IfMatch           string
	IfNoneMatch       string
	IfModifiedSince   string
	IfUnmodifiedSince string
}

// ReadOutcome is what became of a read with conditions.
type ReadOutcome int

// The outcomes of a read.
const (
	ReadWhole        ReadOutcome = iota
	ReadPart                     // Start and Size say which
	ReadNotModified              // Body is empty, as for those that follow
	ReadPrecondition             // IfMatch or IfUnmodifiedSince does not hold
	ReadOutOfRange               // nothing of the range is in the file, which has Total bytes
)

// FileBody is the content of a file, or the part that was asked for.
type FileBody struct {
	Body       io.ReadCloser
	Outcome    ReadOutcome
	Start      int64 // of a part
	Size       int64 // of Body; -1 when not known
	Total      int64 // of the file, with a part or out of range
	ModifiedAt time.Time
	ETag       string // in the form that HTTP has it; may be empty
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

// Kind is Type, or "other" for one that there is not: a Guest says anything.
func (e Entry) Kind() string {
	switch e.Type {
	case "file", "directory", "symlink":
		return e.Type
	}
	return "other"
}

// Plausible is t as far as RFC 3339 and clients can express it: programs in a
// Sandbox set any time on their files.
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
