package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// maxAuditPage is the largest page that the server gives.
const maxAuditPage = 100

// Audit returns up to limit entries of the caller's audit log, newest first. query
// holds the API's parameters.
func (c *Client) Audit(ctx context.Context, query url.Values, limit int) ([]v1.AuditEntry, error) {
	var all []v1.AuditEntry
	for len(all) < limit {
		query.Set("limit", strconv.Itoa(min(limit-len(all), maxAuditPage)))
		var page v1.AuditEntries
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
