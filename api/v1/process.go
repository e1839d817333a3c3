package v1

import "time"

// Process is a process in a sandbox, as a client holds it.
type Process = ProcessOf[*string, []byte]

// ProcessOf is Process, generic over the types of a long Text, and of Bytes that are
// in base64 in the JSON.
type ProcessOf[Text, Bytes any] struct {
	ID             string        `json:"process_id"`
	SandboxID      string        `json:"sandbox_id"`
	SessionID      string        `json:"session_id"` // the same ID
	Timeline       int64         `json:"timeline"`   // of the sandbox when it started
	Name           string        `json:"name,omitempty"`
	PID            int64         `json:"pid"`
	State          string        `json:"state"`               // "running" or "ended"
	Status         string        `json:"status,omitempty"`    // empty: it runs
	ExitCode       *int          `json:"exit_code,omitempty"` // nil: it runs
	Error          *Problem      `json:"error,omitempty"`
	Command        string        `json:"command"`
	Cwd            string        `json:"cwd"`
	User           string        `json:"user"`
	PTY            *TerminalSize `json:"pty,omitempty"` // nil: it has no terminal
	Shell          string        `json:"shell,omitempty"`
	StartedAt      time.Time     `json:"started_at"`
	EndedAt        time.Time     `json:"ended_at,omitzero"`
	TimeoutSeconds float64       `json:"timeout_seconds,omitempty"` // 0: none
	// OutputStart and OutputEnd bound the output that is kept.
	OutputStart int64 `json:"output_start"`
	OutputEnd   int64 `json:"output_end"`

	// The output so far, of the response to a start, and the offset after it.
	Stdout Text   `json:"stdout,omitempty"`
	Stderr Text   `json:"stderr,omitempty"`
	Offset *int64 `json:"offset,omitempty"`
	// The exact bytes, of output that is not UTF-8.
	StdoutBase64 Bytes `json:"stdout_base64,omitempty"`
	StderrBase64 Bytes `json:"stderr_base64,omitempty"`
}

// Exit is the exit code of a process that has ended, and 0 while it runs.
func (p ProcessOf[Text, Bytes]) Exit() int {
	if p.ExitCode == nil {
		return 0
	}
	return *p.ExitCode
}

// TerminalSize is the size of a terminal, in characters.
type TerminalSize struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Processes are the running processes of a sandbox and the processes that ended last,
// oldest first.
type Processes struct {
	Processes []Process `json:"processes"`
}

// Written is the amount of input that a process accepted.
type Written struct {
	Bytes int `json:"written_bytes"`
}

// Wait is the outcome of waiting for a process.
type Wait struct {
	Met        bool    `json:"met"`
	HTTPStatus int     `json:"http_status,omitempty"` // of the port that was waited for
	Line       *string `json:"line,omitempty"`        // of output that was waited for
	Offset     *int64  `json:"offset,omitempty"`      // after Line
	Process    Process `json:"process"`
}

// OutputEvent is a piece of a process's output, or a gap in it. Base64 has the exact
// bytes if they are not UTF-8.
type OutputEvent struct {
	Event  string `json:"event,omitempty"` // of a WebSocket: "stdout", "stderr" or "dropped"
	Offset int64  `json:"offset"`
	Next   int64  `json:"next_offset"`
	Text   string `json:"text,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
}

// Bytes returns the output as bytes.
func (e OutputEvent) Bytes() []byte { return Output{e.Text, e.Base64}.Bytes() }

// AttachEvent is a message to a client that is attached to a process, other than output.
type AttachEvent struct {
	Type    string   `json:"type"` // "start", "dropped", "taken", "error" or "end"
	Offset  int64    `json:"offset"`
	Next    int64    `json:"next_offset,omitempty"` // of "dropped"
	Bytes   *int     `json:"bytes,omitempty"`       // of "taken"
	Process *Process `json:"process,omitempty"`     // of "start" and "end"
	Error   *Failure `json:"error,omitempty"`       // of "error"
}
