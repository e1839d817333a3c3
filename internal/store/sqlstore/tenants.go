package sqlstore

import (
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// tenantRow is a Tenant as stored in its row: its Suspension is zero while it is active.
type tenantRow struct {
	sandbox.Tenant
	held sandbox.Suspension
}

var tenantTable = newTable("tenants", func(r *tenantRow, c *columns) {
	c.add("id", (*string)(&r.ID))
	c.add("name", &r.Name)
	c.add("parent", (*string)(&r.Parent))
	c.add("created_at", (*moment)(&r.CreatedAt))
	c.add("suspended_at", (*moment)(&r.held.At))
	c.add("reason", &r.held.Reason)
})

var (
	noteTenant   = tenantTable.inserting("ON CONFLICT (id) DO UPDATE SET parent = excluded.parent WHERE tenants.parent = '' AND excluded.parent <> ''")
	changeTenant = tenantTable.update("id = $id", "name", "suspended_at", "reason")
)

func tenantRowOf(t sandbox.Tenant) *tenantRow {
	r := &tenantRow{Tenant: t}
	if t.Suspended != nil {
		r.held = *t.Suspended
	}
	return r
}

func scanTenant(scan func(...any) error) (sandbox.Tenant, error) {
	r, err := tenantTable.scan(scan)
	if !r.held.At.IsZero() {
		r.Suspended = &r.held
	}
	return r.Tenant, err
}

// tenantStatements are the writer's prepared statements for tenants.
type tenantStatements struct {
	insertTenant, noteTenant, changeTenant, deleteTenant, tenantToChange *sql.Stmt
	tenantHas                                                            *sql.Stmt
	dropKeys, dropSecrets, dropSigningKey                                *sql.Stmt
	dropNames                                                            *sql.Stmt // nil on SQLite
}

func (s *tenantStatements) all(d *dialect) []prepared {
	all := []prepared{
		{&s.insertTenant, tenantTable.insert.text},
		{&s.noteTenant, noteTenant.text},
		{&s.tenantToChange, tenantTable.record + `WHERE id = ?`},
		{&s.changeTenant, changeTenant.text},
		{&s.deleteTenant, `DELETE FROM tenants WHERE id = ?`},
		{&s.tenantHas, `SELECT (SELECT count(*) FROM sandboxes WHERE tenant = ?1 AND state <> 'ended'),
			(SELECT count(*) FROM snapshots WHERE tenant = ?1 AND layer = ''), (SELECT count(*) FROM volumes WHERE tenant = ?1), (SELECT count(*) FROM tenants WHERE parent = ?1 AND parent <> '')`},
		{&s.dropKeys, `DELETE FROM keys WHERE tenant = ?`},
		{&s.dropSecrets, `DELETE FROM secrets WHERE tenant = ?`},
		{&s.dropSigningKey, `DELETE FROM signing_keys WHERE tenant = ?`},
	}
	if d.dropNames != "" {
		all = append(all, prepared{&s.dropNames, d.dropNames})
	}
	return all
}

// tenantQueries are the prepared statements of reading connections.
type tenantQueries struct{ tenant, tenants, suspensions *sql.Stmt }

func (q *tenantQueries) all() []prepared {
	return []prepared{
		{&q.tenant, tenantTable.record + `WHERE id = ?`},
		{&q.tenants, tenantTable.record + `WHERE id > ?1 AND (?2 = '' OR (suspended_at <> 0) = (?2 = 'suspended')) ORDER BY id LIMIT ?3`},
		{&q.suspensions, `WITH RECURSIVE held (id, own) AS (
				SELECT id, 1 FROM tenants WHERE suspended_at <> 0
				UNION SELECT below.id, 0 FROM held JOIN tenants AS below ON below.parent = held.id AND below.parent <> ''
			) SELECT id FROM held WHERE own = 1 OR substr(id, 1, 7) = 'sha256:'`},
	}
}

// InsertTenant implements sandbox.TenantStore.
func (s *Store) InsertTenant(ctx context.Context, t sandbox.Tenant) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := tenantTable.insert.exec(st.insertTenant, tenantRowOf(t))
		if violated(err) != violatedNone {
			return sandbox.Errorf(sandbox.Conflict, "a tenant with this ID exists already").WithCause(err)
		}
		return err
	})
}

// NoteTenants implements sandbox.TenantStore.
func (s *Store) NoteTenants(ctx context.Context, all []sandbox.Tenant) error {
	return s.writer.write(ctx, func(st *statements) error {
		for _, t := range all {
			if !storable(string(t.ID)) || !storable(string(t.Parent)) { // one must not keep the others from being noted
				continue
			}
			if _, err := noteTenant.exec(st.noteTenant, tenantRowOf(t)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TenantByID implements sandbox.TenantStore.
func (s *Store) TenantByID(ctx context.Context, id sandbox.TenantID) (sandbox.Tenant, error) {
	return one(s.query.tenant.QueryRowContext(ctx, string(id)), scanTenant, noTenant)
}

func noTenant() error { return sandbox.Errorf(sandbox.NotFound, "no such tenant") }

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
	// One extra row shows whether there is a next page.
	all, err := collect(scanTenant)(s.query.tenants.QueryContext(ctx, string(after), string(query.State), limit+1))
	if err != nil {
		return sandbox.TenantPage{}, err
	}
	all, last := cutPage(all, limit)
	page := sandbox.TenantPage{Tenants: all}
	if last != nil {
		page.Next = base64.RawURLEncoding.EncodeToString([]byte(last.ID))
	}
	return page, nil
}

// ChangeTenant implements sandbox.TenantStore.
func (s *Store) ChangeTenant(ctx context.Context, id sandbox.TenantID, change sandbox.TenantChange, at time.Time) (before, after sandbox.Tenant, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		var err error
		if before, err = one(st.tenantToChange.QueryRow(string(id)), scanTenant, noTenant); err != nil {
			return err
		}
		after = change.Apply(before, at)
		_, err = changeTenant.exec(st.changeTenant, tenantRowOf(after))
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
		if err := changed(result, err, noTenant); err != nil {
			return err
		}
		drops := []*sql.Stmt{st.dropKeys, st.dropUsers, st.dropSecrets, st.dropSigningKey, st.dropQuota}
		if st.dropNames != nil {
			drops = append(drops, st.dropNames)
		}
		for _, drop := range drops {
			if _, err := drop.Exec(string(id)); err != nil {
				return err
			}
		}
		return userChanged(st)
	})
}

// left lists the objects that keep a Tenant from being deleted, with their numbers.
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
