package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var snapshotTable = newTable("snapshots", func(s *sandbox.Snapshot, c *columns) {
	c.add("id", &s.ID)
	c.add("tenant", (*string)(&s.Tenant))
	c.add("sandbox_id", &s.SandboxID)
	c.add("parent", &s.Parent)
	c.add("name", &s.Name)
	c.add("kept", &s.Kept)
	c.add("state", (*string)(&s.State))
	c.add("created_at", (*moment)(&s.CreatedAt))
	c.add("node", &s.Node)
	c.add("bytes", &s.Bytes)
	c.add("memory", &s.Memory)
	c.add("build", &s.Build)
	c.add("digest", &s.Digest)
	c.add("template", &s.Template)
	c.add("image", &s.Image)
	c.add("cpus", &s.Shape.CPUs)
	c.add("memory_bytes", &s.Shape.MemoryBytes)
	c.add("disk_bytes", &s.Shape.DiskBytes)
	c.add("pids", &s.Shape.Pids)
	c.add("limit_cpus", &s.Limits.CPUs)
	c.add("limit_memory_bytes", &s.Limits.MemoryBytes)
	c.add("limit_pids", &s.Limits.Pids)
	c.add("network", (*string)(&s.Network))
	c.add("env", (*labels)(&s.Env))
	c.add("user_name", &s.User)
	c.add("cwd", &s.Cwd)
	c.add("timeline", &s.Timeline)
	c.add("version", &s.Version)
	c.add("limit_bandwidth", &s.Limits.Bandwidth)
	c.add("layer", &s.Layer)
	c.add("used_at", (*moment)(&s.UsedAt))
	c.add("volumes", (*mounts)(&s.Volumes))
	c.add("cpu", (*string)(&s.CPU))
	c.compute("(SELECT count(*) "+referred+")", &s.Uses)
})

var updateSnapshot = snapshotTable.updateBut(thatVersion, "id", "tenant", "parent")

// referred selects the Sandboxes that refer to the Snapshot of a query and have not
// ended.
const referred = `FROM sandboxes WHERE sandboxes.snapshot = snapshots.id AND sandboxes.snapshot <> ''
	AND sandboxes.state NOT IN ('stopping', 'ended')`

// needed are the States in which a Sandbox requires its Snapshot.
const needed = `('starting', 'paused', 'resuming')`

// wayBack is the condition that a resuming Sandbox returns to the Snapshot of a query if it
// does not start.
const wayBack = `EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.back_snapshot = snapshots.id AND sandboxes.back_snapshot <> ''
	AND sandboxes.state = 'resuming')`

// snapshotStatements are the writer's prepared statements for Snapshots.
type snapshotStatements struct {
	insertSnapshot, updateSnapshot, snapshotThere, snapshotReady *sql.Stmt
	snapshotKept                                                 *sql.Stmt
	countSnapshots, retireSnapshot, retireLoose                  *sql.Stmt
	adoptSnapshots, dropSnapshot                                 *sql.Stmt
}

func (s *snapshotStatements) all() []prepared {
	return []prepared{
		{&s.insertSnapshot, snapshotTable.insert.text},
		{&s.updateSnapshot, updateSnapshot.text},
		{&s.snapshotThere, `SELECT 1 FROM snapshots WHERE id = ? AND tenant = ?`},
		{&s.snapshotReady, `SELECT 1 FROM snapshots WHERE id = ? AND tenant = ? AND state = 'ready'`},
		{&s.snapshotKept, `SELECT 1 FROM snapshots WHERE id = ? AND state = 'ready' AND kept`},
		{&s.countSnapshots, `SELECT count(*) FROM snapshots WHERE tenant = ?`},
		{&s.retireSnapshot, `UPDATE snapshots SET state = 'deleting', version = version + 1
			WHERE id = ? AND NOT EXISTS (SELECT 1 ` + referred + ` AND sandboxes.state IN ` + needed + `) AND NOT ` + wayBack},
		{&s.retireLoose, `UPDATE snapshots SET state = 'deleting', version = version + 1
			WHERE id = ? AND (state <> 'ready' OR NOT kept AND NOT EXISTS (SELECT 1 ` + referred + `) AND NOT ` + wayBack + `)`},
		{&s.adoptSnapshots, `UPDATE snapshots SET parent = coalesce((SELECT gone.parent FROM snapshots AS gone WHERE gone.id = ?1), '')
			WHERE parent = ?1 AND parent <> ''`},
		{&s.dropSnapshot, `DELETE FROM snapshots WHERE id = ?`},
	}
}

// snapshotQueries are the prepared statements of reading connections.
type snapshotQueries struct {
	snapshotByID, snapshotsOfTenant, snapshotsOfSandbox, snapshotsLeft, snapshotTenants *sql.Stmt
	snapshotOfImage, snapshotOfBuild, snapshotBuilds                                    *sql.Stmt
}

func (q *snapshotQueries) all() []prepared {
	record := snapshotTable.record
	const page = ` AND state = 'ready' AND (created_at, id) < (?2, ?3) AND (?5 = '' OR name = ?5 OR (?8 AND substr(name, 1, length(?5) + 1) = ?5 || ':')) AND (NOT ?6 OR kept) AND (layer <> '') = ?7 ORDER BY created_at DESC, id DESC LIMIT ?4`
	return []prepared{
		{&q.snapshotByID, record + `WHERE id = ?`},
		{&q.snapshotsOfTenant, record + `WHERE tenant = ?1` + page},
		{&q.snapshotsOfSandbox, record + `WHERE tenant = ?1 AND sandbox_id = ?9` + page},
		{&q.snapshotTenants, `SELECT DISTINCT tenant FROM snapshots`},
		{&q.snapshotOfImage, record + `WHERE image = ? AND state <> 'deleting' AND layer = '' ORDER BY created_at DESC, id DESC LIMIT 1`},
		{&q.snapshotOfBuild, record + `WHERE build = ? AND memory AND state <> 'deleting' LIMIT 1`},
		{&q.snapshotBuilds, `SELECT build, count(*) FROM snapshots WHERE memory AND state <> 'deleting' AND build <> '' GROUP BY build`},
		{&q.snapshotsLeft, record + `WHERE (state <> 'ready' OR NOT kept) AND (state <> 'ready' OR NOT EXISTS (SELECT 1 ` + referred + `) AND NOT ` + wayBack + `)`},
	}
}

// InsertSnapshot implements sandbox.SnapshotStore.
func (s *Store) InsertSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	snap.Version, snap.Uses = 1, 0
	err := s.writer.write(ctx, func(st *statements) error {
		var have int
		if err := st.countSnapshots.QueryRow(string(snap.Tenant)).Scan(&have); err != nil {
			return err
		}
		if have >= sandbox.MaxSnapshots {
			return sandbox.Errorf(sandbox.Exhausted, "the tenant has %d snapshots already: delete some first", have)
		}
		there, err := found(st.snapshotThere, snap.Parent, string(snap.Tenant))
		if err != nil {
			return err
		}
		if !there {
			snap.Parent = ""
		}
		if _, err := snapshotTable.insert.exec(st.insertSnapshot, &snap); err != nil {
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
	switch violated(err) {
	case violatedUnique:
		return sandbox.Errorf(sandbox.Conflict, "the sandbox has a snapshot named %q", snap.Name)
	case violatedKey:
		return sandbox.Errorf(sandbox.Conflict, "the snapshot ID is in use")
	}
	return err
}

func noSnapshot() error { return sandbox.Errorf(sandbox.NotFound, "no such snapshot") }

// UpdateSnapshot implements sandbox.SnapshotStore.
func (s *Store) UpdateSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	snap.Version, snap.Uses = snap.Version+1, 0
	args, err := updateSnapshot.args(&snap)
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
			return cmp.Or(s.admitSnapshot(st, snap), st.queueSnapshot(snap.ID, known))
		case n == 1:
			return st.queueSnapshot(snap.ID, known)
		}
		there, err := found(st.snapshotThere, snap.ID, string(snap.Tenant))
		switch {
		case err != nil:
			return err
		case !there:
			return noSnapshot()
		}
		return sandbox.Errorf(sandbox.Conflict, "the snapshot was changed by another request: read it again")
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

// ListSnapshots implements sandbox.SnapshotStore. A malformed Cursor and a Limit out of
// bounds are Invalid.
func (s *Store) ListSnapshots(ctx context.Context, tenant sandbox.TenantID, query sandbox.SnapshotQuery) (sandbox.SnapshotPage, error) {
	limit, err := pageLimit(query.Limit)
	if err != nil {
		return sandbox.SnapshotPage{}, err
	}
	after, err := parseCursor(query.Cursor, false, sandbox.ValidSnapshotID)
	if err != nil {
		return sandbox.SnapshotPage{}, err
	}
	// One extra row shows whether there is a next page.
	args := []any{string(tenant), after.created, after.id, limit + 1, query.Name, query.Kept, query.Layers, query.Tags}
	list := s.query.snapshotsOfTenant
	if query.SandboxID != "" {
		list, args = s.query.snapshotsOfSandbox, append(args, query.SandboxID)
	}
	all, err := collect(snapshotTable.scan)(list.QueryContext(ctx, args...))
	if err != nil {
		return sandbox.SnapshotPage{}, err
	}
	all, last := cutPage(all, limit)
	page := sandbox.SnapshotPage{Snapshots: all}
	if last != nil {
		page.Next = cursor{created: micros(last.CreatedAt), id: last.ID}.String()
	}
	return page, nil
}

// SnapshotsLeft implements sandbox.SnapshotStore.
func (s *Store) SnapshotsLeft(ctx context.Context) ([]sandbox.Snapshot, error) {
	return collect(snapshotTable.scan)(s.query.snapshotsLeft.QueryContext(ctx))
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
	return one(row, snapshotTable.scan, noSnapshot)
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
			return st.queueSnapshot(id, kept)
		}
		return sandbox.Errorf(sandbox.Conflict, "the snapshot is in use")
	})
}

// DropSnapshot implements sandbox.SnapshotStore.
func (s *Store) DropSnapshot(ctx context.Context, id string) error {
	return s.writer.write(ctx, func(st *statements) error { return st.drop(id) })
}

// drop removes a record. A trigger then has the Snapshot's copies deleted.
func (s *snapshotStatements) drop(id string) error {
	if _, err := s.adoptSnapshots.Exec(id); err != nil {
		return err
	}
	_, err := s.dropSnapshot.Exec(id)
	return err
}
