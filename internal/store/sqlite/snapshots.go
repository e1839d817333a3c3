package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// snapshotColumns are those of a Snapshot, in the order of snapshotValues and
// scanSnapshot.
const snapshotColumns = `id, tenant, sandbox_id, parent, name, kept, state, created_at, node, bytes, memory, build, digest,
	template, image, cpus, memory_bytes, disk_bytes, pids, limit_cpus, limit_memory_bytes, limit_pids,
	network, env, user, cwd, timeline, version, limit_bandwidth, layer, used_at, volumes`

// referred selects the Sandboxes that refer to the Snapshot of a query and have
// not ended.
const referred = `FROM sandboxes WHERE sandboxes.snapshot = snapshots.id AND sandboxes.snapshot <> ''
	AND sandboxes.state NOT IN ('stopping', 'ended')`

// needed are the States of a Sandbox that cannot go on without its Snapshot.
const needed = `('starting', 'paused', 'resuming')`

// snapshotStatements are what the writer has prepared for Snapshots.
type snapshotStatements struct {
	insertSnapshot, updateSnapshot, snapshotThere, snapshotReady *sql.Stmt
	snapshotKept                                                 *sql.Stmt
	countSnapshots, retireSnapshot, retireLoose                  *sql.Stmt
	adoptSnapshots, dropSnapshot                                 *sql.Stmt
}

func (s *snapshotStatements) all() []prepared {
	return []prepared{
		{&s.insertSnapshot, `INSERT INTO snapshots (` + snapshotColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&s.updateSnapshot, `UPDATE snapshots SET sandbox_id = ?3, name = ?5, kept = ?6, state = ?7, created_at = ?8, node = ?9,
			bytes = ?10, memory = ?11, build = ?12, digest = ?13, template = ?14, image = ?15,
			cpus = ?16, memory_bytes = ?17, disk_bytes = ?18, pids = ?19, limit_cpus = ?20, limit_memory_bytes = ?21, limit_pids = ?22,
			network = ?23, env = ?24, user = ?25, cwd = ?26, timeline = ?27, version = ?28, limit_bandwidth = ?29, layer = ?30, used_at = ?31, volumes = ?32
			WHERE id = ?1 AND tenant = ?2 AND version = ?28 - 1`},
		{&s.snapshotThere, `SELECT 1 FROM snapshots WHERE id = ? AND tenant = ?`},
		{&s.snapshotReady, `SELECT 1 FROM snapshots WHERE id = ? AND tenant = ? AND state = 'ready'`},
		{&s.snapshotKept, `SELECT 1 FROM snapshots WHERE id = ? AND state = 'ready' AND kept`},
		{&s.countSnapshots, `SELECT count(*) FROM snapshots WHERE tenant = ?`},
		{&s.retireSnapshot, `UPDATE snapshots SET state = 'deleting', version = version + 1
			WHERE id = ? AND NOT EXISTS (SELECT 1 ` + referred + ` AND sandboxes.state IN ` + needed + `)`},
		{&s.retireLoose, `UPDATE snapshots SET state = 'deleting', version = version + 1
			WHERE id = ? AND (state <> 'ready' OR kept = 0 AND NOT EXISTS (SELECT 1 ` + referred + `))`},
		{&s.adoptSnapshots, `UPDATE snapshots SET parent = coalesce((SELECT gone.parent FROM snapshots AS gone WHERE gone.id = ?1), '')
			WHERE parent = ?1 AND parent <> ''`},
		{&s.dropSnapshot, `DELETE FROM snapshots WHERE id = ?`},
	}
}

// snapshotQueries are what the reading connections have prepared.
type snapshotQueries struct {
	snapshotByID, snapshotsOfTenant, snapshotsOfSandbox, snapshotsLeft, snapshotTenants *sql.Stmt
	snapshotOfImage, snapshotOfBuild, snapshotBuilds                                    *sql.Stmt
}

func (q *snapshotQueries) all() []prepared {
	const record = `SELECT ` + snapshotColumns + `, (SELECT count(*) ` + referred + `) FROM snapshots `
	const page = ` AND state = 'ready' AND (created_at, id) < (?2, ?3) AND (?5 = '' OR name = ?5 OR (?8 AND substr(name, 1, length(?5) + 1) = ?5 || ':')) AND (NOT ?6 OR kept) AND (layer <> '') = ?7 ORDER BY created_at DESC, id DESC LIMIT ?4`
	return []prepared{
		{&q.snapshotByID, record + `WHERE id = ?`},
		{&q.snapshotsOfTenant, record + `WHERE tenant = ?1` + page},
		{&q.snapshotsOfSandbox, record + `WHERE tenant = ?1 AND sandbox_id = ?9` + page},
		{&q.snapshotTenants, `SELECT DISTINCT tenant FROM snapshots`},
		{&q.snapshotOfImage, record + `WHERE image = ? AND state <> 'deleting' AND layer = '' ORDER BY created_at DESC, id DESC LIMIT 1`},
		{&q.snapshotOfBuild, record + `WHERE build = ? AND memory AND state <> 'deleting' LIMIT 1`},
		{&q.snapshotBuilds, `SELECT build, count(*) FROM snapshots WHERE memory AND state <> 'deleting' AND build <> '' GROUP BY build`},
		{&q.snapshotsLeft, record + `WHERE (state <> 'ready' OR kept = 0) AND (state <> 'ready' OR NOT EXISTS (SELECT 1 ` + referred + `))`},
	}
}

// InsertSnapshot implements sandbox.SnapshotStore.
func (s *Store) InsertSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	snap = normalSnapshot(snap)
	snap.Version = 1
	err := s.writer.write(ctx, func(st *statements) error {
		var have int
		if err := st.countSnapshots.QueryRow(string(snap.Tenant)).Scan(&have); err != nil {
			return err
		}
		if have >= sandbox.MaxSnapshots {
			return sandbox.Errorf(sandbox.Exhausted, "there are %d snapshots already: delete some first", have)
		}
		there, err := found(st.snapshotThere, snap.Parent, string(snap.Tenant))
		if err != nil {
			return err
		}
		if !there {
			snap.Parent = ""
		}
		args, err := snapshotValues(snap)
		if err != nil {
			return err
		}
		if _, err := st.insertSnapshot.Exec(args...); err != nil {
			return snapshotTaken(err, snap)
		}
		return s.admitSnapshot(st, snap)
	})
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	return snap, nil
}

// found reports whether a query finds a row.
func found(stmt *sql.Stmt, args ...any) (bool, error) {
	var one int
	err := stmt.QueryRow(args...).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func snapshotTaken(err error, snap sandbox.Snapshot) error {
	switch extendedCode(err) {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE:
		return sandbox.Errorf(sandbox.Conflict, "the sandbox has a snapshot named %q", snap.Name)
	case sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return sandbox.Errorf(sandbox.Conflict, "the snapshot ID is in use")
	}
	return err
}

func noSnapshot() error { return sandbox.Errorf(sandbox.NotFound, "there is no such snapshot") }

// UpdateSnapshot implements sandbox.SnapshotStore.
func (s *Store) UpdateSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	snap = normalSnapshot(snap)
	snap.Version++
	args, err := snapshotValues(snap)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		kept, err := found(st.snapshotKept, snap.ID)
		if err != nil {
			return err
		}
		known, err := st.keptBefore(snap.ID)
		if err != nil {
			return err
		}
		result, err := st.updateSnapshot.Exec(args...)
		if err != nil {
			return snapshotTaken(err, snap)
		}
		switch n, err := result.RowsAffected(); {
		case err != nil:
			return err
		case n == 1 && !kept && snap.State == sandbox.SnapshotReady:
			return cmp.Or(s.admitSnapshot(st, snap), st.tellSnapshot(snap.ID, known))
		case n == 1:
			return st.tellSnapshot(snap.ID, known)
		}
		there, err := found(st.snapshotThere, snap.ID, string(snap.Tenant))
		switch {
		case err != nil:
			return err
		case !there:
			return noSnapshot()
		}
		return sandbox.Errorf(sandbox.Conflict, "the snapshot was changed by somebody else meanwhile")
	})
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	return snap, nil
}

// SnapshotByID implements sandbox.SnapshotStore.
func (s *Store) SnapshotByID(ctx context.Context, id string) (sandbox.Snapshot, error) {
	return oneSnapshot(s.query.snapshotByID.QueryRowContext(ctx, id))
}

// ListSnapshots implements sandbox.SnapshotStore. A Cursor that is none of ours
// and a Limit out of bounds are Invalid.
func (s *Store) ListSnapshots(ctx context.Context, tenant sandbox.TenantID, query sandbox.SnapshotQuery) (sandbox.SnapshotPage, error) {
	limit, err := pageLimit(query.Limit)
	if err != nil {
		return sandbox.SnapshotPage{}, err
	}
	after, err := parseCursor(query.Cursor, false, sandbox.ValidSnapshotID)
	if err != nil {
		return sandbox.SnapshotPage{}, err
	}
	// One more than asked for tells whether there is a next page.
	args := []any{string(tenant), after.created, after.id, limit + 1, query.Name, query.Kept, query.Layers, query.Tags}
	list := s.query.snapshotsOfTenant
	if query.SandboxID != "" {
		list, args = s.query.snapshotsOfSandbox, append(args, query.SandboxID)
	}
	all, err := collect(scanSnapshot)(list.QueryContext(ctx, args...))
	if err != nil {
		return sandbox.SnapshotPage{}, err
	}
	page := sandbox.SnapshotPage{Snapshots: all}
	if len(all) > limit {
		page.Snapshots = all[:limit]
		last := all[limit-1]
		page.Next = cursor{created: micros(last.CreatedAt), id: last.ID}.String()
	}
	return page, nil
}

// SnapshotsLeft implements sandbox.SnapshotStore.
func (s *Store) SnapshotsLeft(ctx context.Context) ([]sandbox.Snapshot, error) {
	return collect(scanSnapshot)(s.query.snapshotsLeft.QueryContext(ctx))
}

// SnapshotOfImage implements sandbox.SnapshotStore.
func (s *Store) SnapshotOfImage(ctx context.Context, image string) (sandbox.Snapshot, error) {
	return oneSnapshot(s.query.snapshotOfImage.QueryRowContext(ctx, image))
}

// SnapshotOfBuild implements sandbox.SnapshotStore.
func (s *Store) SnapshotOfBuild(ctx context.Context, build string) (sandbox.Snapshot, error) {
	return oneSnapshot(s.query.snapshotOfBuild.QueryRowContext(ctx, build))
}

// SnapshotBuilds implements sandbox.SnapshotStore.
func (s *Store) SnapshotBuilds(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	_, err := collect(func(scan func(...any) error) (struct{}, error) {
		var build string
		var n int
		err := scan(&build, &n)
		counts[build] = n
		return struct{}{}, err
	})(s.query.snapshotBuilds.QueryContext(ctx))
	return counts, err
}

func oneSnapshot(row *sql.Row) (sandbox.Snapshot, error) {
	snap, err := scanSnapshot(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return sandbox.Snapshot{}, noSnapshot()
	}
	return snap, classify(err)
}

// SnapshotTenants implements sandbox.SnapshotStore.
func (s *Store) SnapshotTenants(ctx context.Context) ([]sandbox.TenantID, error) {
	return collect(func(scan func(...any) error) (t sandbox.TenantID, err error) {
		err = scan((*string)(&t))
		return t, err
	})(s.query.snapshotTenants.QueryContext(ctx))
}

// RetireSnapshot implements sandbox.SnapshotStore.
func (s *Store) RetireSnapshot(ctx context.Context, id string, loose bool) error {
	return s.writer.write(ctx, func(st *statements) error {
		retire := st.retireSnapshot
		if loose {
			retire = st.retireLoose
		}
		kept, err := st.keptBefore(id)
		if err != nil {
			return err
		}
		result, err := retire.Exec(id)
		if err != nil {
			return err
		}
		switch n, err := result.RowsAffected(); {
		case err != nil:
			return err
		case n == 1:
			return st.tellSnapshot(id, kept)
		}
		return sandbox.Errorf(sandbox.Conflict, "the snapshot is in use")
	})
}

// DropSnapshot implements sandbox.SnapshotStore.
func (s *Store) DropSnapshot(ctx context.Context, id string) error {
	return s.writer.write(ctx, func(st *statements) error {
		if _, err := st.adoptSnapshots.Exec(id); err != nil {
			return err
		}
		_, err := st.dropSnapshot.Exec(id)
		return err
	})
}

// normalSnapshot is snap as it will be read back.
func normalSnapshot(snap sandbox.Snapshot) sandbox.Snapshot {
	snap.CreatedAt, snap.UsedAt = fromMicros(micros(snap.CreatedAt)), fromMicros(micros(snap.UsedAt))
	snap.Uses = 0
	if len(snap.Env) == 0 {
		snap.Env = nil
	}
	if len(snap.Volumes) == 0 {
		snap.Volumes = nil
	}
	return snap
}

func snapshotValues(s sandbox.Snapshot) ([]any, error) {
	env, err := encode(s.Env)
	if err != nil {
		return nil, err
	}
	volumes, err := encodeMounts(s.Volumes)
	if err != nil {
		return nil, err
	}
	return []any{
		s.ID, string(s.Tenant), s.SandboxID, s.Parent, s.Name, s.Kept, string(s.State), micros(s.CreatedAt), s.Node,
		s.Bytes, s.Memory, s.Build, s.Digest, s.Template, s.Image,
		s.Shape.CPUs, s.Shape.MemoryBytes, s.Shape.DiskBytes, s.Shape.Pids, s.Limits.CPUs, s.Limits.MemoryBytes, s.Limits.Pids,
		string(s.Network), env, s.User, s.Cwd, s.Timeline, s.Version, s.Limits.Bandwidth,
		s.Layer, micros(s.UsedAt), volumes,
	}, nil
}

func scanSnapshot(scan func(...any) error) (sandbox.Snapshot, error) {
	var s sandbox.Snapshot
	var created, used int64
	var env, volumes string
	err := scan(
		&s.ID, (*string)(&s.Tenant), &s.SandboxID, &s.Parent, &s.Name, &s.Kept, (*string)(&s.State), &created, &s.Node,
		&s.Bytes, &s.Memory, &s.Build, &s.Digest, &s.Template, &s.Image,
		&s.Shape.CPUs, &s.Shape.MemoryBytes, &s.Shape.DiskBytes, &s.Shape.Pids, &s.Limits.CPUs, &s.Limits.MemoryBytes, &s.Limits.Pids,
		(*string)(&s.Network), &env, &s.User, &s.Cwd, &s.Timeline, &s.Version, &s.Limits.Bandwidth, &s.Layer, &used, &volumes, &s.Uses,
	)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	s.CreatedAt, s.UsedAt = fromMicros(created), fromMicros(used)
	if s.Env, err = decode(env); err != nil {
		return sandbox.Snapshot{}, err
	}
	s.Volumes, err = decodeMounts(volumes)
	return s, err
}
