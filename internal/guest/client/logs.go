package client

import (
	"context"
	"encoding/json"
	"errors"
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

// Logs returns the logs of programs inside. See execution.Guest.
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
	if resp.StatusCode != http.StatusOK {
		return nil, away(nil)
	}
	all, err := logsIn(io.LimitReader(resp.Body, maxLogs))
	if err != nil {
		return nil, away(err)
	}
	slices.SortStableFunc(all, func(a, b execution.LogEntry) int { return a.At.Compare(b.At) })
	return all, nil
}

// logsIn reads a list of entries one by one, up to guest.MaxLogs: an entry may take
// only a few bytes of the Guest's answer.
func logsIn(r io.Reader) ([]execution.LogEntry, error) {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.Join(err, errors.New("it is no list"))
	}
	var all []execution.LogEntry
	for d.More() && len(all) < guest.MaxLogs {
		var e guest.LogEntry
		if err := d.Decode(&e); err != nil {
			return nil, err
		}
		all = append(all, logOf(e))
	}
	if len(all) < guest.MaxLogs {
		if _, err := d.Token(); err != nil { // the list is incomplete
			return nil, err
		}
	}
	return all, nil
}

// logOf returns an entry within its bounds.
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

// bounded returns the beginning of a text.
func bounded(text string) string {
	if len(text) <= guest.MaxLog {
		return text
	}
	return strings.ToValidUTF8(text[:guest.MaxLog], "")
}
