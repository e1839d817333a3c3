package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// SharedNames keeps TemplateNames in PostgreSQL. A server on SQLite has the Templates in its
// own data folder. Its writes need no order among themselves or with others, so they do
// without the writer and its lock.
type SharedNames struct{ s *Store }

var _ sandbox.TemplateNames = SharedNames{}

// SharedNames returns the remembered names of Templates of all processes on a PostgreSQL
// database.
func (s *Store) SharedNames() SharedNames { return SharedNames{s} }

// nameLife is how long a name is remembered after its last answer.
const nameLife = `INTERVAL '30 days'`

// A crash of the server may lose the last names: the next create tells them again. So no
// commit of them waits for the disk.
const rememberLater = `SELECT clock_timestamp() FROM set_config('synchronous_commit', 'off', true)`

var rememberName = []string{
	`INSERT INTO template_names (tenant, name, asked, version, defaults, answered_at)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (tenant, name, asked) DO UPDATE SET version = excluded.version, defaults = excluded.defaults, answered_at = excluded.answered_at
		WHERE template_names.answered_at < excluded.answered_at`,
	`DELETE FROM template_names WHERE answered_at < clock_timestamp() - ` + nameLife,
	`DELETE FROM template_names WHERE tenant = $1 AND answered_at <
		(SELECT answered_at FROM template_names WHERE tenant = $1 ORDER BY answered_at DESC OFFSET $2 LIMIT 1)`,
}

// dropNames does not wait for a process that writes a name, because all writers would wait
// too. That name stays, as if it were written a moment later.
const dropNames = `DELETE FROM template_names WHERE (tenant, name, asked) IN
	(SELECT tenant, name, asked FROM template_names WHERE tenant = ? FOR UPDATE SKIP LOCKED)`

// sentAt is when a question was sent, by the database's clock, which now reads. The question
// was age old when a call began, and has become older since. A delay makes the result too
// early, never too late.
func sentAt(now *sql.Row, age time.Duration, began time.Time) (at time.Time, err error) {
	err = now.Scan(&at)
	return at.Add(-age - time.Since(began)), err
}

// RememberTemplate implements sandbox.TemplateNames.
func (n SharedNames) RememberTemplate(ctx context.Context, tenant sandbox.TenantID, asked string, m sandbox.TemplateMeaning, age time.Duration) error {
	began := time.Now()
	name := nameOf(asked)
	if name == "" || !storable(asked) || !storable(string(tenant)) {
		return sandbox.Errorf(sandbox.Invalid, "%.80q does not name a template", asked)
	}
	defaults, err := json.Marshal(m.Defaults)
	if err != nil {
		return fmt.Errorf("encode the defaults of a template: %w", err)
	}
	tx, err := n.s.reads.BeginTx(ctx, nil)
	if err != nil {
		return classify(err)
	}
	defer tx.Rollback() //nolint:errcheck // it fails after the commit
	sent, err := sentAt(tx.QueryRowContext(ctx, rememberLater), age, began)
	if err != nil {
		return classify(err)
	}
	args := [][]any{
		{string(tenant), name, asked, m.Version, defaults, sent},
		nil,
		{string(tenant), sandbox.MaxTemplateNames - 1},
	}
	for i, text := range rememberName {
		if _, err := tx.ExecContext(ctx, text, args[i]...); err != nil {
			return classify(err)
		}
	}
	return classify(tx.Commit())
}

// ForgetTemplate implements sandbox.TemplateNames. The row that stays makes older answers
// worthless, also one that another process writes later.
func (n SharedNames) ForgetTemplate(ctx context.Context, tenant sandbox.TenantID, template string) error {
	name := nameOf(template)
	if name == "" || !storable(name) || !storable(string(tenant)) {
		return nil
	}
	_, err := n.s.reads.ExecContext(ctx, `WITH gone AS (DELETE FROM template_names WHERE tenant = $1 AND name = $2 AND asked <> '')
		INSERT INTO template_names (tenant, name, asked, version, defaults, answered_at) VALUES ($1, $2, '', '', '', clock_timestamp())
		ON CONFLICT (tenant, name, asked) DO UPDATE SET answered_at = excluded.answered_at`, string(tenant), name)
	return classify(err)
}

// ForgetName implements sandbox.TemplateNames.
func (n SharedNames) ForgetName(ctx context.Context, tenant sandbox.TenantID, asked string, age time.Duration) error {
	if !storable(asked) || !storable(string(tenant)) || asked == "" {
		return nil
	}
	began := time.Now()
	sent, err := sentAt(n.s.reads.QueryRowContext(ctx, `SELECT clock_timestamp()`), age, began)
	if err != nil {
		return classify(err)
	}
	_, err = n.s.reads.ExecContext(ctx, `DELETE FROM template_names WHERE tenant = $1 AND name = $2 AND asked = $3 AND answered_at < $4`,
		string(tenant), nameOf(asked), asked, sent)
	return classify(err)
}

// RememberedTemplate implements sandbox.TemplateNames.
func (n SharedNames) RememberedTemplate(ctx context.Context, tenant sandbox.TenantID, asked string) (m sandbox.TemplateMeaning, err error) {
	missing := sandbox.Errorf(sandbox.NotFound, "no version of the template %.80q is remembered", asked)
	if !storable(asked) || !storable(string(tenant)) || asked == "" {
		return m, missing
	}
	var defaults []byte
	err = n.s.reads.QueryRowContext(ctx, `SELECT version, defaults FROM template_names AS told
		WHERE tenant = $1 AND name = $2 AND asked = $3 AND answered_at > clock_timestamp() - `+nameLife+` AND NOT EXISTS
			(SELECT 1 FROM template_names WHERE tenant = told.tenant AND name = told.name AND asked = '' AND answered_at >= told.answered_at)`,
		string(tenant), nameOf(asked), asked).Scan(&m.Version, &defaults)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return m, missing
	case err != nil:
		return m, classify(err)
	}
	if err := json.Unmarshal(defaults, &m.Defaults); err != nil {
		return m, fmt.Errorf("read the defaults of a template: %w", err)
	}
	return m, nil
}

// nameOf is NAME of NAME, NAME:TAG or NAME@VERSION.
func nameOf(template string) string {
	name, _, _ := strings.Cut(template, "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}
