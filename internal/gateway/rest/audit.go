package rest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const (
	// maxAuditList bounds a page of JSON.
	maxAuditList = 100
	typeLines    = "application/x-ndjson"
)

// ReadAudit answers GET /api/v1/audit with a page of the Tenant's entries, newest
// first, or with all that are wanted as JSON Lines.
func (a *API) ReadAudit(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	q, err := auditQuery(r)
	if err != nil {
		return err
	}
	if accepts(r, typeLines) {
		if r.URL.Query().Has("limit") || q.Cursor != "" {
			return sandbox.Errorf(sandbox.Invalid, "limit and cursor are for pages: with Accept: %s the answer has all entries", typeLines)
		}
		return a.auditLines(w, r, who, q)
	}
	page, err := a.Audit.ListAudit(r.Context(), who.Tenant, q)
	if err != nil {
		return err
	}
	reply := v1.AuditEntries{Entries: []v1.AuditEntry{}, Next: page.Next}
	for _, e := range page.Entries {
		reply.Entries = append(reply.Entries, v1.AuditEntryOf(e))
	}
	return Reply(w, http.StatusOK, reply)
}

// auditLines answers with all entries, page after page. limit and cursor are for JSON
// pages and do not apply.
func (a *API) auditLines(w http.ResponseWriter, r *http.Request, who sandbox.Identity, q sandbox.AuditQuery) error {
	q.Limit = sandbox.MaxAuditPage
	for begun := false; ; begun = true {
		page, err := a.Audit.ListAudit(r.Context(), who.Tenant, q)
		if err != nil {
			return err
		}
		if !begun {
			w.Header().Set("Content-Type", typeLines)
			w.Header().Set("Cache-Control", "no-store")
			w.WriteHeader(http.StatusOK)
		}
		if err := writeLines(w, page.Entries); err != nil {
			return err
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return nil
		}
	}
}

func writeLines(w http.ResponseWriter, entries []sandbox.AuditEntry) error {
	var lines bytes.Buffer
	to := json.NewEncoder(&lines)
	for _, e := range entries {
		if err := to.Encode(v1.AuditEntryOf(e)); err != nil {
			return err
		}
	}
	_, err := w.Write(lines.Bytes())
	return err
}

func auditQuery(r *http.Request) (sandbox.AuditQuery, error) {
	values, err := query(r, "since", "until", "actor", "operation", "target", "outcome", "limit", "cursor")
	if err != nil {
		return sandbox.AuditQuery{}, err
	}
	q := sandbox.AuditQuery{
		Actor: values.Get("actor"), Operation: values.Get("operation"), Target: values.Get("target"),
		Outcome: sandbox.AuditOutcome(values.Get("outcome")), Cursor: values.Get("cursor"), Limit: maxAuditList,
	}
	outcomes := []sandbox.AuditOutcome{"", sandbox.AuditOK, sandbox.AuditDenied, sandbox.AuditFailed}
	switch {
	case !slices.Contains(outcomes, q.Outcome):
		return q, sandbox.Errorf(sandbox.Invalid, `outcome must be "ok", "denied" or "failed"`)
	}
	if err := sandbox.CheckCursor(q.Cursor); err != nil {
		return q, err
	}
	if err := pageLimit(values, maxAuditList, &q.Limit); err != nil {
		return q, err
	}
	if q.Since, err = timeParameter(values, "since"); err != nil {
		return q, err
	}
	q.Until, err = timeParameter(values, "until")
	return q, err
}

// timeParameter reads a time of the query; zero when it is absent.
func timeParameter(values url.Values, name string) (time.Time, error) {
	text := values.Get(name)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		return time.Time{}, sandbox.Errorf(sandbox.Invalid, "%s must be a time such as 2026-01-02T15:04:05Z", name)
	}
	return t.UTC(), nil
}
