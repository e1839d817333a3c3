package sqlite

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const tenantColumns = `id, name, parent, created_at, suspended_at, reason`

// tenantStatements are what the writer has prepared for tenants.
type tenantStatements struct {
	insertTenant, noteTenant, changeTenant, deleteTenant, tenantToChange *sql.Stmt
	tenantHas                                                            *sql.Stmt
	dropKeys, dropSecrets, dropSigningKey                                *sql.Stmt
}

func (s *tenantStatements) all() []prepared {
	return []prepared{
		{&s.insertTenant, `INSERT INTO tenants (` + tenantColumns + `) VALUES (?, ?, ?, ?, ?, ?)`},
		{&s.noteTenant, `INSERT INTO tenants (` + tenantColumns + `) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET parent = excluded.parent WHERE parent = '' AND excluded.parent <> ''`},
		{&s.tenantToChange, `SELECT ` + tenantColumns + ` FROM tenants WHERE id = ?`},
		{&s.changeTenant, `UPDATE tenants SET name = ?, suspended_at = ?, reason = ? WHERE id = ?`},
		{&s.deleteTenant, `DELETE FROM tenants WHERE id = ?`},
		{&s.tenantHas, `SELECT (SELECT count(*) FROM sandboxes WHERE tenant = ?1 AND state <> 'ended'),
			(SELECT count(*) FROM snapshots WHERE tenant = ?1 AND layer = ''), (SELECT count(*) FROM volumes WHERE tenant = ?1), (SELECT count(*) FROM tenants WHERE parent = ?1 AND parent <> '')`},
		{&s.dropKeys, `DELETE FROM keys WHERE tenant = ?`},
		{&s.dropSecrets, `DELETE FROM secrets WHERE tenant = ?`},
		{&s.dropSigningKey, `DELETE FROM signing_keys WHERE tenant = ?`},
	}
}

// tenantQueries are what the reading connections have prepared for them.
type tenantQueries struct{ tenant, tenants, suspensions *sql.Stmt }

func (q *tenantQueries) all() []prepared {
	return []prepared{
		{&q.tenant, `SELECT ` + tenantColumns + ` FROM tenants WHERE id = ?`},
		{&q.tenants, `SELECT ` + tenantColumns + ` FROM tenants
			WHERE id > ?1 AND (?2 = '' OR (suspended_at <> 0) = (?2 = 'suspended')) ORDER BY id LIMIT ?3`},
		{&q.suspensions, `WITH RECURSIVE held (id, own) AS (
				SELECT id, 1 FROM tenants WHERE suspended_at <> 0
				UNION SELECT below.id, 0 FROM held JOIN tenants AS below ON below.parent = held.id AND below.parent <> ''
			) SELECT id FROM held WHERE own = 1 OR substr(id, 1, 7) = 'sha256:'`},
	}
}

// InsertTenant implements sandbox.TenantStore.
func (s *Store) InsertTenant(ctx context.Context, t sandbox.Tenant) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.insertTenant.Exec(tenantArgs(t)...)
		if primaryCode(err) == sqlite3.SQLITE_CONSTRAINT {
			return sandbox.Errorf(sandbox.Conflict, "there is a tenant with this ID").WithCause(err)
		}
		return err
	})
}

func tenantArgs(t sandbox.Tenant) []any {
	var s sandbox.Suspension
	if t.Suspended != nil {
		s = *t.Suspended
	}
	return []any{string(t.ID), t.Name, string(t.Parent), micros(t.CreatedAt), micros(s.At), s.Reason}
}

// NoteTenants implements sandbox.TenantStore.
func (s *Store) NoteTenants(ctx context.Context, all []sandbox.Tenant) error {
	return s.writer.write(ctx, func(st *statements) error {
		for _, t := range all {
			if _, err := st.noteTenant.Exec(tenantArgs(t)...); err != nil {
				return err
			}
		}
		return nil
	})
}

// TenantByID implements sandbox.TenantStore.
func (s *Store) TenantByID(ctx context.Context, id sandbox.TenantID) (sandbox.Tenant, error) {
	t, err := scanTenant(s.query.tenant.QueryRowContext(ctx, string(id)).Scan)
	return t, classify(tenantError(err))
}

// tenantError is the error of a statement that should have met a Tenant.
func tenantError(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return sandbox.Errorf(sandbox.NotFound, "there is no such tenant")
	}
	return err
}

func scanTenant(scan func(...any) error) (sandbox.Tenant, error) {
	var t sandbox.Tenant
	var created, suspended int64
	var reason string
	err := scan((*string)(&t.ID), &t.Name, (*string)(&t.Parent), &created, &suspended, &reason)
	t.CreatedAt = fromMicros(created)
	if suspended != 0 {
		t.Suspended = &sandbox.Suspension{At: fromMicros(suspended), Reason: reason}
	}
	return t, err
}

// ListTenants implements sandbox.TenantStore.
func (s *Store) ListTenants(ctx context.Context, query sandbox.TenantQuery) (sandbox.TenantPage, error) {
	limit, err := pageLimit(query.Limit)
	if err != nil {
		return sandbox.TenantPage{}, err
	}
	after, err := base64.RawURLEncoding.DecodeString(query.Cursor)
	if err != nil || query.Cursor != "" && sandbox.TenantID(after).Check() != nil {
		return sandbox.TenantPage{}, sandbox.Errorf(sandbox.Invalid, "the cursor is not one that a list returned")
	}
	// One more than asked for tells whether there is a next page.
	all, err := collect(scanTenant)(s.query.tenants.QueryContext(ctx, string(after), string(query.State), limit+1))
	if err != nil {
		return sandbox.TenantPage{}, err
	}
	page := sandbox.TenantPage{Tenants: all}
	if len(all) > limit {
		page.Tenants = all[:limit]
		page.Next = base64.RawURLEncoding.EncodeToString([]byte(all[limit-1].ID))
	}
	return page, nil
}

// ChangeTenant implements sandbox.TenantStore.
func (s *Store) ChangeTenant(ctx context.Context, id sandbox.TenantID, change sandbox.TenantChange, at time.Time) (before, after sandbox.Tenant, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		var err error
		if before, err = scanTenant(st.tenantToChange.QueryRow(string(id)).Scan); err != nil {
			return tenantError(err)
		}
		after = change.Apply(before, at)
		var held sandbox.Suspension
		if after.Suspended != nil {
			held = *after.Suspended
		}
		_, err = st.changeTenant.Exec(after.Name, micros(held.At), held.Reason, string(id))
		return err
	})
	if err != nil {
		return sandbox.Tenant{}, sandbox.Tenant{}, err
	}
	return before, after, nil
}

// DeleteTenant implements sandbox.TenantStore.
func (s *Store) DeleteTenant(ctx context.Context, id sandbox.TenantID) error {
	return s.writer.write(ctx, func(st *statements) error {
		var sandboxes, snapshots, volumes, below int
		if err := st.tenantHas.QueryRow(string(id)).Scan(&sandboxes, &snapshots, &volumes, &below); err != nil {
			return err
		}
		if sandboxes+snapshots+volumes+below > 0 {
			return sandbox.Errorf(sandbox.Conflict, "the tenant still has %s", left(sandboxes, snapshots, volumes, below))
		}
		result, err := st.deleteTenant.Exec(string(id))
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, tenantError(sql.ErrNoRows))
		}
		for _, drop := range []*sql.Stmt{st.dropKeys, st.dropUsers, st.dropSecrets, st.dropSigningKey, st.dropQuota} {
			if _, err := drop.Exec(string(id)); err != nil {
				return err
			}
		}
		return userChanged(st)
	})
}

// left says what keeps a Tenant from being deleted.
func left(sandboxes, snapshots, volumes, below int) string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{sandboxes, "sessions that have not ended"}, {snapshots, "snapshots"}, {volumes, "volumes"}, {below, "tenants below it"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(parts, " and ")
}

// Suspensions implements sandbox.TenantStore.
func (s *Store) Suspensions(ctx context.Context) (sandbox.Suspensions, error) {
	ids, err := collect(func(scan func(...any) error) (id sandbox.TenantID, err error) {
		return id, scan((*string)(&id))
	})(s.query.suspensions.QueryContext(ctx))
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	all := sandbox.Suspensions{}
	for _, id := range ids {
		all[id] = true
	}
	return all, nil
}
