package e2b

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// logLine is a line of the first generation: a JSON object as text, which E2B's command
// line reads.
type logLine struct {
	Timestamp string `json:"timestamp"`
	Line      string `json:"line"`
}

func logLineOf(e logEntry) logLine {
	line := maps.Clone(e.Fields)
	line["level"], line["message"] = e.Level, e.Message
	text, _ := json.Marshal(line) // strings only
	return logLine{e.Timestamp, string(text)}
}

// The loggers of a Sandbox's lifecycle, and of programs that name no logger.
const (
	lifeLogger    = "sandbox"
	programLogger = "program"
)

type logEntry struct {
	Timestamp string            `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
	at        time.Time
}

var levels = []string{"debug", "info", "warn", "error"}

// logTime is the timeout of reading a Guest's log.
const logTime = 3 * time.Second

// entriesOf are the lifecycle events of a Sandbox, and the entries that its programs
// log at the events address while it runs, oldest first. The output of its Processes is
// not kept: it belongs to the clients that started them.
func (a *API) entriesOf(ctx context.Context, sb sandbox.Sandbox) []logEntry {
	var all []logEntry
	add := func(at time.Time, message string) {
		if !at.IsZero() {
			all = append(all, logEntry{timestamp(at), message, "info", map[string]string{"sandboxID": sb.ID, "logger": lifeLogger}, at})
		}
	}
	add(sb.CreatedAt, "sandbox created")
	add(sb.StartedAt, "sandbox started")
	if sb.State != sandbox.Running {
		return all
	}
	ctx, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	told, err := a.Guests.Peek(sb).Logs(ctx)
	if err != nil {
		return all // a replaced agent has no logs
	}
	now := time.Now()
	for _, l := range told {
		at := l.At
		if at.Before(sb.CreatedAt) {
			at = sb.CreatedAt
		}
		if at.After(now) {
			at = now
		}
		fields := map[string]string{"logger": programLogger}
		maps.Copy(fields, l.Fields)
		fields["sandboxID"] = sb.ID
		all = append(all, logEntry{timestamp(at), l.Message, l.Level, fields, at})
	}
	slices.SortStableFunc(all, func(a, b logEntry) int { return a.at.Compare(b.at) })
	return all
}

const maxLogs = 1000

// Logs answers GET /sandboxes/{id}/logs.
func (a *API) Logs(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "start", "limit")
	if err != nil {
		return err
	}
	start, err := millis(values.Get("start"), "start")
	if err != nil {
		return err
	}
	limit, err := count(values.Get("limit"), "limit", maxLogs, maxLogs)
	if err != nil {
		return err
	}
	sb, err := a.live(r, who)
	if err != nil {
		return err
	}
	reply := struct {
		Logs    []logLine  `json:"logs"`
		Entries []logEntry `json:"logEntries"`
	}{[]logLine{}, []logEntry{}}
	for _, e := range a.entriesOf(r.Context(), sb) {
		if !e.at.Before(start) && len(reply.Entries) < limit {
			reply.Logs = append(reply.Logs, logLineOf(e))
			reply.Entries = append(reply.Entries, e)
		}
	}
	return rest.Reply(w, http.StatusOK, reply)
}

// LogsV2 answers GET /v2/sandboxes/{id}/logs.
func (a *API) LogsV2(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "cursor", "limit", "direction", "level", "search")
	if err != nil {
		return err
	}
	cursor, err := millis(values.Get("cursor"), "cursor")
	if err != nil {
		return err
	}
	limit, err := count(values.Get("limit"), "limit", maxLogs, maxLogs)
	if err != nil {
		return err
	}
	forward, level, search := values.Get("direction") == "forward", values.Get("level"), values.Get("search")
	const maxSearch = 256
	switch d := values.Get("direction"); {
	case d != "" && d != "forward" && d != "backward":
		return sandbox.Errorf(sandbox.Invalid, "direction must be forward or backward")
	case len(search) > maxSearch:
		return sandbox.Errorf(sandbox.Invalid, "search may have at most %d bytes", maxSearch)
	}
	if err := checkLevel(level); err != nil {
		return err
	}
	sb, err := a.live(r, who)
	if err != nil {
		return err
	}
	all := a.entriesOf(r.Context(), sb)
	if !forward {
		slices.Reverse(all)
	}
	found := []logEntry{}
	for _, e := range all {
		beyond := forward && e.at.Before(cursor) || !forward && !cursor.IsZero() && e.at.After(cursor)
		if !beyond && slices.Index(levels, e.Level) >= slices.Index(levels, level) && strings.Contains(e.Message, search) && len(found) < limit {
			found = append(found, e)
		}
	}
	return rest.Reply(w, http.StatusOK, map[string]any{"logs": found})
}

// millis is a time in milliseconds since 1970; zero when s is empty.
func millis(s, name string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, sandbox.Errorf(sandbox.Invalid, "%s must be a time in milliseconds since 1970", name)
	}
	return time.UnixMilli(n), nil
}
