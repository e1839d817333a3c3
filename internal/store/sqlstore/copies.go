package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// copyRow is the row of a copy. until is when its last put has ended for certain, by the
// database's clock, and earlier when the puts of all attempts before the latest one have: a
// put of a process that has died may arrive late. Zero: all have ended.
type copyRow struct {
	sandbox.CopyRef
	node    string
	state   string
	attempt int64
	until   time.Time
	earlier time.Time
}

const (
	copying      = "copying"
	copyReady    = "ready"
	copyDeleting = "deleting"
)

var copyTable = newTable("copies", func(c *copyRow, all *columns) {
	all.add("snapshot", &c.Snapshot)
	all.add("prefix", &c.Prefix)
	all.add("node", &c.node)
	all.add("state", &c.state)
	all.add("attempt", &c.attempt)
	all.add("until", (*moment)(&c.until))
	all.add("earlier", (*moment)(&c.earlier))
})

var keepCopy = copyTable.replacing("snapshot", "prefix")

// releaseSize bounds the packs that one transaction releases.
const releaseSize = 1000

// Parts of statements: ?1 and ?2 are the copy, and ?3 the attempt or a limit.
const (
	thatCopy = `snapshot = ?1 AND prefix = ?2`
	// unshared is true of a pack that no other copy uses.
	unshared = `NOT EXISTS (SELECT 1 FROM copy_packs AS other WHERE other.pack = packs.name AND NOT (other.snapshot = ?1 AND other.prefix = ?2))`
	// former are packs of other attempts at the copy than ?3.
	former = `SELECT pack FROM copy_packs WHERE ` + thatCopy + ` AND attempt <> ?3`
	// some are up to ?3 packs of the copy, the same ones in each statement of a transaction.
	some = `SELECT pack FROM copy_packs WHERE ` + thatCopy + ` ORDER BY pack LIMIT ?3`
)

// copyStatements are the writer's prepared statements for copies and their packs.
type copyStatements struct {
	copyNeeded, snapshotOwned, copyNow, keepCopy, copyOthers, abandonCopies   *sql.Stmt
	packNow, insertPack, abandonPack, usePack                                 *sql.Stmt
	endFormer, dropFormer, endSome, dropSome, dropCopy                        *sql.Stmt
	copiesLeft, packsLeft, dropPacks                                          *sql.Stmt
	leaveState, forgetState, stateLeft, snapshotOn, expectState, moveSnapshot *sql.Stmt
}

func (s *copyStatements) all(d *dialect) []prepared {
	return []prepared{
		{&s.copyNeeded, `SELECT 1 FROM snapshots WHERE id = ? AND node = ? AND state <> 'deleting'`},
		{&s.snapshotOwned, `SELECT node, state FROM snapshots WHERE id = ?`},
		{&s.copyNow, copyTable.record + `WHERE snapshot = ? AND prefix = ?`},
		{&s.keepCopy, keepCopy.text},
		{&s.copyOthers, `UPDATE copies SET state = 'deleting' WHERE snapshot = ? AND prefix <> ?`},
		{&s.abandonCopies, `UPDATE copies SET state = 'deleting', until = earlier WHERE snapshot = ? AND node = ?`},
		{&s.packNow, `SELECT deleting FROM packs WHERE name = ?`},
		{&s.insertPack, `INSERT INTO packs (name, deleting) VALUES (?, FALSE)`},
		{&s.abandonPack, `INSERT INTO packs (name, deleting) VALUES (?, TRUE) ON CONFLICT (name) DO NOTHING`},
		{&s.usePack, `INSERT INTO copy_packs (snapshot, prefix, pack, attempt) VALUES (?, ?, ?, ?)
			ON CONFLICT (snapshot, prefix, pack) DO UPDATE SET attempt = excluded.attempt`},
		{&s.endFormer, `UPDATE packs SET deleting = TRUE WHERE name IN (` + former + `) AND ` + unshared},
		{&s.dropFormer, `DELETE FROM copy_packs WHERE ` + thatCopy + ` AND attempt <> ?3`},
		{&s.endSome, `UPDATE packs SET deleting = TRUE WHERE name IN (` + some + `) AND ` + unshared},
		{&s.dropSome, `DELETE FROM copy_packs WHERE ` + thatCopy + ` AND pack IN (` + some + `)`},
		{&s.dropCopy, `DELETE FROM copies WHERE ` + thatCopy + ` AND state = 'deleting'`},
		{&s.copiesLeft, copyTable.record + `WHERE state = 'deleting' AND until <= ? ORDER BY until LIMIT ?`},
		{&s.packsLeft, `SELECT name FROM packs WHERE deleting ORDER BY name LIMIT ?`},
		{&s.dropPacks, `DELETE FROM packs WHERE deleting AND name ` + d.inList},
		{&s.leaveState, `INSERT INTO left_states (node, snapshot) SELECT node, id FROM snapshots WHERE id = ? ON CONFLICT (node, snapshot) DO NOTHING`},
		{&s.forgetState, `DELETE FROM left_states WHERE node = ? AND snapshot = ?`},
		{&s.stateLeft, `SELECT 1 FROM left_states WHERE node = ? AND snapshot = ?`},
		{&s.snapshotOn, `SELECT 1 FROM snapshots WHERE id = ? AND node = ? AND state = 'ready'`},
		{&s.expectState, `INSERT INTO left_states (node, snapshot) VALUES (?, ?)`},
		{&s.moveSnapshot, `UPDATE snapshots SET node = ?3, bytes = ?4, build = ?5, digest = ?6, cpu = ?7, version = version + 1
			WHERE id = ?1 AND node = ?2 AND state = 'ready' AND kept AND NOT EXISTS (SELECT 1 ` + referred + ` AND sandboxes.state IN ` + needed + `)`},
	}
}

// copyQueries are the prepared statements of reading connections.
type copyQueries struct{ packScope, findCopy, statesLeft, snapshotsAlone *sql.Stmt }

// uncopied is true of a Snapshot of which no complete copy is recorded.
const uncopied = `NOT EXISTS (SELECT 1 FROM copies WHERE copies.snapshot = snapshots.id AND copies.state = 'ready')`

func (q *copyQueries) all(d *dialect) []prepared {
	return []prepared{
		{&q.packScope, `SELECT scope FROM pack_scope`},
		{&q.findCopy, `SELECT copies.prefix FROM copies JOIN snapshots ON snapshots.id = copies.snapshot
			WHERE copies.snapshot = ? AND copies.state = 'ready' AND snapshots.tenant = ?`},
		{&q.statesLeft, d.clocked(`SELECT left_states.node, left_states.snapshot, nodes.lease_until, ` + clockName + ` FROM left_states JOIN nodes ON nodes.name = left_states.node
			WHERE nodes.lease_until > ` + clockName + ` LIMIT ?`)},
		{&q.snapshotsAlone, snapshotTable.record + `WHERE node = ? AND kept AND state = 'ready' AND layer = '' AND ` + uncopied + `
			AND NOT EXISTS (SELECT 1 ` + referred + ` AND sandboxes.state IN ` + needed + `) ORDER BY created_at, id LIMIT ?`},
	}
}

func noCopied(snapshot string) error {
	return sandbox.Errorf(sandbox.NotFound, "the saved state %.64s is not of a snapshot on this node, or is being deleted", snapshot)
}

// PackScope implements sandbox.CopyRecords.
func (s *Store) PackScope(ctx context.Context) (scope string, err error) {
	err = s.query.packScope.QueryRowContext(ctx).Scan(&scope)
	return scope, classify(err)
}

// FindCopy implements sandbox.CopyRecords.
func (s *Store) FindCopy(ctx context.Context, tenant sandbox.TenantID, snapshot string) (string, error) {
	return one(s.query.findCopy.QueryRowContext(ctx, snapshot, string(tenant)), func(scan func(...any) error) (prefix string, err error) {
		return prefix, scan(&prefix)
	}, func() error {
		return sandbox.Errorf(sandbox.NotFound, "the saved state %.64s has no recorded copy", snapshot)
	})
}

// needed returns the row of the copy of a state that a Node keeps, or a new row. NotFound if
// the state is not needed.
func (s *copyStatements) needed(node string, c sandbox.CopyRef) (row copyRow, err error) {
	needed, err := found(s.copyNeeded, c.Snapshot, node)
	if err == nil && !needed {
		err = noCopied(c.Snapshot)
	}
	if err != nil {
		return copyRow{}, err
	}
	row, err = copyTable.scan(s.copyNow.QueryRow(c.Snapshot, c.Prefix).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		row, err = copyRow{CopyRef: c, state: copying}, nil
	}
	row.node = node
	if err == nil && row.state == copyDeleting { // its prefix was replaced, and is the present one again
		err = sandbox.Errorf(sandbox.Unavailable, "an earlier copy of the saved state %.64s is being deleted", c.Snapshot)
	}
	return row, err
}

// latest is needed for the latest attempt at a copy.
func (s *copyStatements) latest(node string, a sandbox.CopyAttempt) (row copyRow, err error) {
	row, err = s.needed(node, a.CopyRef)
	if err == nil && (row.attempt == 0 || row.attempt != a.Number) {
		err = sandbox.Errorf(sandbox.Conflict, "the attempt %d is not the latest one at the copy of the saved state %.64s", a.Number, a.Snapshot)
	}
	return row, err
}

// BeginCopy implements sandbox.CopyRecords.
func (s *Store) BeginCopy(ctx context.Context, node string, c sandbox.CopyRef) (a sandbox.CopyAttempt, err error) {
	if err := c.Check(); err != nil {
		return sandbox.CopyAttempt{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		row, err := st.needed(node, c)
		if err != nil {
			return err
		}
		row.attempt++
		row.earlier = row.until
		a = sandbox.CopyAttempt{CopyRef: c, Number: row.attempt}
		_, err = keepCopy.exec(st.keepCopy, &row)
		return err
	})
	if err != nil {
		return sandbox.CopyAttempt{}, err
	}
	return a, nil
}

// UsePacks implements sandbox.CopyRecords.
func (s *Store) UsePacks(ctx context.Context, node string, use sandbox.PackUse) (refused []string, err error) {
	if err := use.Check(); err != nil {
		return nil, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		row, err := st.latest(node, use.CopyAttempt)
		if err != nil {
			return err
		}
		if end := now.Add(use.Life); end.After(row.until) {
			row.until = end
		}
		if _, err := keepCopy.exec(st.keepCopy, &row); err != nil {
			return err
		}
		for _, pack := range use.Packs {
			used, err := st.use(use, pack)
			if err != nil {
				return err
			}
			if !used {
				refused = append(refused, pack)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return refused, nil
}

// use records that a copy uses a pack, or reports that it must not.
func (s *copyStatements) use(use sandbox.PackUse, pack string) (used bool, err error) {
	var deleting bool
	err = s.packNow.QueryRow(pack).Scan(&deleting)
	switch none := errors.Is(err, sql.ErrNoRows); {
	case err != nil && !none:
		return false, err
	case deleting, none && use.Shared:
		return false, nil
	case none:
		if _, err := s.insertPack.Exec(pack); err != nil {
			return false, err
		}
	}
	_, err = s.usePack.Exec(use.Snapshot, use.Prefix, pack, use.Number)
	return err == nil, err
}

// CompleteCopy implements sandbox.CopyRecords.
func (s *Store) CompleteCopy(ctx context.Context, node string, c sandbox.CopyAttempt) error {
	if err := c.Check(); err != nil {
		return err
	}
	return s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		row, err := st.latest(node, c)
		if err != nil {
			return err
		}
		if !row.earlier.After(now) {
			if err := st.releaseFormer(c); err != nil {
				return err
			}
		}
		row.state, row.until = copyReady, row.earlier
		if _, err := keepCopy.exec(st.keepCopy, &row); err != nil {
			return err
		}
		_, err = st.copyOthers.Exec(c.Snapshot, c.Prefix)
		return err
	})
}

// releaseFormer releases the packs of former attempts, whose puts have ended. A list that one
// of them puts late would replace the list of the copy, which needs them then.
func (s *copyStatements) releaseFormer(c sandbox.CopyAttempt) error {
	if _, err := s.endFormer.Exec(c.Snapshot, c.Prefix, c.Number); err != nil {
		return err
	}
	_, err := s.dropFormer.Exec(c.Snapshot, c.Prefix, c.Number)
	return err
}

// AbandonCopy implements sandbox.CopyRecords.
func (s *Store) AbandonCopy(ctx context.Context, node string, c sandbox.AbandonedCopy) error {
	if err := c.Check(); err != nil {
		return err
	}
	return s.writer.write(ctx, func(st *statements) error {
		var owner, state string
		switch err := st.snapshotOwned.QueryRow(c.Snapshot).Scan(&owner, &state); {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		case owner != node || state != string(sandbox.SnapshotDeleting):
			return sandbox.Errorf(sandbox.Conflict, "the saved state %.64s is needed", c.Snapshot)
		}
		if _, err := st.abandonCopies.Exec(c.Snapshot, node); err != nil {
			return err
		}
		if c.Prefix == "" {
			return nil
		}
		row, err := copyTable.scan(st.copyNow.QueryRow(c.Snapshot, c.Prefix).Scan)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			row = copyRow{CopyRef: c.CopyRef, node: node, state: copyDeleting}
			if _, err := keepCopy.exec(st.keepCopy, &row); err != nil {
				return err
			}
		case err != nil:
			return err
		case row.node != node:
			return sandbox.Errorf(sandbox.Conflict, "the copy of the saved state %.64s is of another node", c.Snapshot)
		}
		for _, pack := range c.Packs {
			if _, err := st.abandonPack.Exec(pack); err != nil {
				return err
			}
		}
		return nil
	})
}

// CopiesLeft implements sandbox.CopyGarbage.
func (s *Store) CopiesLeft(ctx context.Context, limit int) (left []sandbox.CopyRef, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		left, err = collect(func(scan func(...any) error) (sandbox.CopyRef, error) {
			row, err := copyTable.scan(scan)
			return row.CopyRef, err
		})(st.copiesLeft.Query(micros(now), limit))
		return err
	})
	return left, err
}

// DropCopy implements sandbox.CopyGarbage.
func (s *Store) DropCopy(ctx context.Context, c sandbox.CopyRef) (more bool, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		row, err := copyTable.scan(st.copyNow.QueryRow(c.Snapshot, c.Prefix).Scan)
		if errors.Is(err, sql.ErrNoRows) || err == nil && row.state != copyDeleting {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := st.endSome.Exec(c.Snapshot, c.Prefix, releaseSize); err != nil {
			return err
		}
		result, err := st.dropSome.Exec(c.Snapshot, c.Prefix, releaseSize)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if more = n == releaseSize; more || err != nil {
			return err
		}
		_, err = st.dropCopy.Exec(c.Snapshot, c.Prefix)
		return err
	})
	return more, err
}

// PacksLeft implements sandbox.CopyGarbage.
func (s *Store) PacksLeft(ctx context.Context, limit int) (left []string, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		left, err = collect(func(scan func(...any) error) (name string, err error) {
			return name, scan(&name)
		})(st.packsLeft.Query(limit))
		return err
	})
	return left, err
}

// DropPacks implements sandbox.CopyGarbage.
func (s *Store) DropPacks(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	list, err := json.Marshal(names)
	if err != nil {
		return err
	}
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.dropPacks.Exec(string(list))
		return err
	})
}

// LeaveSnapshot implements sandbox.LeftStates.
func (s *Store) LeaveSnapshot(ctx context.Context, id string) error {
	return s.writer.write(ctx, func(st *statements) error {
		if _, err := st.leaveState.Exec(id); err != nil {
			return err
		}
		return st.drop(id)
	})
}

// StatesLeft implements sandbox.LeftStates.
func (s *Store) StatesLeft(ctx context.Context, limit int) ([]sandbox.LeftState, error) {
	rows, err := collect(func(scan func(...any) error) (*sandbox.LeftState, error) {
		var left sandbox.LeftState
		var until moment
		var clock int64
		err := scan(&left.Node, &left.Snapshot, &until, &clock)
		if err != nil || !clockAt(clock).Before(time.Time(until)) {
			return nil, err
		}
		return &left, nil
	})(s.query.statesLeft.QueryContext(ctx, limit))
	var all []sandbox.LeftState
	for _, left := range rows {
		if left != nil {
			all = append(all, *left)
		}
	}
	return all, err
}

// ClaimState implements sandbox.LeftStates.
func (s *Store) ClaimState(ctx context.Context, left sandbox.LeftState) error {
	return s.writer.write(ctx, func(st *statements) error {
		there, err := found(st.stateLeft, left.Node, left.Snapshot)
		if err == nil && !there {
			err = sandbox.Errorf(sandbox.NotFound, "no files of the snapshot %.64s are left on the node", left.Snapshot)
		}
		if err != nil {
			return err
		}
		here, err := found(st.snapshotOn, left.Snapshot, left.Node)
		if err == nil && here { // no record should say both
			err = sandbox.Errorf(sandbox.Conflict, "the snapshot %.64s is on the node", left.Snapshot)
		}
		return err
	})
}

// ForgetState implements sandbox.LeftStates.
func (s *Store) ForgetState(ctx context.Context, left sandbox.LeftState) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.forgetState.Exec(left.Node, left.Snapshot)
		return err
	})
}

// SnapshotsAlone implements sandbox.SnapshotMoves.
func (s *Store) SnapshotsAlone(ctx context.Context, node string, limit int) ([]sandbox.Snapshot, error) {
	return collect(snapshotTable.scan)(s.query.snapshotsAlone.QueryContext(ctx, node, limit))
}

// BeginSnapshotMove implements sandbox.SnapshotMoves.
func (s *Store) BeginSnapshotMove(ctx context.Context, snap sandbox.Snapshot, to string) error {
	return s.writer.write(ctx, func(st *statements) error {
		here, err := found(st.snapshotOn, snap.ID, snap.Node)
		if err != nil {
			return err
		}
		left, err := found(st.stateLeft, to, snap.ID)
		switch {
		case err != nil:
			return err
		case !here || to == snap.Node:
			return sandbox.Errorf(sandbox.Conflict, "the snapshot %.64s is deleted or elsewhere by now", snap.ID)
		case left:
			return sandbox.Errorf(sandbox.Conflict, "files of the snapshot %.64s are to be deleted on the node first", snap.ID)
		}
		_, err = st.expectState.Exec(to, snap.ID)
		return err
	})
}

// MoveSnapshot implements sandbox.SnapshotMoves.
func (s *Store) MoveSnapshot(ctx context.Context, snap sandbox.Snapshot, from string) error {
	return s.writer.write(ctx, func(st *statements) error {
		for _, one := range []struct {
			stmt  *sql.Stmt
			args  []any
			other string
		}{
			{st.forgetState, []any{snap.Node, snap.ID}, "its files on the other node may have been deleted"},
			{st.moveSnapshot, []any{snap.ID, from, snap.Node, snap.Bytes, snap.Build, snap.Digest, string(snap.CPU)}, "it is in use, deleted, or elsewhere"},
			{st.expectState, []any{from, snap.ID}, ""},
		} {
			result, err := one.stmt.Exec(one.args...)
			if err != nil {
				return err
			}
			if n, err := result.RowsAffected(); err != nil || n == 0 {
				return cmp.Or(err, error(sandbox.Errorf(sandbox.Conflict, "the snapshot %.64s does not move: %s", snap.ID, one.other)))
			}
		}
		return nil
	})
}
