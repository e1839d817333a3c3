package e2b

import (
	"cmp"
	"context"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

var (
	running = []sandbox.State{sandbox.Running, sandbox.Resuming}
	paused  = []sandbox.State{sandbox.Paused, sandbox.Pausing}
)

// List answers GET /v2/sandboxes with a page.
func (a *API) List(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	q, err := listQuery(r, who)
	if err != nil {
		return err
	}
	page, err := a.Sandboxes.List(r.Context(), who.Tenant, q)
	if err != nil {
		return badToken(q, err)
	}
	if page.Next != "" {
		w.Header().Set("X-Next-Token", page.Next)
	}
	if slices.Contains(q.States, sandbox.Running) {
		counts, err := a.Sandboxes.Counts(r.Context(), who.Tenant)
		if err != nil {
			return err
		}
		w.Header().Set("X-Total-Running", strconv.Itoa(counts[sandbox.Running]+counts[sandbox.Resuming]))
	}
	return rest.Reply(w, http.StatusOK, a.listed(r.Context(), page.Sandboxes))
}

// maxListed bounds a list without pages.
const maxListed = 10_000

// ListRunning answers GET /sandboxes with all running ones, newest first.
func (a *API) ListRunning(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "metadata")
	if err != nil {
		return err
	}
	q := sandbox.ListQuery{States: running}
	if q.Metadata, err = metadataFilter(values.Get("metadata")); err != nil {
		return err
	}
	all, err := a.allSandboxes(r.Context(), who, q)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, a.listed(r.Context(), all))
}

// allSandboxes returns the newest maxListed matches of q, or a few more.
func (a *API) allSandboxes(ctx context.Context, who sandbox.Identity, q sandbox.ListQuery) ([]sandbox.Sandbox, error) {
	var all []sandbox.Sandbox
	for len(all) < maxListed {
		page, err := a.Sandboxes.List(ctx, who.Tenant, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Sandboxes...)
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	return all, nil
}

func (a *API) listed(ctx context.Context, all []sandbox.Sandbox) []listedView {
	views := make([]listedView, 0, len(all))
	type template struct{ id, alias string }
	of := map[string]template{}
	for _, sb := range all {
		from := cmp.Or(sb.Origin, sb.Template)
		t, known := of[from]
		if !known {
			t.id, t.alias = a.templateOf(ctx, sb)
			of[from] = t
		}
		views = append(views, listedViewOf(sb, t.id, t.alias))
	}
	return views
}

// badToken names an invalid cursor, which only a Store can check, by its name in E2B's
// API.
func badToken(q sandbox.ListQuery, err error) error {
	if q.Cursor != "" && sandbox.CodeOf(err) == sandbox.Invalid {
		return errNextToken().WithCause(err)
	}
	return err
}

func errNextToken() *sandbox.Error { return sandbox.Errorf(sandbox.Invalid, "Invalid next token") }

const (
	maxToken = 512 // bytes
	maxPage  = 100 // the default and the maximum
)

func listQuery(r *http.Request, who sandbox.Identity) (sandbox.ListQuery, error) {
	values, err := parameters(r, "metadata", "state", "order", "startedAfter", "template", "limit", "nextToken")
	if err != nil {
		return sandbox.ListQuery{}, err
	}
	q := sandbox.ListQuery{States: slices.Concat(running, paused), Cursor: values.Get("nextToken")}
	if len(q.Cursor) > maxToken {
		return q, errNextToken()
	}
	if q.Limit, err = limitOf(values); err != nil {
		return q, err
	}
	if q.Metadata, err = metadataFilter(values.Get("metadata")); err != nil {
		return q, err
	}
	if s := values.Get("state"); s != "" {
		if q.States, err = states(s); err != nil {
			return q, err
		}
	}
	switch order := values.Get("order"); order {
	case "", "desc":
	case "asc":
		q.OldestFirst = true
	default:
		return q, sandbox.Errorf(sandbox.Invalid, "order must be asc or desc, not %.32q", order)
	}
	if s := values.Get("startedAfter"); s != "" {
		if q.From, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return q, sandbox.Errorf(sandbox.Invalid, "startedAfter must be a time in RFC 3339")
		}
	}
	if s := values.Get("template"); s != "" {
		if strings.Contains(s, ":") {
			return q, sandbox.Errorf(sandbox.Invalid, "template is an ID or an alias, without a tag")
		}
		q.Template = withoutNamespace(who, strings.ToLower(strings.TrimSpace(s)))
	}
	return q, nil
}

// parameters are the parameters of the URL, each at most once.
func parameters(r *http.Request, known ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the query of the URL is malformed")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all := values[name]
		if !slices.Contains(known, name) {
			return nil, sandbox.Errorf(sandbox.Invalid, "unknown query parameter %.64q", name)
		}
		if len(all) != 1 {
			return nil, sandbox.Errorf(sandbox.Invalid, "the query parameter %s is given twice", name)
		}
	}
	return values, nil
}

// limitOf is zero for a query without a limit.
func limitOf(values url.Values) (int, error) {
	s := values.Get("limit")
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxPage {
		return 0, sandbox.Errorf(sandbox.Invalid, "limit must be a whole number from 1 to %d", maxPage)
	}
	return n, nil
}

// pageParameters are the parameters of a paged list.
var pageParameters = []string{"limit", "nextToken"}

// pageByName returns a query's page of a list that is sorted by name, and sets the
// header with the next page's token.
func pageByName[T any](w http.ResponseWriter, values url.Values, name func(T) string, list func() ([]T, error)) ([]T, error) {
	limit, after, err := pageQuery(values)
	if err != nil {
		return nil, err
	}
	all, err := list()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(v T) bool { return name(v) <= after })
	return cutPage(w, all, limit, name), nil
}

// pageOf is pageByName for a list in any order, whose items have distinct IDs.
func pageOf[T any](w http.ResponseWriter, values url.Values, all []T, id func(T) string) ([]T, error) {
	limit, after, err := pageQuery(values)
	if err != nil {
		return nil, err
	}
	if after != "" {
		i := slices.IndexFunc(all, func(v T) bool { return id(v) == after })
		if i < 0 {
			return nil, errNextToken()
		}
		all = all[i+1:]
	}
	return cutPage(w, all, limit, id), nil
}

// pageQuery returns the limit and the last name or ID of the previous page; empty: the
// first page.
func pageQuery(values url.Values) (limit int, after string, err error) {
	if limit, err = limitOf(values); err != nil {
		return 0, "", err
	}
	if limit == 0 {
		limit = maxPage
	}
	last, err := base64.RawURLEncoding.DecodeString(values.Get("nextToken"))
	if err != nil {
		return 0, "", errNextToken()
	}
	return limit, string(last), nil
}

// cutPage is the first page of all. If more follow, the header has the token of the
// next page.
func cutPage[T any](w http.ResponseWriter, all []T, limit int, id func(T) string) []T {
	if len(all) <= limit {
		return all
	}
	w.Header().Set("X-Next-Token", base64.RawURLEncoding.EncodeToString([]byte(id(all[limit-1]))))
	return all[:limit]
}

func states(s string) ([]sandbox.State, error) {
	var all []sandbox.State
	for name := range strings.SplitSeq(s, ",") {
		switch name {
		case stateRunning:
			all = append(all, running...)
		case statePaused:
			all = append(all, paused...)
		default:
			return nil, sandbox.Errorf(sandbox.Invalid, "a state is running or paused, not %.32q", name)
		}
		if len(all) > 2*(len(running)+len(paused)) {
			return nil, sandbox.Errorf(sandbox.Invalid, "a state is given more than once")
		}
	}
	return all, nil
}

// metadataFilter decodes pairs that clients encode twice: each part, and then the whole
// query within the query.
func metadataFilter(s string) (map[string]string, error) {
	bad := sandbox.Errorf(sandbox.Invalid, "metadata must be pairs key=value joined by &, each part percent-encoded")
	values, err := url.ParseQuery(s)
	if err != nil {
		return nil, bad
	}
	pairs := map[string]string{}
	for key, all := range values {
		k, err := url.PathUnescape(key)
		if err != nil {
			return nil, bad
		}
		v, err := url.PathUnescape(all[len(all)-1])
		if err != nil {
			return nil, bad
		}
		pairs[k] = v
	}
	return pairs, nil
}
