package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// SharedBuilds keeps BuildRecords in PostgreSQL. On SQLite no other gateway could read
// them. Each write is one statement about one row, so it does without the writer and its
// lock.
type SharedBuilds struct{ s *Store }

var _ sandbox.BuildRecords = SharedBuilds{}

// SharedBuilds returns the builds of all gateways on a PostgreSQL database.
func (s *Store) SharedBuilds() SharedBuilds { return SharedBuilds{s} }

const (
	buildColumns = `id, tenant, state, body, changes, cancel, CAST(EXTRACT(EPOCH FROM clock_timestamp() - seen_at) * 1000000 AS BIGINT)`
	forgetBuilds = `DELETE FROM builds WHERE seen_at < clock_timestamp() - INTERVAL '30 days'`
)

// PutBuildRecord implements sandbox.BuildRecords.
func (b SharedBuilds) PutBuildRecord(ctx context.Context, r sandbox.BuildRecord) error {
	if r.State == sandbox.RecordWaiting { // a new one
		if _, err := b.s.reads.ExecContext(ctx, forgetBuilds); err != nil {
			return classify(err)
		}
	}
	_, err := b.s.reads.ExecContext(ctx, `INSERT INTO builds (id, tenant, state, body, log, changes, cancel, seen_at)
		VALUES ($1, $2, $3, $4, $5, $6, FALSE, clock_timestamp())
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body, log = excluded.log, changes = excluded.changes, seen_at = excluded.seen_at`,
		r.ID, string(r.Tenant), string(r.State), nonNil(r.Body), nonNil(r.Log), r.Changes)
	return classify(err)
}

func nonNil(b []byte) []byte { return append([]byte{}, b...) }

// TouchBuildRecord implements sandbox.BuildRecords.
func (b SharedBuilds) TouchBuildRecord(ctx context.Context, id string) (cancel bool, err error) {
	err = b.s.reads.QueryRowContext(ctx, `UPDATE builds SET seen_at = clock_timestamp() WHERE id = $1 RETURNING cancel`, id).Scan(&cancel)
	return cancel, buildError(id, err)
}

// TakeBuildRecord implements sandbox.BuildRecords.
func (b SharedBuilds) TakeBuildRecord(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.BuildRecord, error) {
	r, err := scanBuild(b.s.reads.QueryRowContext(ctx, `UPDATE builds SET state = $3, seen_at = clock_timestamp()
		WHERE id = $1 AND tenant = $2 AND state = $4 RETURNING `+buildColumns, id, string(tenant), string(sandbox.RecordTaken), string(sandbox.RecordWaiting)).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		if _, err := b.BuildRecord(ctx, tenant, id, 1<<62); err != nil {
			return sandbox.BuildRecord{}, err
		}
		return sandbox.BuildRecord{}, sandbox.Errorf(sandbox.Conflict, "the build %.40q does not wait to be started", id)
	}
	return r, classify(err)
}

// BuildRecord implements sandbox.BuildRecords.
func (b SharedBuilds) BuildRecord(ctx context.Context, tenant sandbox.TenantID, id string, after int64) (sandbox.BuildRecord, error) {
	var log []byte
	row := b.s.reads.QueryRowContext(ctx, `SELECT `+buildColumns+`, CASE WHEN changes > $3 THEN log END FROM builds WHERE id = $1 AND tenant = $2`, id, string(tenant), after)
	r, err := scanBuild(func(to ...any) error { return row.Scan(append(to, &log)...) })
	r.Log = log
	return r, buildError(id, err)
}

// ListBuildRecords implements sandbox.BuildRecords.
func (b SharedBuilds) ListBuildRecords(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.BuildRecord, error) {
	return collect(scanBuild)(b.s.reads.QueryContext(ctx, `SELECT `+buildColumns+` FROM builds WHERE tenant = $1`, string(tenant)))
}

// CancelBuildRecord implements sandbox.BuildRecords.
func (b SharedBuilds) CancelBuildRecord(ctx context.Context, tenant sandbox.TenantID, id string) error {
	done, err := b.s.reads.ExecContext(ctx, `UPDATE builds SET cancel = TRUE WHERE id = $1 AND tenant = $2 AND state = $3`, id, string(tenant), string(sandbox.RecordTaken))
	if err != nil {
		return classify(err)
	}
	if n, err := done.RowsAffected(); err != nil || n > 0 {
		return err
	}
	if _, err := b.BuildRecord(ctx, tenant, id, 1<<62); err != nil {
		return err
	}
	return sandbox.Errorf(sandbox.Conflict, "the build %.40q does not run", id)
}

// DeleteBuildRecord implements sandbox.BuildRecords.
func (b SharedBuilds) DeleteBuildRecord(ctx context.Context, id string, state sandbox.BuildRecordState) error {
	_, err := b.s.reads.ExecContext(ctx, `DELETE FROM builds WHERE id = $1 AND state = $2`, id, string(state))
	return classify(err)
}

func scanBuild(scan func(...any) error) (r sandbox.BuildRecord, err error) {
	var silence int64
	err = scan(&r.ID, (*string)(&r.Tenant), (*string)(&r.State), &r.Body, &r.Changes, &r.Cancel, &silence)
	r.Silence = time.Duration(silence) * time.Microsecond
	return r, err
}

// buildError is err about one build.
func buildError(id string, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return sandbox.Errorf(sandbox.NotFound, "no record of the build %.40q", id)
	}
	return classify(err)
}
