package v1

import "encoding/json"

// ExecuteResult is the result of an execution, as a client holds it.
type ExecuteResult = ExecuteResultOf[string, []byte, []Value]

// ExecuteResultOf is ExecuteResult, generic over the types of fields that may be many
// megabytes: Text is a long text, Bytes are in base64 in the JSON, and Values are the
// rich results. The server streams them and never holds them whole.
type ExecuteResultOf[Text, Bytes, Values any] struct {
	SandboxID  string `json:"sandbox_id"`
	SessionID  string `json:"session_id"` // the same ID
	ProcessID  string `json:"process_id,omitempty"`
	NextOffset *int64 `json:"next_offset,omitempty"` // of the process's output
	Status     string `json:"status"`
	Stdout     Text   `json:"stdout"`
	Stderr     Text   `json:"stderr"`
	// The exact bytes, of output that is not UTF-8.
	StdoutBase64 Bytes `json:"stdout_base64,omitempty"`
	StderrBase64 Bytes `json:"stderr_base64,omitempty"`

	ExitCode   int        `json:"exit_code"`
	Results    Values     `json:"results"`
	Error      *Exception `json:"error,omitempty"`
	DurationMS float64    `json:"duration_ms"`
	Truncated  *Truncated `json:"truncated,omitempty"` // nil: nothing was dropped
	*Cell                 // nil: the code ran in no context
}

// Cell holds the additional fields of an execution in a context.
type Cell struct {
	ContextID        string `json:"context_id"`
	ExecutionCount   int64  `json:"execution_count"`
	ContextRestarted bool   `json:"context_restarted"` // before this execution: earlier variables are lost
	ContextEnded     bool   `json:"context_ended"`     // by this execution
}

// Problem is the reason of a program's failure.
type Problem struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// Exception is an error raised by code.
type Exception struct {
	Problem
	Traceback string `json:"traceback,omitempty"`
}

// Truncated is the amount of dropped output.
type Truncated struct {
	StdoutBytesDropped int64 `json:"stdout_bytes_dropped"`
	StderrBytesDropped int64 `json:"stderr_bytes_dropped"`
	ResultsDropped     int64 `json:"results_dropped,omitempty"`
}

// Value is a rich result, as a client holds it.
type Value = ValueOf[string, json.RawMessage]

// ValueOf is Value, generic over the types of its representations: Text is a long
// text, JSON is any JSON. Images and PDF are in base64. Representations without a
// field of their own are in Extra, by MIME type.
type ValueOf[Text, JSON any] struct {
	Main       bool            `json:"is_main_result"` // of the last expression
	Text       Text            `json:"text,omitempty"`
	HTML       Text            `json:"html,omitempty"`
	Markdown   Text            `json:"markdown,omitempty"`
	SVG        Text            `json:"svg,omitempty"`
	PNG        Text            `json:"png,omitempty"`
	JPEG       Text            `json:"jpeg,omitempty"`
	PDF        Text            `json:"pdf,omitempty"`
	Latex      Text            `json:"latex,omitempty"`
	JSON       JSON            `json:"json,omitempty"`
	JavaScript Text            `json:"javascript,omitempty"`
	Data       JSON            `json:"data,omitempty"`
	Chart      JSON            `json:"chart,omitempty"`
	Extra      map[string]Text `json:"extra,omitempty"`
}

// ExecutionStart is the first event of a streamed execution.
type ExecutionStart struct {
	SandboxID string `json:"sandbox_id"`
	SessionID string `json:"session_id"` // the same ID
	ProcessID string `json:"process_id,omitempty"`
}

// Output is a piece of output. Base64 has the exact bytes if they are not UTF-8.
type Output struct {
	Text   string `json:"text"`
	Base64 []byte `json:"base64,omitempty"`
}

// Bytes returns the output as bytes.
func (o Output) Bytes() []byte {
	if o.Base64 != nil {
		return o.Base64
	}
	return []byte(o.Text)
}

// Context is an interpreter that keeps its variables from one execution to the next.
type Context struct {
	ID             string `json:"context_id"`
	SandboxID      string `json:"sandbox_id"`
	SessionID      string `json:"session_id"` // the same ID
	Language       string `json:"language"`
	Cwd            string `json:"cwd"`
	User           string `json:"user"`
	Default        bool   `json:"default"`
	State          string `json:"state"` // "busy", "idle" or "stopped"
	ExecutionCount int64  `json:"execution_count"`
}

// Interrupted reports whether an execution was interrupted.
type Interrupted struct {
	Interrupted bool `json:"interrupted"`
}

// Contexts are all contexts of a sandbox.
type Contexts struct {
	Contexts []Context `json:"contexts"`
}
