package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	volumeColumns = `id, tenant, name, state, node, max_bytes, created_at`
	// volumeUses counts the Sandboxes of a Tenant that have a Volume and have not
	// ended.
	volumeUses = `SELECT count(*) FROM sandboxes WHERE tenant = ?1 AND volumes <> '' AND state <> 'ended'
		AND EXISTS (SELECT 1 FROM json_each(sandboxes.volumes) AS mount WHERE mount.value ->> 'volume' = ?2)`
	volumeRecord = `SELECT ` + volumeColumns + ` FROM volumes `
)

// volumeStatements are what the writer has prepared for Volumes.
type volumeStatements struct {
	insertVolume, countVolumes, moveVolume, dropVolume *sql.Stmt
	volumeNow, volumeReady, volumeUsesNow              *sql.Stmt
}

func (s *volumeStatements) all() []prepared {
	return []prepared{
		{&s.insertVolume, `INSERT INTO volumes (` + volumeColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?)`},
		{&s.countVolumes, `SELECT count(*) FROM volumes WHERE tenant = ?`},
		{&s.moveVolume, `UPDATE volumes SET state = ? WHERE id = ?`},
		{&s.dropVolume, `DELETE FROM volumes WHERE id = ? AND state = 'deleting'`},
		{&s.volumeNow, volumeRecord + `WHERE id = ?`},
		{&s.volumeReady, `SELECT 1 FROM volumes WHERE id = ? AND tenant = ? AND state = 'ready'`},
		{&s.volumeUsesNow, volumeUses},
	}
}

// volumeQueries are what the reading connections have prepared.
type volumeQueries struct{ volumeByID, volumeByName, volumes, volumesLeft, volumeUses *sql.Stmt }

func (q *volumeQueries) all() []prepared {
	return []prepared{
		{&q.volumeByID, volumeRecord + `WHERE id = ?`},
		{&q.volumeByName, volumeRecord + `WHERE tenant = ? AND name = ? AND state <> 'deleting' AND state = 'ready'`},
		{&q.volumes, volumeRecord + `WHERE tenant = ? AND state <> 'deleting' AND state = 'ready' ORDER BY name LIMIT ?`},
		{&q.volumesLeft, volumeRecord + `WHERE state <> 'ready'`},
		{&q.volumeUses, volumeUses},
	}
}

func noVolume() error { return sandbox.Errorf(sandbox.NotFound, "there is no such volume") }

// InsertVolume implements sandbox.VolumeStore.
func (s *Store) InsertVolume(ctx context.Context, v sandbox.Volume) (sandbox.Volume, error) {
	v.CreatedAt = fromMicros(micros(v.CreatedAt))
	err := s.writer.write(ctx, func(st *statements) error {
		var have int
		if err := st.countVolumes.QueryRow(string(v.Tenant)).Scan(&have); err != nil {
			return err
		}
		_, err := st.insertVolume.Exec(v.ID, string(v.Tenant), v.Name, string(v.State), v.Node, v.MaxBytes, micros(v.CreatedAt))
		switch {
		case extendedCode(err) == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
			return sandbox.Errorf(sandbox.Conflict, "there is a volume named %q", v.Name)
		case extendedCode(err) == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
			return sandbox.Errorf(sandbox.Conflict, "the volume ID is in use")
		case err != nil:
			return err
		case have >= sandbox.MaxVolumes:
			return sandbox.Errorf(sandbox.Exhausted, "there are %d volumes already: delete one first", have)
		}
		return s.admitVolume(st, v)
	})
	if err != nil {
		return sandbox.Volume{}, err
	}
	return v, nil
}

// MoveVolume implements sandbox.VolumeStore.
func (s *Store) MoveVolume(ctx context.Context, id string, from, to sandbox.VolumeState) error {
	return s.writer.write(ctx, func(st *statements) error {
		v, err := oneVolume(st.volumeNow.QueryRow(id))
		if err != nil {
			return err
		}
		if v.State != from {
			return sandbox.Errorf(sandbox.Conflict, "the volume is %s by now", v.State)
		}
		if to == sandbox.VolumeDeleting {
			var uses int
			if err := st.volumeUsesNow.QueryRow(string(v.Tenant), id).Scan(&uses); err != nil {
				return err
			}
			if uses > 0 {
				return sandbox.Errorf(sandbox.Conflict, "the volume is in use: %d sandboxes that have not ended have it", uses)
			}
		}
		_, err = st.moveVolume.Exec(string(to), id)
		return err
	})
}

// VolumeByID implements sandbox.VolumeStore.
func (s *Store) VolumeByID(ctx context.Context, id string) (sandbox.Volume, error) {
	return oneVolume(s.query.volumeByID.QueryRowContext(ctx, id))
}

// VolumeByName implements sandbox.VolumeStore.
func (s *Store) VolumeByName(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.Volume, error) {
	return oneVolume(s.query.volumeByName.QueryRowContext(ctx, string(tenant), name))
}

// Volumes implements sandbox.VolumeStore.
func (s *Store) Volumes(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Volume, error) {
	return collect(scanVolume)(s.query.volumes.QueryContext(ctx, string(tenant), sandbox.MaxVolumes))
}

// VolumesLeft implements sandbox.VolumeStore.
func (s *Store) VolumesLeft(ctx context.Context) ([]sandbox.Volume, error) {
	return collect(scanVolume)(s.query.volumesLeft.QueryContext(ctx))
}

// VolumeUses implements sandbox.VolumeStore.
func (s *Store) VolumeUses(ctx context.Context, id string) (int, error) {
	v, err := s.VolumeByID(ctx, id)
	if err != nil {
		return 0, err
	}
	var uses int
	err = s.query.volumeUses.QueryRowContext(ctx, string(v.Tenant), id).Scan(&uses)
	return uses, classify(err)
}

// DropVolume implements sandbox.VolumeStore.
func (s *Store) DropVolume(ctx context.Context, id string) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.dropVolume.Exec(id)
		return err
	})
}

// mounted returns Conflict when a Volume of sb, which is about to be inserted, is
// not there.
func mounted(st *statements, sb sandbox.Sandbox) error {
	for _, m := range sb.Volumes {
		ready, err := found(st.volumeReady, m.Volume, string(sb.Tenant))
		if err == nil && !ready {
			err = sandbox.Errorf(sandbox.Conflict, "the volume %s (%s) is gone", m.Name, m.Volume)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func oneVolume(row *sql.Row) (sandbox.Volume, error) {
	v, err := scanVolume(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return sandbox.Volume{}, noVolume()
	}
	return v, classify(err)
}

func scanVolume(scan func(...any) error) (sandbox.Volume, error) {
	var v sandbox.Volume
	var created int64
	err := scan(&v.ID, (*string)(&v.Tenant), &v.Name, (*string)(&v.State), &v.Node, &v.MaxBytes, &created)
	v.CreatedAt = fromMicros(created)
	return v, err
}

// mount is a sandbox.VolumeMount as a column has it.
type mount struct {
	Volume string `json:"volume"`
	Name   string `json:"name"`
	Path   string `json:"path"`
}

func encodeMounts(mounts []sandbox.VolumeMount) (string, error) {
	if len(mounts) == 0 {
		return "", nil
	}
	all := make([]mount, len(mounts))
	for i, m := range mounts {
		all[i] = mount(m)
	}
	b, err := json.Marshal(all)
	return string(b), err
}

func decodeMounts(text string) ([]sandbox.VolumeMount, error) {
	if text == "" {
		return nil, nil
	}
	var all []mount
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("decode volumes: %w", err)
	}
	mounts := make([]sandbox.VolumeMount, len(all))
	for i, m := range all {
		mounts[i] = sandbox.VolumeMount(m)
	}
	return mounts, nil
}
