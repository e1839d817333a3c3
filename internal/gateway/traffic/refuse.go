package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"regexp"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// answer is the error for a request that does not get inside.
type answer struct {
	SandboxID string  `json:"sandboxId,omitempty"`
	Message   string  `json:"message"`
	Port      *uint16 `json:"port,omitempty"`
	Path      string  `json:"path,omitempty"`
	Limit     *int    `json:"connectionLimit,omitempty"`
	Code      int     `json:"code"` // the HTTP status too
	hint      string  // for the reader of the page
}

func gone(t Target) answer {
	return answer{Code: http.StatusBadGateway, SandboxID: t.SandboxID, Message: "The sandbox was not found", hint: "It has ended, or is paused and does not wake by itself."}
}

func closed(t Target) answer {
	return answer{Code: http.StatusBadGateway, SandboxID: t.SandboxID, Message: "The sandbox is running but port is not open", Port: &t.Port, hint: fmt.Sprintf("Nothing listens on port %d yet. Start a service there and load this page again.", t.Port)}
}

// refuseFor answers a request that failed with err.
func (p *Proxy) refuseFor(w http.ResponseWriter, r *http.Request, t Target, err error) {
	switch {
	case errors.Is(err, errAway):
		w.Header().Set("Retry-After", "1")
		refuse(w, r, answer{Code: http.StatusServiceUnavailable, SandboxID: t.SandboxID, Message: "The records of sandboxes cannot be read now", hint: "Load this page again in a moment."})
	case errors.Is(err, errClosed):
		refuse(w, r, closed(t))
	case errors.Is(err, errNotWoken):
		refuse(w, r, answer{Code: http.StatusForbidden, SandboxID: t.SandboxID, Message: "The sandbox is paused: only a request with its access token wakes it"})
	case errors.Is(err, sandbox.ErrSuspended):
		refuse(w, r, answer{Code: http.StatusForbidden, SandboxID: t.SandboxID, Message: "The tenant of this sandbox is suspended: ask the operator of this server"})
	case errors.Is(err, errCut):
		refuse(w, r, answer{Code: http.StatusBadGateway, SandboxID: t.SandboxID, Message: "The sandbox was paused before it answered", hint: "The request may take effect, now or when the sandbox resumes."})
	case errors.Is(err, sandbox.NotFound), errors.Is(err, sandbox.Conflict), errors.Is(err, sandbox.Unavailable):
		refuse(w, r, gone(t)) // or its Boot is gone, which is the same to a client
	case sandbox.CodeOf(err) == sandbox.Timeout:
		refuse(w, r, closed(t))
	case sandbox.CodeOf(err) == sandbox.Exhausted: // it may not wake now
		refuse(w, r, answer{Code: http.StatusTooManyRequests, SandboxID: t.SandboxID, Message: detail(err)})
	default:
		refuse(w, r, answer{Code: http.StatusBadGateway, SandboxID: t.SandboxID, Message: "The sandbox gave no answer that could be passed on", Port: &t.Port})
	}
}

// page is the error page for a browser's user; it loads nothing else.
const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%d</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em;color-scheme:light dark}</style>
<h1>%s</h1><p>%s</p><p><small>%s</small></p></html>
`

// browsers matches the User-Agent of every browser. E2B's proxy tests nothing else, and
// neither does refuse, so that a client gets the same kind of answer.
var browsers = regexp.MustCompile(`(?i)mozilla|chrome|safari|firefox|edge|opera|msie`)

// refuse answers in JSON, or with a page for a browser.
func refuse(w http.ResponseWriter, r *http.Request, a answer) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("X-Content-Type-Options", "nosniff")
	if browsers.MatchString(r.UserAgent()) {
		h.Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(a.Code)
		_, _ = fmt.Fprintf(w, page, a.Code, html.EscapeString(a.Message), html.EscapeString(a.hint), html.EscapeString(a.SandboxID))
		return
	}
	body, _ := json.Marshal(a) // strings and numbers only
	h.Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(a.Code)
	_, _ = w.Write(append(body, '\n'))
}

// detail is the public part of err.
func detail(err error) string {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return "the request cannot be understood"
}
