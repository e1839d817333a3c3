// Package telemetry makes the logger of every part, and names the keys that log lines
// share.
package telemetry

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"
)

// Keys of log attributes. The same thing has the same key in every line.
const (
	KeyRequest  = "request_id"
	KeyTenant   = "tenant"
	KeyUser     = "user"
	KeyMethod   = "method"
	KeyRoute    = "route" // the pattern, never the URL: that may hold secrets
	KeyStatus   = "status"
	KeyDuration = "duration_ms"
	KeySandbox  = "sandbox_id"
	KeyBoot     = "boot_id"
	KeyNode     = "node"
	KeyTemplate = "template"
	KeySnapshot = "snapshot_id"
	KeyVolume   = "volume_id"
	KeyBuild    = "build" // of this program, or of a template
	KeyCode     = "code"
	KeyError    = "error"
	KeyRole     = "role"   // of the process: gateway, node, ...
	KeyCaller   = "caller" // the role that calls
)

// NewLogger writes lines of at least level to w: readable text when text is set, JSON
// otherwise. A line logged with the context of a request carries the request's ID.
func NewLogger(w io.Writer, level slog.Leveler, text bool) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if text {
		return slog.New(requests{slog.NewTextHandler(w, opts)})
	}
	return slog.New(requests{slog.NewJSONHandler(w, opts)})
}

// IsTerminal reports whether w is a terminal, where a person reads.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
