package rest

import (
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// executionTimeout is zero for the default.
func executionTimeout(b *v1.ExecuteRequest) time.Duration {
	switch {
	case b.TimeoutSeconds == nil:
		return 0
	case *b.TimeoutSeconds == 0:
		return execution.NoTimeout
	}
	return time.Duration(*b.TimeoutSeconds)
}

// executionRequest returns the request in b and the headers of r.
func executionRequest(b *v1.ExecuteRequest, r *http.Request) (execution.Request, error) {
	req, err := ExecutionRequest(b)
	if err != nil {
		return req, err
	}
	if req.Key, err = idempotencyKey(r); err != nil {
		return req, err
	}
	last := r.Header.Get("Last-Event-ID")
	req.Again = last != ""
	req.Resume, err = parseCursor(last)
	return req, err
}

// ExecutionRequest converts b.
func ExecutionRequest(b *v1.ExecuteRequest) (execution.Request, error) {
	req := execution.Request{
		Code: b.Code, Language: b.Language, Timeout: executionTimeout(b),
		Env: b.Env, Cwd: b.Cwd, User: b.User,
	}
	var err error
	if req.Stdin, err = b.Input(); err != nil {
		return req, err
	}
	if b.ContextID != nil {
		if req.Context = *b.ContextID; req.Context == "" {
			return req, sandbox.Errorf(sandbox.Invalid, "context_id is empty; leave it out for the default context")
		}
	}
	if b.MaxOutputBytes != nil {
		if req.MaxOutput, err = execution.OutputBound(*b.MaxOutputBytes, execution.MaxMaxOutput); err != nil {
			return req, err
		}
	}
	req.Sandbox, err = b.Target.Optional()
	return req, err
}

// idempotencyKey is the Idempotency-Key of a request; empty: it has none.
func idempotencyKey(r *http.Request) (string, error) {
	keys := r.Header.Values("Idempotency-Key")
	if len(keys) > 1 || len(keys) == 1 && keys[0] == "" {
		return "", sandbox.Errorf(sandbox.Invalid, "send the header Idempotency-Key once, and not empty")
	}
	return strings.Join(keys, ""), nil
}

// cursorID encodes a cursor as the ID of an event; empty: a client cannot resume.
func cursorID(c execution.Cursor) string {
	if c == (execution.Cursor{}) {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", c.Stdout, c.Stderr, c.Values)
}

// parseCursor decodes the ID of an event; empty: from the beginning.
func parseCursor(s string) (c execution.Cursor, err error) {
	if s == "" {
		return c, nil
	}
	parts := strings.Split(s, ".")
	var numbers [3]int64
	for i, part := range parts {
		if i == len(numbers) {
			break
		}
		if numbers[i], err = strconv.ParseInt(part, 10, 64); err != nil || numbers[i] < 0 {
			break
		}
	}
	if err != nil || len(parts) != len(numbers) || slices.Min(numbers[:]) < 0 || numbers[2] > math.MaxInt32 {
		return c, sandbox.Errorf(sandbox.Invalid, "Last-Event-ID is not the id of an event of an execution")
	}
	return execution.Cursor{Stdout: numbers[0], Stderr: numbers[1], Values: int(numbers[2])}, nil
}

// resultView is the result of an execution, and valueView a rich result, in the form in
// which the server writes them.
type (
	resultView = v1.ExecuteResultOf[*longText, *longText, longList]
	valueView  = v1.ValueOf[*longText, *longText]
)

func valueViewOf(main bool, all iter.Seq[execution.Data]) valueView {
	v := valueView{Main: main}
	texts := map[string]**longText{
		"text/plain": &v.Text, "text/html": &v.HTML, "text/markdown": &v.Markdown, "image/svg+xml": &v.SVG, "image/png": &v.PNG,
		"image/jpeg": &v.JPEG, "application/pdf": &v.PDF, "text/latex": &v.Latex, "application/javascript": &v.JavaScript,
	}
	objects := map[string]**longText{"application/json": &v.JSON, "e2b/data": &v.Data, "e2b/chart": &v.Chart}
	for data := range all {
		object := objects[data.MIME]
		switch {
		case texts[data.MIME] != nil:
			*texts[data.MIME] = &longText{Reader: data}
		case object != nil && data.JSON:
			*object = &longText{Reader: data, as: asJSON}
		default:
			if v.Extra == nil {
				v.Extra = map[string]*longText{}
			}
			v.Extra[data.MIME] = &longText{Reader: data}
		}
	}
	return v
}

func resultViewOf(res execution.Result) resultView {
	v := resultView{
		SandboxID: res.SandboxID, SessionID: res.SandboxID, Status: string(res.Status),
		Stdout: textIn(res.Stdout), Stderr: textIn(res.Stderr), ExitCode: res.ExitCode, ProcessID: res.ProcessID,
		StdoutBase64: bytesIn(res.StdoutBytes), StderrBase64: bytesIn(res.StderrBytes),
		DurationMS: float64(res.Duration.Microseconds()) / 1000,
	}
	if res.ProcessID != "" {
		v.NextOffset = &res.Offset
	}
	if res.Problem != nil {
		v.Error = &v1.Exception{Problem: v1.Problem{Name: res.Problem.Name, Message: res.Problem.Message}, Traceback: res.Problem.Traceback}
	}
	if res.StdoutDropped > 0 || res.StderrDropped > 0 || res.ValuesDropped > 0 {
		v.Truncated = &v1.Truncated{StdoutBytesDropped: res.StdoutDropped, StderrBytesDropped: res.StderrDropped, ResultsDropped: res.ValuesDropped}
	}
	v.Results = func(yield func(any) bool) {
		for main, data := range res.Values.All() {
			if !yield(valueViewOf(main, data)) {
				return
			}
		}
	}
	if c := res.Cell; c != nil {
		v.Cell = &v1.Cell{ContextID: c.ContextID, ExecutionCount: c.Count, ContextRestarted: c.Restarted, ContextEnded: c.Lost}
	}
	return v
}

// Execute answers POST /api/v1/execute: it runs code to its end, in a Sandbox
// of the Tenant or in one borrowed for it, as one reply or as server-sent
// events.
func (a *API) Execute(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.ExecuteRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := executionRequest(&body, r)
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
	defer res.Close()
	return replyLong(w, http.StatusOK, resultViewOf(res))
}

func acceptsEvents(r *http.Request) bool { return accepts(r, "text/event-stream") }

// accepts reports whether the client accepts the type want.
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

// EndExecution answers DELETE /api/v1/execute once the execution that its
// Idempotency-Key started has ended.
func (a *API) EndExecution(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := query(r, "sandbox_id", "session_id")
	if err != nil {
		return err
	}
	id, err := v1.Target{SandboxID: values.Get("sandbox_id"), SessionID: values.Get("session_id")}.Required()
	if err != nil {
		return err
	}
	key, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	p, err := a.Executions.EndExecution(r.Context(), who.Tenant, id, key)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, ProcessViewOf(p))
}

// stream answers with server-sent events. A failure before the first event is an
// ordinary error; a later failure is the last event.
func (a *API) stream(w http.ResponseWriter, r *http.Request, who sandbox.Identity, req execution.Request) error {
	events := newEvents(w)
	defer events.stop()
	res, err := a.Executions.Run(r.Context(), who.Tenant, req, func(e execution.Event) error {
		switch e.Kind {
		case execution.EventStart:
			return events.start(v1.ExecutionStart{SandboxID: e.SandboxID, SessionID: e.SandboxID, ProcessID: e.ProcessID})
		case execution.EventValue:
			return events.sendLong(cursorID(e.Next), string(e.Kind), valueViewOf(e.Value.Main, e.Value.All()))
		case execution.EventGap:
			return events.sendID(cursorID(e.Next), string(e.Kind), map[string]int64{"bytes": e.Dropped})
		}
		return events.sendID(cursorID(e.Next), string(e.Kind), v1.Output{Text: e.Text, Base64: e.Bytes})
	})
	switch {
	case err == nil:
		defer res.Close()
		return events.sendLong("", "result", resultViewOf(res))
	case !events.started():
		return err
	}
	return events.fail(err)
}
