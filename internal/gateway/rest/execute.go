package rest

import (
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

type executeBody struct {
	target
	Code           string            `json:"code"`
	Language       string            `json:"language"`
	TimeoutSeconds *seconds          `json:"timeout_seconds"`
	Env            map[string]string `json:"env"`
	Cwd            string            `json:"cwd"`
	User           string            `json:"user"`
	Stdin          string            `json:"stdin"`
	Stream         bool              `json:"stream"`
	MaxOutputBytes *int              `json:"max_output_bytes"`
	ContextID      *string           `json:"context_id"` // not there yet: refused
}

func (b *executeBody) request() (execution.Request, error) {
	req := execution.Request{
		Code: b.Code, Language: b.Language, Timeout: b.TimeoutSeconds.duration(),
		Env: b.Env, Cwd: b.Cwd, User: b.User, Stdin: b.Stdin,
	}
	if b.ContextID != nil {
		return req, sandbox.Errorf(sandbox.Unsupported, "context_id is not supported yet; each execution is a program of its own")
	}
	if b.MaxOutputBytes != nil {
		if req.MaxOutput = *b.MaxOutputBytes; req.MaxOutput < 1 {
			return req, sandbox.Errorf(sandbox.Invalid, "max_output_bytes must be between 1 and %d", execution.MaxMaxOutput)
		}
	}
	var err error
	req.Sandbox, err = b.optional()
	return req, err
}

type resultView struct {
	SandboxID  string           `json:"sandbox_id"`
	SessionID  string           `json:"session_id"`
	Status     execution.Status `json:"status"`
	Stdout     string           `json:"stdout"`
	Stderr     string           `json:"stderr"`
	ExitCode   int              `json:"exit_code"`
	Results    []struct{}       `json:"results"`
	Error      *problemView     `json:"error,omitempty"`
	DurationMS float64          `json:"duration_ms"`
	Truncated  *truncatedView   `json:"truncated,omitempty"`
}

type problemView struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

type truncatedView struct {
	StdoutBytesDropped int64 `json:"stdout_bytes_dropped"`
	StderrBytesDropped int64 `json:"stderr_bytes_dropped"`
}

func resultViewOf(res execution.Result) resultView {
	v := resultView{
		SandboxID: res.SandboxID, SessionID: res.SandboxID, Status: res.Status,
		Stdout: res.Stdout, Stderr: res.Stderr, ExitCode: res.ExitCode,
		Results:    []struct{}{},
		DurationMS: float64(res.Duration.Microseconds()) / 1000,
	}
	if res.Problem != nil {
		v.Error = &problemView{res.Problem.Name, res.Problem.Message}
	}
	if res.StdoutDropped > 0 || res.StderrDropped > 0 {
		v.Truncated = &truncatedView{res.StdoutDropped, res.StderrDropped}
	}
	return v
}

// Execute answers POST /api/v1/execute: it runs code to its end, in a Sandbox
// of the Tenant or in one borrowed for it, as one reply or as server-sent
// events.
func (a *API) Execute(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body executeBody
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := body.request()
	if err != nil {
		return err
	}
	if body.Stream || acceptsEvents(r) {
		return a.stream(w, r, who, req)
	}
	res, err := a.Executions.Run(r.Context(), who.Tenant, req, nil)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, resultViewOf(res))
}

func acceptsEvents(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			kind, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(kind), "text/event-stream") {
				return true
			}
		}
	}
	return false
}

// stream answers with server-sent events. A failure before the first event is
// an ordinary error; after it, the last event says so.
func (a *API) stream(w http.ResponseWriter, r *http.Request, who sandbox.Identity, req execution.Request) error {
	events := newEvents(w)
	defer events.stop()
	res, err := a.Executions.Run(r.Context(), who.Tenant, req, func(e execution.Event) error {
		if e.Kind == execution.EventStart {
			return events.start(map[string]string{"sandbox_id": e.SandboxID, "session_id": e.SandboxID})
		}
		return events.send(string(e.Kind), map[string]string{"text": e.Text})
	})
	switch {
	case err == nil:
		return events.send("result", resultViewOf(res))
	case !events.started():
		return err
	}
	return events.fail(err)
}
