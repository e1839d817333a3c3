package sqlite

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const maxPage = 100

// notEnded are the States of a list that names none.
var notEnded = []sandbox.State{
	sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.Stopping,
}

// ListSandboxes implements sandbox.SandboxStore. A Cursor that is none of ours
// and a Limit out of bounds are Invalid.
func (s *Store) ListSandboxes(ctx context.Context, tenant sandbox.TenantID, query sandbox.ListQuery) (sandbox.Page, error) {
	if query.Limit < 0 || query.Limit > maxPage {
		return sandbox.Page{}, sandbox.Errorf(sandbox.Invalid, "limit must be between 1 and %d", maxPage)
	}
	limit := query.Limit
	if limit == 0 {
		limit = maxPage
	}
	after, err := parseCursor(query.Cursor)
	if err != nil {
		return sandbox.Page{}, err
	}
	states, metadata, err := filters(query)
	if err != nil {
		return sandbox.Page{}, err
	}
	list := s.query.list
	if !slices.Contains(query.States, sandbox.Ended) {
		list = s.query.listOpen
	}
	// One more than asked for tells whether there is a next page.
	all, err := many(list.QueryContext(ctx, tenant, after.created, after.id, states, metadata, limit+1))
	if err != nil {
		return sandbox.Page{}, err
	}
	page := sandbox.Page{Sandboxes: all}
	if len(all) > limit {
		page.Sandboxes = all[:limit]
		last := all[limit-1]
		page.Next = cursor{created: micros(last.CreatedAt), id: last.ID}.String()
	}
	return page, nil
}

func filters(query sandbox.ListQuery) (states, metadata string, err error) {
	wanted := query.States
	if len(wanted) == 0 {
		wanted = notEnded
	}
	b, err := json.Marshal(wanted)
	if err != nil {
		return "", "", err
	}
	metadata, err = encode(query.Metadata)
	return string(b), metadata, err
}

// A cursor is the place of the last record of a page; the next page begins
// after it. IDs tell records of one microsecond apart.
type cursor struct {
	created int64
	id      string
}

func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.created, 10) + " " + c.id))
}

func parseCursor(s string) (cursor, error) {
	if s == "" {
		return cursor{created: math.MaxInt64}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		if created, id, ok := strings.Cut(string(b), " "); ok && sandbox.ValidSandboxID(id) {
			if n, err := strconv.ParseInt(created, 10, 64); err == nil {
				return cursor{created: n, id: id}, nil
			}
		}
	}
	return cursor{}, sandbox.Errorf(sandbox.Invalid, "the cursor is not one that a list returned")
}
