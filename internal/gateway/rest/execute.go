package rest

import (
	"encoding/json"
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
	ContextID      *string           `json:"context_id"`
}

func (b *executeBody) request() (execution.Request, error) {
	req := execution.Request{
		Code: b.Code, Language: b.Language, Timeout: b.TimeoutSeconds.duration(),
		Env: b.Env, Cwd: b.Cwd, User: b.User, Stdin: b.Stdin,
	}
	if b.ContextID != nil {
		if req.Context = *b.ContextID; req.Context == "" {
			return req, sandbox.Errorf(sandbox.Invalid, "context_id is empty; leave it out for the default context")
		}
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
	Results    []valueView      `json:"results"`
	Error      *problemView     `json:"error,omitempty"`
	DurationMS float64          `json:"duration_ms"`
	Truncated  *truncatedView   `json:"truncated,omitempty"`
	*cellView
}

// cellView is there when the code ran in a context.
type cellView struct {
	ContextID string `json:"context_id"`
	Count     int64  `json:"execution_count"`
	Restarted bool   `json:"context_restarted"`
	Lost      bool   `json:"context_ended"`
}

type problemView struct {
	Name      string `json:"name"`
	Message   string `json:"message"`
	Traceback string `json:"traceback,omitempty"`
}

type truncatedView struct {
	StdoutBytesDropped int64 `json:"stdout_bytes_dropped"`
	StderrBytesDropped int64 `json:"stderr_bytes_dropped"`
	ResultsDropped     int64 `json:"results_dropped,omitempty"`
}

// valueView is one result: the representations that have a word of their own,
// and the others by MIME type.
type valueView struct {
	Main       bool              `json:"is_main_result"`
	Text       *string           `json:"text,omitempty"`
	HTML       *string           `json:"html,omitempty"`
	Markdown   *string           `json:"markdown,omitempty"`
	SVG        *string           `json:"svg,omitempty"`
	PNG        *string           `json:"png,omitempty"`
	JPEG       *string           `json:"jpeg,omitempty"`
	PDF        *string           `json:"pdf,omitempty"`
	Latex      *string           `json:"latex,omitempty"`
	JSON       json.RawMessage   `json:"json,omitempty"`
	JavaScript *string           `json:"javascript,omitempty"`
	Data       json.RawMessage   `json:"data,omitempty"`
	Chart      json.RawMessage   `json:"chart,omitempty"`
	Extra      map[string]string `json:"extra,omitempty"`
}

func valueViewOf(value execution.Value) valueView {
	v := valueView{Main: value.Main}
	texts := map[string]**string{
		"text/plain": &v.Text, "text/html": &v.HTML, "text/markdown": &v.Markdown, "image/svg+xml": &v.SVG, "image/png": &v.PNG,
		"image/jpeg": &v.JPEG, "application/pdf": &v.PDF, "text/latex": &v.Latex, "application/javascript": &v.JavaScript,
	}
	objects := map[string]*json.RawMessage{"application/json": &v.JSON, "e2b/data": &v.Data, "e2b/chart": &v.Chart}
	for mime, data := range value.Data {
		object := objects[mime]
		switch {
		case texts[mime] != nil:
			*texts[mime] = &data
		case object != nil && json.Valid([]byte(data)):
			*object = json.RawMessage(data)
		default:
			if v.Extra == nil {
				v.Extra = map[string]string{}
			}
			v.Extra[mime] = data
		}
	}
	return v
}

func resultViewOf(res execution.Result) resultView {
	v := resultView{
		SandboxID: res.SandboxID, SessionID: res.SandboxID, Status: res.Status,
		Stdout: res.Stdout, Stderr: res.Stderr, ExitCode: res.ExitCode,
		Results:    []valueView{},
		DurationMS: float64(res.Duration.Microseconds()) / 1000,
	}
	if res.Problem != nil {
		v.Error = &problemView{res.Problem.Name, res.Problem.Message, res.Problem.Traceback}
	}
	if res.StdoutDropped > 0 || res.StderrDropped > 0 || res.ValuesDropped > 0 {
		v.Truncated = &truncatedView{res.StdoutDropped, res.StderrDropped, res.ValuesDropped}
	}
	for _, value := range res.Values {
		v.Results = append(v.Results, valueViewOf(value))
	}
	if c := res.Cell; c != nil {
		v.cellView = &cellView{c.ContextID, c.Count, c.Restarted, c.Lost}
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

func acceptsEvents(r *http.Request) bool { return accepts(r, "text/event-stream") }

// accepts reports whether a client names a type among those it takes.
func accepts(r *http.Request, want string) bool {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			kind, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(kind), want) {
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
		switch e.Kind {
		case execution.EventStart:
			return events.start(map[string]string{"sandbox_id": e.SandboxID, "session_id": e.SandboxID})
		case execution.EventValue:
			return events.send(string(e.Kind), valueViewOf(*e.Value))
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
