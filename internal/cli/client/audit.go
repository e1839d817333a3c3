package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// AuditEntry is who did what, and what came of it.
type AuditEntry struct {
	At        time.Time       `json:"at"`
	User      string          `json:"user"`
	Operation string          `json:"operation"`
	Target    string          `json:"target"`
	Detail    string          `json:"detail"`
	Remote    string          `json:"remote"`
	Code      string          `json:"code"`
	Outcome   string          `json:"outcome"`
	Raw       json.RawMessage `json:"-"`
}

// UnmarshalJSON keeps the entry as it came too.
func (e *AuditEntry) UnmarshalJSON(raw []byte) error {
	type plain AuditEntry
	e.Raw = append(json.RawMessage(nil), raw...)
	return json.Unmarshal(raw, (*plain)(e))
}

// MarshalJSON gives the text as the server said it.
func (e AuditEntry) MarshalJSON() ([]byte, error) { return e.Raw, nil }

// maxAuditPage is the largest page that the server gives.
const maxAuditPage = 100

// Audit returns up to limit entries of the caller's audit log that query asks for,
// as the API names its parameters, newest first.
func (c *Client) Audit(ctx context.Context, query url.Values, limit int) ([]AuditEntry, error) {
	var all []AuditEntry
	for len(all) < limit {
		query.Set("limit", strconv.Itoa(min(limit-len(all), maxAuditPage)))
		var page struct {
			Entries []AuditEntry `json:"entries"`
			Next    string       `json:"next_cursor"`
		}
		if err := c.call(ctx, http.MethodGet, "/api/v1/audit", query, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
		if page.Next == "" {
			break
		}
		query.Set("cursor", page.Next)
	}
	return all, nil
}
