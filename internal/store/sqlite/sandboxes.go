package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// columns are those of a record, in the order of values and scan.
const columns = `id, tenant, name, state, template, image, engine,
	cpus, memory_bytes, disk_bytes, pids, network, metadata, env,
	boot_id, boot_number, boot_node, created_at, started_at, timeout, deadline,
	on_timeout, timeline, ended_cause, ended_at, version,
	idle_timeout, limit_cpus, limit_memory_bytes, limit_pids, user, cwd, revision, ended_output,
	snapshot, stay_paused, snapshot_at, checkpoint_every, restored_from, restored_lost, restored_times, secrets, runs_until, ingress, limit_bandwidth, volumes, origin`

// deleteBatch is how many rows are deleted in a write, after which others have their
// turn.
const deleteBatch = 256

const (
	deleteEndedText   = `DELETE FROM sandboxes WHERE id IN (SELECT id FROM sandboxes WHERE state = 'ended' AND ended_at < ? LIMIT ?)`
	deleteRefusedText = `DELETE FROM sandboxes WHERE id IN (SELECT id FROM sandboxes WHERE ended_cause = 'refused' AND ended_at < ? LIMIT ?)`
)

// statements are what the writer's connection has prepared.
type statements struct {
	begin, commit, rollback        *sql.Stmt
	savepoint, rollbackTo, release *sql.Stmt
	insert, update, updateEnded    *sql.Stmt
	exists                         *sql.Stmt
	deleteEnded, deleteRefused     *sql.Stmt
	renewLease                     *sql.Stmt
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

// A prepared is a statement's place and its text.
type prepared struct {
	stmt **sql.Stmt
	text string
}

func prepare(ctx context.Context, on interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}, all []prepared,
) error {
	for _, p := range all {
		var err error
		if *p.stmt, err = on.PrepareContext(ctx, p.text); err != nil {
			return fmt.Errorf("prepare %q: %w", p.text, err)
		}
	}
	return nil
}

func (s *statements) all() []prepared {
	return slices.Concat(s.signingStatements.all(), s.keyStatements.all(), s.secretStatements.all(), s.quotaStatements.all(), s.snapshotStatements.all(), s.volumeStatements.all(), s.auditStatements.all(), s.usageStatements.all(), s.tenantStatements.all(), s.userStatements.all(), s.webhookStatements.all(), s.checkStatements.all(), []prepared{
		{&s.begin, `BEGIN IMMEDIATE`},
		{&s.commit, `COMMIT`},
		{&s.rollback, `ROLLBACK`},
		{&s.savepoint, `SAVEPOINT one`},
		{&s.rollbackTo, `ROLLBACK TO one`},
		{&s.release, `RELEASE one`},
		{&s.insert, `INSERT INTO sandboxes (` + columns + `)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&s.update, updateText("")},
		{&s.updateEnded, updateText("ended_cause = ?24, ")},
		{&s.exists, `SELECT 1 FROM sandboxes WHERE id = ? AND tenant = ?`},
		{&s.deleteEnded, deleteEndedText},
		{&s.deleteRefused, deleteRefusedText},
		{&s.renewLease, `INSERT INTO nodes (name, engine, address, lease_until) VALUES (?, ?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET engine = excluded.engine, address = excluded.address, lease_until = excluded.lease_until`},
	})
}

// updateText is what writes a record; ended writes how it ended, of one that has. An
// index of a column that is named is written anew even where the value stays: therefore
// not created_at, which never changes, nor ended_cause before the end.
func updateText(ended string) string {
	return `UPDATE sandboxes SET name = ?3, state = ?4, template = ?5, image = ?6, engine = ?7,
		cpus = ?8, memory_bytes = ?9, disk_bytes = ?10, pids = ?11, network = ?12, metadata = ?13, env = ?14,
		boot_id = ?15, boot_number = ?16, boot_node = ?17, started_at = ?19, timeout = ?20,
		deadline = ?21, on_timeout = ?22, timeline = ?23, ` + ended + `ended_at = ?25, version = ?26,
		idle_timeout = ?27, limit_cpus = ?28, limit_memory_bytes = ?29, limit_pids = ?30, user = ?31, cwd = ?32,
		revision = ?33, ended_output = ?34, snapshot = ?35, stay_paused = ?36,
		snapshot_at = ?37, checkpoint_every = ?38, restored_from = ?39, restored_lost = ?40, restored_times = ?41, secrets = ?42,
		runs_until = ?43, ingress = ?44, limit_bandwidth = ?45, volumes = ?46, origin = ?47
		WHERE id = ?1 AND tenant = ?2 AND version = ?26 - 1`
}

// listed selects a page. Both sides of the comparison of metadata were written
// by the same encoder, so keys are equal in whatever form json_each shows them.
const listed = `
	AND state IN (SELECT value FROM json_each(?4))
	AND NOT EXISTS (SELECT 1 FROM json_each(?5) AS want WHERE NOT EXISTS (
		SELECT 1 FROM json_each(sandboxes.metadata) AS have WHERE have.key = want.key AND have.value = want.value))
	AND created_at >= ?7
	AND (?8 = '' OR template = ?8 OR origin = ?8 OR substr(template, 1, length(?8) + 1) IN (?8 || ':', ?8 || '@'))
`

// The two orders of a list, and where a page of each begins.
const (
	newestFirst = `tenant = ?1 AND (created_at, id) < (?2, ?3)` + listed + `ORDER BY created_at DESC, id DESC LIMIT ?6`
	oldestFirst = `tenant = ?1 AND (created_at, id) > (?2, ?3)` + listed + `ORDER BY created_at, id LIMIT ?6`
)

// queries are what the reading connections have prepared.
type queries struct {
	list, listOpen      *sql.Stmt // listOpen leaves out the ended ones
	oldest, oldestOpen  *sql.Stmt // the same, oldest first
	count               *sql.Stmt
	notEnded, due, next *sql.Stmt
	nodes               *sql.Stmt
	signingQueries
	keyQueries
	secretQueries
	quotaQueries
	snapshotQueries
	volumeQueries
	auditQueries
	usageQueries
	tenantQueries
	userQueries
	webhookQueries
}

func (q *queries) all() []prepared {
	const record = `SELECT ` + columns + ` FROM sandboxes `
	return slices.Concat(q.signingQueries.all(), q.keyQueries.all(), q.secretQueries.all(), q.quotaQueries.all(), q.snapshotQueries.all(), q.volumeQueries.all(), q.auditQueries.all(), q.usageQueries.all(), q.tenantQueries.all(), q.userQueries.all(), q.webhookQueries.all(), []prepared{
		{&q.list, record + `WHERE ` + newestFirst},
		{&q.listOpen, record + `WHERE state <> 'ended' AND ` + newestFirst},
		{&q.oldest, record + `WHERE ` + oldestFirst},
		{&q.oldestOpen, record + `WHERE state <> 'ended' AND ` + oldestFirst},
		{&q.count, `SELECT state, count(*) FROM sandboxes WHERE tenant = ? AND state <> 'ended' GROUP BY state`},
		{&q.notEnded, record + `WHERE state <> 'ended'`},
		{&q.due, record + `WHERE state NOT IN ('stopping', 'ended') AND deadline <= ? ORDER BY deadline LIMIT ?`},
		{&q.next, `SELECT min(deadline) FROM sandboxes WHERE state NOT IN ('stopping', 'ended')`},
		{&q.nodes, `SELECT name, engine, address, lease_until FROM nodes ORDER BY name`},
	})
}

// InsertSandbox implements sandbox.SandboxStore.
func (s *Store) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	at := sb.MeteredAt
	sb = normal(sb)
	sb.Version = 1
	args, err := values(sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		if err := cmp.Or(saved(st, sb), mounted(st, sb)); err != nil {
			return err
		}
		if _, err := st.insert.Exec(args...); err != nil {
			return taken(err, sb)
		}
		if _, err := st.meter(sb, at); err != nil {
			return err
		}
		return s.admit(st, sb)
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sb, nil
}

// UpdateSandbox implements sandbox.SandboxStore.
func (s *Store) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	at := sb.MeteredAt
	sb = normal(sb)
	sb.Version++
	args, err := values(sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	var counted sandbox.UsageAmount
	err = s.writer.write(ctx, func(st *statements) error {
		if err := saved(st, sb); err != nil {
			return err
		}
		l, err := st.lifeBefore(sb)
		if err != nil {
			return err
		}
		stmt := st.update
		if sb.Ended != nil {
			stmt = st.updateEnded
		}
		result, err := stmt.Exec(args...)
		if err != nil {
			return taken(err, sb)
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		if n == 1 {
			counted, err = st.meter(sb, at)
			return cmp.Or(err, st.tellLife(l, sb))
		}
		var one int
		switch err := st.exists.QueryRow(sb.ID, sb.Tenant).Scan(&one); {
		case errors.Is(err, sql.ErrNoRows):
			return notFound()
		case err != nil:
			return err
		}
		return sandbox.Errorf(sandbox.Conflict, "the sandbox was changed by somebody else meanwhile")
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	s.counter.add(counted)
	return sb, nil
}

// saved returns Conflict when sb needs a Snapshot that is not there.
func saved(st *statements, sb sandbox.Sandbox) error {
	switch sb.State {
	case sandbox.Starting, sandbox.Paused, sandbox.Resuming:
	default:
		return nil
	}
	if sb.Snapshot == "" {
		return nil
	}
	ready, err := found(st.snapshotReady, sb.Snapshot, string(sb.Tenant))
	if err == nil && !ready {
		err = sandbox.Errorf(sandbox.Conflict, "the snapshot %s is gone", sb.Snapshot)
	}
	return err
}

// taken turns the two ways in which a record can be in another's way into
// Conflicts.
func taken(err error, sb sandbox.Sandbox) error {
	switch extendedCode(err) {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE:
		return sandbox.Errorf(sandbox.Conflict, "the name %q is in use", sb.Name)
	case sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return sandbox.Errorf(sandbox.Conflict, "the sandbox ID is in use")
	}
	return err
}

func notFound() error { return sandbox.Errorf(sandbox.NotFound, "there is no such sandbox") }

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
		sb, err = scan(query(ctx, q).Scan)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return sandbox.Sandbox{}, notFound()
	}
	return sb, classify(err)
}

// SandboxesNotEnded implements sandbox.SandboxStore.
func (s *Store) SandboxesNotEnded(ctx context.Context) ([]sandbox.Sandbox, error) {
	return collect(scan)(s.query.notEnded.QueryContext(ctx))
}

// SandboxesDue implements sandbox.SandboxStore.
func (s *Store) SandboxesDue(ctx context.Context, now time.Time, limit int) ([]sandbox.Sandbox, error) {
	return collect(scan)(s.query.due.QueryContext(ctx, micros(now), limit))
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
	ended, err := s.deleteAll(ctx, before, func(st *statements) *sql.Stmt { return st.deleteEnded })
	if err != nil {
		return ended, err
	}
	others, err := s.deleteAll(ctx, refused, func(st *statements) *sql.Stmt { return st.deleteRefused })
	return ended + others, err
}

// deleteAll repeats a statement that deletes up to deleteBatch rows from before a time,
// each time as a write of its own, until there are no more. It returns how many there
// were.
func (s *Store) deleteAll(ctx context.Context, before time.Time, stmt func(*statements) *sql.Stmt) (int, error) {
	for total := 0; ; {
		var deleted int64
		err := s.writer.write(ctx, func(st *statements) error {
			result, err := stmt(st).Exec(micros(before), deleteBatch)
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

// normal is sb as it will be read back.
func normal(sb sandbox.Sandbox) sandbox.Sandbox {
	for _, t := range []*time.Time{&sb.CreatedAt, &sb.StartedAt, &sb.Deadline, &sb.SnapshotAt, &sb.RunsUntil} {
		*t = fromMicros(micros(*t))
	}
	sb.MeteredAt = time.Time{}
	sb.Timeout = sb.Timeout.Truncate(time.Microsecond)
	sb.IdleTimeout = sb.IdleTimeout.Truncate(time.Microsecond)
	sb.CheckpointEvery = sb.CheckpointEvery.Truncate(time.Microsecond)
	sb.Restored.Lost = sb.Restored.Lost.Truncate(time.Microsecond)
	if sb.Ended != nil {
		end := *sb.Ended
		end.At = fromMicros(micros(end.At))
		sb.Ended = &end
	}
	if len(sb.Metadata) == 0 {
		sb.Metadata = nil
	}
	if len(sb.Env) == 0 {
		sb.Env = nil
	}
	if len(sb.Volumes) == 0 {
		sb.Volumes = nil
	}
	return sb
}

// values are the columns of sb.
func values(sb sandbox.Sandbox) ([]any, error) {
	metadata, err := encode(sb.Metadata)
	if err != nil {
		return nil, err
	}
	env, err := encode(sb.Env)
	if err != nil {
		return nil, err
	}
	volumes, err := encodeMounts(sb.Volumes)
	if err != nil {
		return nil, err
	}
	var end sandbox.Certificate
	if sb.Ended != nil {
		end = *sb.Ended
	}
	return []any{
		sb.ID, string(sb.Tenant), sb.Name, string(sb.State), sb.Template, sb.Image, sb.Engine,
		sb.Shape.CPUs, sb.Shape.MemoryBytes, sb.Shape.DiskBytes, sb.Shape.Pids, string(sb.Network), metadata, env,
		sb.Boot.ID, sb.Boot.Number, sb.Boot.Node, micros(sb.CreatedAt), micros(sb.StartedAt), sb.Timeout.Microseconds(),
		micros(sb.Deadline), string(sb.OnTimeout), sb.Timeline, string(end.Cause), micros(end.At), sb.Version,
		sb.IdleTimeout.Microseconds(), sb.Limits.CPUs, sb.Limits.MemoryBytes, sb.Limits.Pids, sb.User, sb.Cwd,
		sb.Revision, end.OutputTail, sb.Snapshot, sb.StayPaused,
		micros(sb.SnapshotAt), sb.CheckpointEvery.Microseconds(), sb.Restored.From, sb.Restored.Lost.Microseconds(), sb.Restored.Times, string(sb.Secrets), micros(sb.RunsUntil), string(sb.Ingress), sb.Limits.Bandwidth, volumes, sb.Origin,
	}, nil
}

// scan reads the columns of one record.
func scan(scan func(...any) error) (sandbox.Sandbox, error) {
	var (
		sb                                        sandbox.Sandbox
		metadata, env, volumes                    string
		created, started, timeout, deadline, over int64
		idle, saved, checkpoint, lost, until      int64
		end                                       sandbox.Certificate
	)
	err := scan(
		&sb.ID, &sb.Tenant, &sb.Name, &sb.State, &sb.Template, &sb.Image, &sb.Engine,
		&sb.Shape.CPUs, &sb.Shape.MemoryBytes, &sb.Shape.DiskBytes, &sb.Shape.Pids, &sb.Network, &metadata, &env,
		&sb.Boot.ID, &sb.Boot.Number, &sb.Boot.Node, &created, &started, &timeout,
		&deadline, &sb.OnTimeout, &sb.Timeline, &end.Cause, &over, &sb.Version,
		&idle, &sb.Limits.CPUs, &sb.Limits.MemoryBytes, &sb.Limits.Pids, &sb.User, &sb.Cwd,
		&sb.Revision, &end.OutputTail, &sb.Snapshot, &sb.StayPaused,
		&saved, &checkpoint, &sb.Restored.From, &lost, &sb.Restored.Times, (*string)(&sb.Secrets), &until, (*string)(&sb.Ingress), &sb.Limits.Bandwidth, &volumes, &sb.Origin,
	)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	sb.CreatedAt, sb.StartedAt, sb.Deadline = fromMicros(created), fromMicros(started), fromMicros(deadline)
	sb.Timeout = time.Duration(timeout) * time.Microsecond
	sb.IdleTimeout = time.Duration(idle) * time.Microsecond
	sb.SnapshotAt, sb.RunsUntil = fromMicros(saved), fromMicros(until)
	sb.CheckpointEvery = time.Duration(checkpoint) * time.Microsecond
	sb.Restored.Lost = time.Duration(lost) * time.Microsecond
	if end.Cause != "" {
		end.At = fromMicros(over)
		sb.Ended = &end
	}
	if sb.Metadata, err = decode(metadata); err != nil {
		return sandbox.Sandbox{}, err
	}
	if sb.Env, err = decode(env); err != nil {
		return sandbox.Sandbox{}, err
	}
	sb.Volumes, err = decodeMounts(volumes)
	return sb, err
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

func encode(m map[string]string) (string, error) {
	if len(m) == 0 {
		return "{}", nil
	}
	b, err := json.Marshal(m)
	return string(b), err
}

func decode(s string) (map[string]string, error) {
	if s == "{}" {
		return nil, nil
	}
	var m map[string]string
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		return nil, fmt.Errorf("decode map: %w", err)
	}
	return m, nil
}

// micros keeps the zero time zero.
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
