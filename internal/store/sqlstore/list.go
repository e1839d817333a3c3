package sqlstore

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const maxPage = 100

// notEnded are the default States of a list.
var notEnded = []sandbox.State{
	sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.Stopping,
}

// ListSandboxes implements sandbox.SandboxStore. A malformed Cursor and a Limit out of
// bounds are Invalid.
func (s *Store) ListSandboxes(ctx context.Context, tenant sandbox.TenantID, query sandbox.ListQuery) (sandbox.Page, error) {
	limit, err := pageLimit(query.Limit)
	if err != nil {
		return sandbox.Page{}, err
	}
	after, err := parseCursor(query.Cursor, query.OldestFirst, sandbox.ValidSandboxID)
	if err != nil {
		return sandbox.Page{}, err
	}
	states, metadata, err := filters(query)
	if err != nil {
		return sandbox.Page{}, err
	}
	list := s.listing(query)
	// One extra row shows whether there is a next page.
	all, err := collect(scanSandbox)(list.QueryContext(ctx, tenant, after.created, after.id, states, metadata, limit+1, micros(query.From), query.Template))
	if err != nil {
		return sandbox.Page{}, err
	}
	all, last := cutPage(all, limit)
	page := sandbox.Page{Sandboxes: all}
	if last != nil {
		page.Next = cursor{created: micros(last.CreatedAt), id: last.ID, oldestFirst: query.OldestFirst}.String()
	}
	return page, nil
}

// listing is the prepared statement of a query.
func (s *Store) listing(query sandbox.ListQuery) *sql.Stmt {
	ended := slices.Contains(query.States, sandbox.Ended)
	switch {
	case query.OldestFirst && ended:
		return s.query.oldest
	case query.OldestFirst:
		return s.query.oldestOpen
	case ended:
		return s.query.list
	}
	return s.query.listOpen
}

// pageLimit is the page size for a requested limit; zero: the maximum.
func pageLimit(limit int) (int, error) {
	switch {
	case limit < 0 || limit > maxPage:
		return 0, sandbox.Errorf(sandbox.Invalid, "limit must be between 1 and %d", maxPage)
	case limit == 0:
		return maxPage, nil
	}
	return limit, nil
}

// cutPage cuts the result of a query for limit+1 rows to a page, and returns its last
// record if there is a next page.
func cutPage[R any](all []R, limit int) (page []R, last *R) {
	if len(all) <= limit {
		return all, nil
	}
	return all[:limit], &all[limit-1]
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

// A cursor is the position of the last record of a page; the next page begins after it.
// IDs break ties within one microsecond.
type cursor struct {
	created     int64
	id          string
	oldestFirst bool
}

// oldestMark ends the cursors of lists in that order.
const oldestMark = " oldest"

func (c cursor) String() string {
	text := strconv.FormatInt(c.created, 10) + " " + c.id
	if c.oldestFirst {
		text += oldestMark
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func parseCursor(s string, oldestFirst bool, valid func(id string) bool) (cursor, error) {
	switch {
	case s == "" && oldestFirst:
		return cursor{created: math.MinInt64}, nil
	case s == "":
		return cursor{created: math.MaxInt64}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if text, marked := strings.CutSuffix(string(b), oldestMark); err == nil && marked == oldestFirst {
		if created, id, ok := strings.Cut(text, " "); ok && valid(id) {
			if n, err := strconv.ParseInt(created, 10, 64); err == nil {
				return cursor{created: n, id: id}, nil
			}
		}
	}
	return cursor{}, sandbox.Errorf(sandbox.Invalid, "the cursor is not one that a list returned")
}
