package interpreter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// keepaliveTime is how long an execution may be silent before a keepalive is sent.
const keepaliveTime = 5 * time.Second

type executeBody struct {
	Code      *string           `json:"code"`
	ContextID *string           `json:"context_id"`
	Language  *string           `json:"language"`
	Env       map[string]string `json:"env_vars"`
}

// execute runs code in a context and answers with a line of JSON for each event.
// When the client disconnects, the execution is interrupted.
func (s *Server) execute(w http.ResponseWriter, r *http.Request) {
	var body executeBody
	if !decode(w, r, &body) {
		return
	}
	if body.Code == nil {
		unprocessable(w, "code", "field required")
		return
	}
	if message := body.check(); message != "" {
		unprocessable(w, "code", message)
		return
	}
	id := ""
	if body.ContextID != nil {
		id = *body.ContextID
	}
	if id != "" && body.Language != nil && *body.Language != "" {
		fail(w, http.StatusBadRequest, "Only one of context_id or language can be provided")
		return
	}
	l, err := languageOf(body.Language)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	to := newStream(w)
	result, err := s.contexts.Execute(r.Context(), s.target(id, l), contexts.Request{Code: *body.Code, Env: body.Env}, to)
	if err != nil {
		if to.close(); !to.began {
			s.absent(w, id, err)
		}
		return
	}
	if !to.began {
		fail(w, http.StatusInternalServerError, "the interpreter could not be started: "+result.Message)
		return
	}
	to.ended(l, result)
}

// check returns the error of a well-formed request; empty: none.
func (b *executeBody) check() string {
	if strings.ContainsRune(*b.Code, 0) {
		return "code must not hold a zero byte"
	}
	for k, v := range b.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fmt.Sprintf("%.40q is not a valid name of an environment variable", k)
		}
	}
	return ""
}

// stream writes the events of one execution. It implements contexts.Handler.
type stream struct {
	w http.ResponseWriter

	mu     sync.Mutex
	began  bool
	apart  bool // the end of a line is sent as its own piece
	failed bool // an error was sent
	tails  [2][]byte
	timer  *time.Timer
	err    error // of a write
	over   bool
}

func newStream(w http.ResponseWriter) *stream { return &stream{w: w} }

// Started opens the answer.
func (s *stream) Started(e contexts.Started) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.apart = true, e.Language == "java" // as E2B's clients expect
	s.w.Header().Set("Content-Type", "application/json")
	s.w.WriteHeader(http.StatusOK)
	s.timer = time.AfterFunc(keepaliveTime, s.keepalive)
	return s.send(map[string]any{"type": "number_of_executions", "execution_count": e.Count})
}

// keepalive sends an event in a silence. During a write of an event it waits.
func (s *stream) keepalive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		_ = s.send(map[string]any{"type": "keepalive"}) // the next write fails too
	}
}

// send writes one event. The caller holds s.mu.
func (s *stream) send(event any) error {
	if s.err != nil || s.over {
		return s.err
	}
	line, err := json.Marshal(event)
	if err == nil {
		_, err = s.w.Write(append(line, '\n'))
	}
	if err == nil {
		err = http.NewResponseController(s.w).Flush()
	}
	s.err = err
	s.timer.Reset(keepaliveTime)
	return err
}

// Output passes a piece of output on; an incomplete UTF-8 character waits for its
// rest.
func (s *stream) Output(stderr bool, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := 0
	if stderr {
		i = 1
	}
	data = append(s.tails[i], data...)
	n := len(data)
	for back := 1; back < utf8.UTFMax && back <= len(data); back++ {
		if start := len(data) - back; utf8.RuneStart(data[start]) {
			if !utf8.FullRune(data[start:]) {
				n = start
			}
			break
		}
	}
	s.tails[i] = append([]byte(nil), data[n:]...)
	return s.text(i, data[:n])
}

func (s *stream) text(i int, data []byte) error {
	if line, ended := bytes.CutSuffix(data, []byte("\n")); s.apart && ended {
		_ = s.piece(i, line) // the next write returns the same error
		data = data[len(line):]
	}
	return s.piece(i, data)
}

func (s *stream) piece(i int, data []byte) error {
	if len(data) == 0 {
		return s.err
	}
	return s.send(map[string]any{
		"type": [2]string{"stdout", "stderr"}[i], "text": strings.ToValidUTF8(string(data), "\uFFFD"),
		"timestamp": time.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00"),
	})
}

// fields are the names of representations; others are in "extra".
var fields = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "text/latex": "latex",
	"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf",
	"application/json": "json", "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}

// Result sends a value.
func (s *stream) Result(main bool, data map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	event := map[string]any{"type": "result", "is_main_result": main}
	for _, field := range fields {
		event[field] = nil
	}
	extra := map[string]any{}
	for mime, content := range data {
		var value any = content
		object := mime == "application/json" || mime == "e2b/data" || mime == "e2b/chart" || strings.HasSuffix(mime, "+json")
		if object && json.Valid([]byte(content)) {
			value = json.RawMessage(content)
		}
		switch field := fields[mime]; field {
		case "":
			extra[mime] = value
		case "text":
			event[field] = unquoted(content)
		default:
			event[field] = value
		}
	}
	event["extra"] = extra
	return s.send(event)
}

// unquoted removes a pair of quotes around a string.
func unquoted(text string) string {
	if n := len(text); n >= 2 && (text[0] == '\'' || text[0] == '"') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return text
}

// Error sends an exception.
func (s *stream) Error(name, value, traceback string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fail(name, value, traceback)
}

func (s *stream) fail(name, value, traceback string) error {
	s.failed = true
	return s.send(map[string]any{"type": "error", "name": name, "value": value, "traceback": traceback})
}

// ended sends the result of the execution, and closes the stream.
func (s *stream) ended(language string, r contexts.Result) {
	defer s.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.tails {
		_ = s.text(i, s.tails[i])
	}
	if name, value := reason(language, r); name != "" && !(s.failed && r.Status == server.StatusOK) {
		_ = s.fail(name, value, fmt.Sprintf("%s: %s", name, value))
	}
	_ = s.send(map[string]any{"type": "end_of_execution"})
}

// reason returns the error of a result; empty: none.
func reason(language string, r contexts.Result) (name, value string) {
	switch {
	case r.Lost && r.Message != "" && r.Status == server.StatusKilled:
		return "ContextRestarting", "Context was restarted"
	case r.Status == server.StatusOOM:
		return "UnexpectedEndOfExecution", "the interpreter was ended because the sandbox ran out of memory; its state is gone"
	case r.Status == server.StatusPids:
		return "UnexpectedEndOfExecution", "the code reached the sandbox's limit of processes; its state is gone"
	case r.Lost && (r.Status != server.StatusOK || r.ExitCode != 0):
		return "UnexpectedEndOfExecution", "the interpreter ended before the execution was finished; its state is gone"
	case r.Status == server.StatusOK && r.ExitCode != 0 && language == "bash":
		return "ExitCode", strconv.Itoa(r.ExitCode)
	case r.Status == server.StatusOK && r.ExitCode != 0:
		return "SystemExit", strconv.Itoa(r.ExitCode)
	}
	return "", ""
}

// close drops all further events.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
