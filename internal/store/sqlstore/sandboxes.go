package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// sandboxRow is a Sandbox as stored in its row: its termination record is empty before
// its end.
type sandboxRow struct {
	sandbox.Sandbox
	end sandbox.TerminationRecord
}

var sandboxTable = newTable("sandboxes", func(r *sandboxRow, c *columns) {
	c.add("id", &r.ID)
	c.add("tenant", (*string)(&r.Tenant))
	c.add("name", &r.Name)
	c.add("state", (*string)(&r.State))
	c.add("template", &r.Template)
	c.add("image", &r.Image)
	c.add("engine", &r.Engine)
	c.add("cpus", &r.Shape.CPUs)
	c.add("memory_bytes", &r.Shape.MemoryBytes)
	c.add("disk_bytes", &r.Shape.DiskBytes)
	c.add("pids", &r.Shape.Pids)
	c.add("network", (*string)(&r.Network))
	c.add("metadata", (*labels)(&r.Metadata))
	c.add("env", (*labels)(&r.Env))
	c.add("boot_id", &r.Boot.ID)
	c.add("boot_number", &r.Boot.Number)
	c.add("boot_node", &r.Boot.Node)
	c.add("created_at", (*moment)(&r.CreatedAt))
	c.add("started_at", (*moment)(&r.StartedAt))
	c.add("timeout", (*span)(&r.Timeout))
	c.add("deadline", (*moment)(&r.Deadline))
	c.add("on_timeout", (*string)(&r.OnTimeout))
	c.add("timeline", &r.Timeline)
	c.add("ended_cause", (*string)(&r.end.Cause))
	c.add("ended_at", (*moment)(&r.end.At))
	c.add("version", &r.Version)
	c.add("idle_timeout", (*span)(&r.IdleTimeout))
	c.add("limit_cpus", &r.Limits.CPUs)
	c.add("limit_memory_bytes", &r.Limits.MemoryBytes)
	c.add("limit_pids", &r.Limits.Pids)
	c.add("user_name", &r.User)
	c.add("cwd", &r.Cwd)
	c.add("revision", &r.Revision)
	c.add("ended_output", &r.end.OutputTail)
	c.add("snapshot", &r.Snapshot)
	c.add("stay_paused", &r.StayPaused)
	c.add("snapshot_at", (*moment)(&r.SnapshotAt))
	c.add("checkpoint_every", (*span)(&r.CheckpointEvery))
	c.add("restored_from", &r.Restored.From)
	c.add("restored_lost", (*span)(&r.Restored.Lost))
	c.add("restored_times", &r.Restored.Times)
	c.add("secrets", (*string)(&r.Secrets))
	c.add("runs_until", (*moment)(&r.RunsUntil))
	c.add("ingress", (*string)(&r.Ingress))
	c.add("limit_bandwidth", &r.Limits.Bandwidth)
	c.add("volumes", (*mounts)(&r.Volumes))
	c.add("origin", &r.Origin)
	c.add("may_run", &r.MayRun)
	c.add("back_snapshot", &r.Back.Snapshot)
	c.add("back_timeline", &r.Back.Timeline)
	c.add("back_boot", &r.Back.Boot)
})

// SQLite rewrites the index of a column that an UPDATE names, even if the value stays: so
// no update names created_at, which never changes, nor ended_cause before the end.
var (
	updateSandbox = sandboxTable.updateBut(thatVersion, "id", "tenant", "created_at", "ended_cause")
	endSandbox    = sandboxTable.updateBut(thatVersion, "id", "tenant", "created_at")
)

// thatVersion selects the row that a record was read from, if unchanged; the record's
// version has been incremented since.
const thatVersion = "id = $id AND tenant = $tenant AND version + 1 = $version"

// rowOf is the row of sb.
func rowOf(sb sandbox.Sandbox) *sandboxRow {
	r := &sandboxRow{Sandbox: sb}
	r.MeteredAt = time.Time{}
	if sb.Ended != nil {
		r.end = *sb.Ended
	}
	return r
}

// record is the Sandbox of a row.
func (r *sandboxRow) record() sandbox.Sandbox {
	r.Ended = nil
	if r.end.Cause != "" {
		end := r.end
		r.Ended = &end
	}
	return r.Sandbox
}

func scanSandbox(scan func(...any) error) (sandbox.Sandbox, error) {
	r, err := sandboxTable.scan(scan)
	return r.record(), err
}

// deleteBatch is how many rows one write deletes, before other writes run.
const deleteBatch = 256

const (
	deleteEndedText   = `DELETE FROM sandboxes WHERE id IN (SELECT id FROM sandboxes WHERE state = 'ended' AND ended_at < ? LIMIT ?)`
	deleteRefusedText = `DELETE FROM sandboxes WHERE id IN (SELECT id FROM sandboxes WHERE ended_cause = 'refused' AND ended_at < ? LIMIT ?)`
)

// statements are the prepared statements of the writer's connection.
type statements struct {
	begin, lock, commitLater       *sql.Stmt // lock and commitLater are nil on SQLite
	commit, rollback               *sql.Stmt
	savepoint, rollbackTo, release *sql.Stmt
	insert, update, updateEnded    *sql.Stmt
	exists                         *sql.Stmt
	deleteEnded, deleteRefused     *sql.Stmt
	keepNode, nodeNow, retireNodes *sql.Stmt
	drainNode, loseNode            *sql.Stmt
	leaderStatements
	copyKeyStatements
	copyStatements
	signingStatements
	keyStatements
	secretStatements
	quotaStatements
	snapshotStatements
	volumeStatements
	auditStatements
	usageStatements
	tenantStatements
	userStatements
	webhookStatements
	checkStatements
}

func (s *statements) all(d *dialect) []prepared {
	return slices.Concat(s.transaction(d), s.leaderStatements.all(d), s.copyKeyStatements.all(), s.copyStatements.all(d), s.signingStatements.all(), s.keyStatements.all(), s.secretStatements.all(), s.quotaStatements.all(), s.snapshotStatements.all(), s.volumeStatements.all(d), s.auditStatements.all(), s.usageStatements.all(), s.tenantStatements.all(d), s.userStatements.all(d), s.webhookStatements.all(), s.checkStatements.all(d), []prepared{
		{&s.insert, sandboxTable.insert.text},
		{&s.update, updateSandbox.text},
		{&s.updateEnded, endSandbox.text},
		{&s.exists, `SELECT 1 FROM sandboxes WHERE id = ? AND tenant = ?`},
		{&s.deleteEnded, deleteEndedText},
		{&s.deleteRefused, deleteRefusedText},
		{&s.keepNode, keepNode.text},
		{&s.nodeNow, d.clocked(nodeTable.record + `WHERE name = ?`)},
		{&s.retireNodes, retireNodesText},
		{&s.drainNode, `UPDATE nodes SET draining = ?, move_volumes = ? WHERE name = ?`},
		{&s.loseNode, `UPDATE nodes SET lost_epoch = ?, given_up_epoch = ? WHERE name = ?`},
	})
}

func (s *statements) transaction(d *dialect) []prepared {
	all := []prepared{
		{&s.begin, d.begin},
		{&s.commit, `COMMIT`},
		{&s.rollback, `ROLLBACK`},
		{&s.savepoint, `SAVEPOINT one`},
		{&s.rollbackTo, `ROLLBACK TO one`},
		{&s.release, `RELEASE one`},
	}
	if d.lock != "" {
		all = append(all, prepared{&s.lock, d.lock}, prepared{&s.commitLater, d.commitLater})
	}
	return all
}

// newestFirst and oldestFirst are the two orders of a list, with the start of a page.
func newestFirst(d *dialect) string {
	return `tenant = ?1 AND (created_at, id) < (?2, ?3)` + listed(d) + ` ORDER BY created_at DESC, id DESC LIMIT ?6`
}

func oldestFirst(d *dialect) string {
	return `tenant = ?1 AND (created_at, id) > (?2, ?3)` + listed(d) + ` ORDER BY created_at, id LIMIT ?6`
}

// listed filters a page.
func listed(d *dialect) string {
	return ` AND ` + d.inStates + ` AND ` + d.withMetadata + ` AND created_at >= ?7
	AND (?8 = '' OR template = ?8 OR origin = ?8 OR substr(template, 1, length(?8) + 1) IN (?8 || ':', ?8 || '@'))`
}

// queries are the prepared statements of reading connections.
type queries struct {
	list, listOpen      *sql.Stmt // listOpen excludes ended ones
	oldest, oldestOpen  *sql.Stmt // the same, oldest first
	count               *sql.Stmt
	notEnded, due, next *sql.Stmt
	byIDs               *sql.Stmt
	nodes, leader       *sql.Stmt
	nodeUse             *sql.Stmt
	signingQueries
	keyQueries
	secretQueries
	quotaQueries
	snapshotQueries
	copyQueries
	volumeQueries
	auditQueries
	usageQueries
	tenantQueries
	userQueries
	webhookQueries
}

func (q *queries) all(d *dialect) []prepared {
	record := sandboxTable.record
	return slices.Concat(q.signingQueries.all(), q.keyQueries.all(), q.secretQueries.all(), q.quotaQueries.all(), q.snapshotQueries.all(), q.copyQueries.all(d), q.volumeQueries.all(d), q.auditQueries.all(), q.usageQueries.all(), q.tenantQueries.all(), q.userQueries.all(), q.webhookQueries.all(), []prepared{
		{&q.list, record + `WHERE ` + newestFirst(d)},
		{&q.listOpen, record + `WHERE state <> 'ended' AND ` + newestFirst(d)},
		{&q.oldest, record + `WHERE ` + oldestFirst(d)},
		{&q.oldestOpen, record + `WHERE state <> 'ended' AND ` + oldestFirst(d)},
		{&q.count, `SELECT state, count(*) FROM sandboxes WHERE tenant = ? AND state <> 'ended' GROUP BY state`},
		{&q.byIDs, record + `WHERE id ` + d.inList},
		{&q.notEnded, record + `WHERE state <> 'ended'`},
		{&q.due, record + `WHERE state NOT IN ('stopping', 'ended') AND deadline <= ?2 AND tenant NOT ` + d.inList + ` ORDER BY deadline LIMIT ?3`},
		{&q.next, `SELECT min(deadline) FROM sandboxes WHERE state NOT IN ('stopping', 'ended')`},
		{&q.nodes, d.clocked(nodeTable.record + `ORDER BY name`)},
		{&q.leader, d.clocked(leaderOfText)},
		{&q.nodeUse, nodeUseText},
	})
}

// InsertSandbox implements sandbox.SandboxStore.
func (s *Store) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	at := sb.MeteredAt
	row := rowOf(sb)
	row.Version = 1
	args, err := sandboxTable.insert.args(row)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	sb = row.record()
	err = s.writer.send(ctx, func(p *pipeline) error {
		var had openUsage
		var quota ownQuota
		saved(p, sb)
		mounted(p, sb)
		p.exec(p.st.insert, args...)
		p.st.open(p, sb.ID, &had)
		quota.read(p, sb.Tenant)
		if err := p.flush(); err != nil {
			return taken(err, sb)
		}
		p.st.meter(p, sb, had, at)
		return s.admit(p, quota, sb)
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sb, nil
}

// UpdateSandbox implements sandbox.SandboxStore.
func (s *Store) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	at := sb.MeteredAt
	row := rowOf(sb)
	row.Version++
	update, ended := &updateSandbox, row.end.Cause != ""
	if ended {
		update = &endSandbox
	}
	args, err := update.args(row)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	sb = row.record()
	var counted sandbox.UsageAmount
	err = s.writer.send(ctx, func(p *pipeline) error {
		var l life
		var had openUsage
		var updated bool
		saved(p, sb)
		p.st.lifeBefore(p, sb, &l)
		stmt := p.st.update
		if ended {
			stmt = p.st.updateEnded
		}
		p.changed(stmt, func(n int64) error {
			updated = n == 1
			return nil
		}, args...)
		p.st.open(p, sb.ID, &had)
		if err := p.flush(); err != nil {
			return taken(err, sb)
		}
		if updated {
			counted = p.st.meter(p, sb, had, at)
			return p.queueLife(l, sb)
		}
		st, err := p.direct()
		if err != nil {
			return err
		}
		var one int
		switch err := st.exists.QueryRow(sb.ID, sb.Tenant).Scan(&one); {
		case errors.Is(err, sql.ErrNoRows):
			return notFound()
		case err != nil:
			return err
		}
		return sandbox.Errorf(sandbox.Conflict, "the sandbox was changed by another request: read it again")
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	s.counter.add(counted)
	return sb, nil
}

// saved makes the pipeline fail with Conflict if sb needs a Snapshot that does not exist.
func saved(p *pipeline, sb sandbox.Sandbox) {
	switch sb.State {
	case sandbox.Starting, sandbox.Paused, sandbox.Resuming:
	default:
		return
	}
	if sb.Snapshot != "" {
		p.needs(p.st.snapshotReady, sandbox.Errorf(sandbox.Conflict, "the snapshot %s is gone", sb.Snapshot), sb.Snapshot, string(sb.Tenant))
	}
}

// taken turns the two uniqueness violations of a record into Conflicts.
func taken(err error, sb sandbox.Sandbox) error {
	switch violated(err) {
	case violatedUnique:
		return sandbox.Errorf(sandbox.Conflict, "the name %q is in use", sb.Name)
	case violatedKey:
		return sandbox.Errorf(sandbox.Conflict, "the sandbox ID is in use")
	}
	return err
}

func notFound() error { return sandbox.Errorf(sandbox.NotFound, "no such sandbox") }

// SandboxByID implements sandbox.SandboxStore.
func (s *Store) SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error) {
	return s.oneBy(ctx, func(ctx context.Context, q *briefQueries) *sql.Row { return q.byID.QueryRowContext(ctx, id) })
}

// SandboxByName implements sandbox.SandboxStore.
func (s *Store) SandboxByName(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.Sandbox, error) {
	return s.oneBy(ctx, func(ctx context.Context, q *briefQueries) *sql.Row {
		return q.byName.QueryRowContext(ctx, tenant, name)
	})
}

func (s *Store) oneBy(ctx context.Context, query func(context.Context, *briefQueries) *sql.Row) (sb sandbox.Sandbox, err error) {
	err = s.brief.do(ctx, func(ctx context.Context, q *briefQueries) (err error) {
		sb, err = scanSandbox(query(ctx, q).Scan)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return sandbox.Sandbox{}, notFound()
	}
	return sb, classify(err)
}

// SandboxesByID implements sandbox.SandboxStore.
func (s *Store) SandboxesByID(ctx context.Context, ids []string) ([]sandbox.Sandbox, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	return collect(scanSandbox)(s.query.byIDs.QueryContext(ctx, string(text)))
}

// SandboxesNotEnded implements sandbox.SandboxStore.
func (s *Store) SandboxesNotEnded(ctx context.Context) ([]sandbox.Sandbox, error) {
	return collect(scanSandbox)(s.query.notEnded.QueryContext(ctx))
}

// SandboxesDue implements sandbox.SandboxStore.
func (s *Store) SandboxesDue(ctx context.Context, now time.Time, limit int, except []sandbox.TenantID) ([]sandbox.Sandbox, error) {
	text, err := json.Marshal(append([]sandbox.TenantID{}, except...)) // never null
	if err != nil {
		return nil, err
	}
	return collect(scanSandbox)(s.query.due.QueryContext(ctx, string(text), micros(now), limit))
}

// NextDeadline implements sandbox.SandboxStore.
func (s *Store) NextDeadline(ctx context.Context) (time.Time, bool, error) {
	var next sql.NullInt64
	if err := s.query.next.QueryRowContext(ctx).Scan(&next); err != nil {
		return time.Time{}, false, classify(err)
	}
	return fromMicros(next.Int64), next.Valid, nil
}

// CountSandboxes implements sandbox.SandboxStore.
func (s *Store) CountSandboxes(ctx context.Context, tenant sandbox.TenantID) (map[sandbox.State]int, error) {
	rows, err := s.query.count.QueryContext(ctx, tenant)
	if err != nil {
		return nil, classify(err)
	}
	defer rows.Close()
	counts := map[sandbox.State]int{}
	for rows.Next() {
		var state sandbox.State
		var n int
		if err := rows.Scan(&state, &n); err != nil {
			return nil, classify(err)
		}
		counts[state] = n
	}
	return counts, classify(rows.Err())
}

// DeleteEnded implements sandbox.SandboxStore.
func (s *Store) DeleteEnded(ctx context.Context, before, refused time.Time) (int, error) {
	ended, err := s.deleteAll(ctx, micros(before), func(st *statements) *sql.Stmt { return st.deleteEnded })
	if err != nil {
		return ended, err
	}
	others, err := s.deleteAll(ctx, micros(refused), func(st *statements) *sql.Stmt { return st.deleteRefused })
	return ended + others, err
}

// deleteAll repeats a statement that deletes up to deleteBatch rows from before a time or day,
// as its column has it, each time in its own write, until none are left. It returns how many
// it deleted.
func (s *Store) deleteAll(ctx context.Context, before int64, stmt func(*statements) *sql.Stmt) (int, error) {
	for total := 0; ; {
		var deleted int64
		err := s.writer.write(ctx, func(st *statements) error {
			result, err := stmt(st).Exec(before, deleteBatch)
			if err != nil {
				return err
			}
			deleted, err = result.RowsAffected()
			return err
		})
		if total += int(deleted); err != nil || deleted < deleteBatch {
			return total, err
		}
	}
}

// collect reads all rows of a query.
func collect[T any](scan func(func(...any) error) (T, error)) func(*sql.Rows, error) ([]T, error) {
	return func(rows *sql.Rows, err error) ([]T, error) {
		if err != nil {
			return nil, classify(err)
		}
		defer rows.Close()
		var all []T
		for rows.Next() {
			v, err := scan(rows.Scan)
			if err != nil {
				return nil, classify(err)
			}
			all = append(all, v)
		}
		return all, classify(rows.Err())
	}
}

// micros converts to microseconds; the zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}
