package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// columns are those of a record, in the order of values and scan.
const columns = `id, tenant, name, state, template, image, engine,
	cpus, memory_bytes, disk_bytes, pids, network, metadata, env,
	boot_id, boot_number, boot_node, created_at, started_at, timeout, deadline,
	on_timeout, timeline, ended_cause, ended_at, version`

// statements are what the writer's connection has prepared.
type statements struct {
	begin, commit, rollback        *sql.Stmt
	savepoint, rollbackTo, release *sql.Stmt
	insert, update, exists         *sql.Stmt
	deleteEnded, renewLease        *sql.Stmt
}

// A prepared is a statement's place and its text.
type prepared struct {
	stmt **sql.Stmt
	text string
}

func prepare(ctx context.Context, on interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}, all []prepared) error {
	for _, p := range all {
		var err error
		if *p.stmt, err = on.PrepareContext(ctx, p.text); err != nil {
			return fmt.Errorf("prepare %q: %w", p.text, err)
		}
	}
	return nil
}

func (s *statements) all() []prepared {
	return []prepared{
		{&s.begin, `BEGIN IMMEDIATE`},
		{&s.commit, `COMMIT`},
		{&s.rollback, `ROLLBACK`},
		{&s.savepoint, `SAVEPOINT one`},
		{&s.rollbackTo, `ROLLBACK TO one`},
		{&s.release, `RELEASE one`},
		{&s.insert, `INSERT INTO sandboxes (` + columns + `)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&s.update, `UPDATE sandboxes SET name = ?3, state = ?4, template = ?5, image = ?6, engine = ?7,
			cpus = ?8, memory_bytes = ?9, disk_bytes = ?10, pids = ?11, network = ?12, metadata = ?13, env = ?14,
			boot_id = ?15, boot_number = ?16, boot_node = ?17, created_at = ?18, started_at = ?19, timeout = ?20,
			deadline = ?21, on_timeout = ?22, timeline = ?23, ended_cause = ?24, ended_at = ?25, version = ?26
			WHERE id = ?1 AND tenant = ?2 AND version = ?26 - 1`},
		{&s.exists, `SELECT 1 FROM sandboxes WHERE id = ? AND tenant = ?`},
		{&s.deleteEnded, `DELETE FROM sandboxes WHERE state = 'ended' AND ended_at < ?`},
		{&s.renewLease, `INSERT INTO nodes (name, engine, lease_until) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET engine = excluded.engine, lease_until = excluded.lease_until`},
	}
}

// listed selects a page. Both sides of the comparison of metadata were written
// by the same encoder, so keys are equal in whatever form json_each shows them.
const listed = `tenant = ?1 AND (created_at, id) < (?2, ?3)
	AND state IN (SELECT value FROM json_each(?4))
	AND NOT EXISTS (SELECT 1 FROM json_each(?5) AS want WHERE NOT EXISTS (
		SELECT 1 FROM json_each(sandboxes.metadata) AS have WHERE have.key = want.key AND have.value = want.value))
	ORDER BY created_at DESC, id DESC LIMIT ?6`

// queries are what the reading connections have prepared.
type queries struct {
	byID, byName        *sql.Stmt
	list, listOpen      *sql.Stmt // listOpen leaves out the ended ones
	count               *sql.Stmt
	notEnded, due, next *sql.Stmt
	nodes               *sql.Stmt
}

func (q *queries) all() []prepared {
	const record = `SELECT ` + columns + ` FROM sandboxes `
	return []prepared{
		{&q.byID, record + `WHERE id = ?`},
		{&q.byName, record + `WHERE tenant = ? AND name = ? AND name <> '' AND state <> 'ended'`},
		{&q.list, record + `WHERE ` + listed},
		{&q.listOpen, record + `WHERE state <> 'ended' AND ` + listed},
		{&q.count, `SELECT state, count(*) FROM sandboxes WHERE tenant = ? AND state <> 'ended' GROUP BY state`},
		{&q.notEnded, record + `WHERE state <> 'ended'`},
		{&q.due, record + `WHERE state NOT IN ('stopping', 'ended') AND deadline <= ? ORDER BY deadline LIMIT ?`},
		{&q.next, `SELECT min(deadline) FROM sandboxes WHERE state NOT IN ('stopping', 'ended')`},
		{&q.nodes, `SELECT name, engine, lease_until FROM nodes ORDER BY name`},
	}
}

// InsertSandbox implements sandbox.SandboxStore.
func (s *Store) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	sb = normal(sb)
	sb.Version = 1
	args, err := values(sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		_, err := st.insert.Exec(args...)
		return taken(err, sb)
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sb, nil
}

// UpdateSandbox implements sandbox.SandboxStore.
func (s *Store) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	sb = normal(sb)
	sb.Version++
	args, err := values(sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		result, err := st.update.Exec(args...)
		if err != nil {
			return taken(err, sb)
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return err
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
	return sb, nil
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
	return one(s.query.byID.QueryRowContext(ctx, id))
}

// SandboxByName implements sandbox.SandboxStore.
func (s *Store) SandboxByName(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.Sandbox, error) {
	return one(s.query.byName.QueryRowContext(ctx, tenant, name))
}

// SandboxesNotEnded implements sandbox.SandboxStore.
func (s *Store) SandboxesNotEnded(ctx context.Context) ([]sandbox.Sandbox, error) {
	return many(s.query.notEnded.QueryContext(ctx))
}

// SandboxesDue implements sandbox.SandboxStore.
func (s *Store) SandboxesDue(ctx context.Context, now time.Time, limit int) ([]sandbox.Sandbox, error) {
	return many(s.query.due.QueryContext(ctx, micros(now), limit))
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
func (s *Store) DeleteEnded(ctx context.Context, before time.Time) (int, error) {
	var deleted int64
	err := s.writer.write(ctx, func(st *statements) error {
		result, err := st.deleteEnded.Exec(micros(before))
		if err != nil {
			return err
		}
		deleted, err = result.RowsAffected()
		return err
	})
	return int(deleted), err
}

// normal is sb as it will be read back.
func normal(sb sandbox.Sandbox) sandbox.Sandbox {
	for _, t := range []*time.Time{&sb.CreatedAt, &sb.StartedAt, &sb.Deadline} {
		*t = fromMicros(micros(*t))
	}
	sb.Timeout = sb.Timeout.Truncate(time.Microsecond)
	if sb.Ended != nil {
		sb.Ended = &sandbox.Certificate{Cause: sb.Ended.Cause, At: fromMicros(micros(sb.Ended.At))}
	}
	if len(sb.Metadata) == 0 {
		sb.Metadata = nil
	}
	if len(sb.Env) == 0 {
		sb.Env = nil
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
	var end sandbox.Certificate
	if sb.Ended != nil {
		end = *sb.Ended
	}
	return []any{
		sb.ID, string(sb.Tenant), sb.Name, string(sb.State), sb.Template, sb.Image, sb.Engine,
		sb.Shape.CPUs, sb.Shape.MemoryBytes, sb.Shape.DiskBytes, sb.Shape.Pids, string(sb.Network), metadata, env,
		sb.Boot.ID, sb.Boot.Number, sb.Boot.Node, micros(sb.CreatedAt), micros(sb.StartedAt), sb.Timeout.Microseconds(),
		micros(sb.Deadline), string(sb.OnTimeout), sb.Timeline, string(end.Cause), micros(end.At), sb.Version,
	}, nil
}

// scan reads the columns of one record.
func scan(scan func(...any) error) (sandbox.Sandbox, error) {
	var (
		sb                                        sandbox.Sandbox
		metadata, env                             string
		created, started, timeout, deadline, over int64
		cause                                     sandbox.Cause
	)
	err := scan(
		&sb.ID, &sb.Tenant, &sb.Name, &sb.State, &sb.Template, &sb.Image, &sb.Engine,
		&sb.Shape.CPUs, &sb.Shape.MemoryBytes, &sb.Shape.DiskBytes, &sb.Shape.Pids, &sb.Network, &metadata, &env,
		&sb.Boot.ID, &sb.Boot.Number, &sb.Boot.Node, &created, &started, &timeout,
		&deadline, &sb.OnTimeout, &sb.Timeline, &cause, &over, &sb.Version,
	)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	sb.CreatedAt, sb.StartedAt, sb.Deadline = fromMicros(created), fromMicros(started), fromMicros(deadline)
	sb.Timeout = time.Duration(timeout) * time.Microsecond
	if cause != "" {
		sb.Ended = &sandbox.Certificate{Cause: cause, At: fromMicros(over)}
	}
	if sb.Metadata, err = decode(metadata); err != nil {
		return sandbox.Sandbox{}, err
	}
	sb.Env, err = decode(env)
	return sb, err
}

func one(row *sql.Row) (sandbox.Sandbox, error) {
	sb, err := scan(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return sandbox.Sandbox{}, notFound()
	}
	return sb, classify(err)
}

func many(rows *sql.Rows, err error) ([]sandbox.Sandbox, error) {
	if err != nil {
		return nil, classify(err)
	}
	defer rows.Close()
	var all []sandbox.Sandbox
	for rows.Next() {
		sb, err := scan(rows.Scan)
		if err != nil {
			return nil, classify(err)
		}
		all = append(all, sb)
	}
	return all, classify(rows.Err())
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
