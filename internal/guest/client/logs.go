package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

// maxLogs bounds a Guest's answer about logs, in bytes.
const maxLogs = 2 << 20

// Logs returns what programs inside logged. See execution.Guest.
func (c *Client) Logs(ctx context.Context) ([]execution.LogEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url(sandbox.GuestPort)+guest.LogsPath, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fail(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	var told []guest.LogEntry
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxLogs)).Decode(&told); err != nil || resp.StatusCode != http.StatusOK {
		return nil, away(err)
	}
	var all []execution.LogEntry
	for _, e := range told[:min(len(told), guest.MaxLogs)] {
		all = append(all, logOf(e))
	}
	slices.SortStableFunc(all, func(a, b execution.LogEntry) int { return a.At.Compare(b.At) })
	return all, nil
}

// logOf is an entry within its bounds.
func logOf(e guest.LogEntry) execution.LogEntry {
	out := execution.LogEntry{At: time.UnixMilli(e.UnixMillis), Level: e.Level, Message: bounded(e.Message), Fields: map[string]string{}}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, e.Level) {
		out.Level = "info"
	}
	for name, value := range e.Fields {
		if len(out.Fields) < guest.MaxLogFields {
			out.Fields[bounded(name)] = bounded(value)
		}
	}
	return out
}

// bounded is the beginning of a text, as JSON gave it.
func bounded(text string) string {
	if len(text) <= guest.MaxLog {
		return text
	}
	return strings.ToValidUTF8(text[:guest.MaxLog], "")
}
