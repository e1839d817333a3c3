package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var volumeTable = newTable("volumes", func(v *sandbox.Volume, c *columns) {
	c.add("id", &v.ID)
	c.add("tenant", (*string)(&v.Tenant))
	c.add("name", &v.Name)
	c.add("state", (*string)(&v.State))
	c.add("node", &v.Node)
	c.add("max_bytes", &v.MaxBytes)
	c.add("created_at", (*moment)(&v.CreatedAt))
	c.add("left_on", &v.LeftOn)
})

// volumeUses counts the Sandboxes of a Tenant that mount a Volume and have not ended, and
// those among them that are not paused.
func volumeUses(d *dialect) string {
	return `SELECT count(*), count(CASE WHEN state <> 'paused' THEN 1 END) FROM sandboxes WHERE tenant = ?1 AND volumes <> '' AND state <> 'ended' AND ` + d.mountsVolume
}

// volumeStatements are the writer's prepared statements for Volumes.
type volumeStatements struct {
	insertVolume, countVolumes, moveVolume, rehomeVolume, dropVolume *sql.Stmt
	volumeNow, volumeReady, volumeUsesNow                            *sql.Stmt
}

func (s *volumeStatements) all(d *dialect) []prepared {
	return []prepared{
		{&s.insertVolume, volumeTable.insert.text},
		{&s.countVolumes, `SELECT count(*) FROM volumes WHERE tenant = ?`},
		{&s.moveVolume, `UPDATE volumes SET state = ? WHERE id = ?`},
		{&s.rehomeVolume, `UPDATE volumes SET node = ?, left_on = ? WHERE id = ?`},
		{&s.dropVolume, `DELETE FROM volumes WHERE id = ? AND state = 'deleting'`},
		{&s.volumeNow, volumeTable.record + `WHERE id = ?`},
		{&s.volumeReady, `SELECT 1 FROM volumes WHERE id = ? AND tenant = ? AND state = 'ready'`},
		{&s.volumeUsesNow, volumeUses(d)},
	}
}

// volumeQueries are the prepared statements of reading connections.
type volumeQueries struct {
	volumeByID, volumeByName, volumes, volumesLeft, volumesMoved, volumesOn, volumeUses *sql.Stmt
}

func (q *volumeQueries) all(d *dialect) []prepared {
	return []prepared{
		{&q.volumeByID, volumeTable.record + `WHERE id = ?`},
		{&q.volumeByName, volumeTable.record + `WHERE tenant = ? AND name = ? AND state <> 'deleting' AND state = 'ready'`},
		{&q.volumes, volumeTable.record + `WHERE tenant = ? AND state <> 'deleting' AND state = 'ready' ORDER BY name LIMIT ?`},
		{&q.volumesLeft, volumeTable.record + `WHERE state <> 'ready'`},
		{&q.volumesMoved, volumeTable.record + `WHERE left_on <> '' AND state = 'ready'`},
		{&q.volumesOn, volumeTable.record + `WHERE node = ? AND state = 'ready' ORDER BY id`},
		{&q.volumeUses, volumeUses(d)},
	}
}

func noVolume() error { return sandbox.Errorf(sandbox.NotFound, "no such volume") }

// InsertVolume implements sandbox.VolumeStore.
func (s *Store) InsertVolume(ctx context.Context, v sandbox.Volume) (sandbox.Volume, error) {
	err := s.writer.write(ctx, func(st *statements) error {
		var have int
		if err := st.countVolumes.QueryRow(string(v.Tenant)).Scan(&have); err != nil {
			return err
		}
		_, err := volumeTable.insert.exec(st.insertVolume, &v)
		switch {
		case violated(err) == violatedUnique:
			return sandbox.Errorf(sandbox.Conflict, "a volume named %q exists already", v.Name)
		case violated(err) == violatedKey:
			return sandbox.Errorf(sandbox.Conflict, "the volume ID is in use")
		case err != nil:
			return err
		case have >= sandbox.MaxVolumes:
			return sandbox.Errorf(sandbox.Exhausted, "the tenant has %d volumes already: delete one first", have)
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
			var uses, active int
			if err := st.volumeUsesNow.QueryRow(string(v.Tenant), id).Scan(&uses, &active); err != nil {
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
	return collect(volumeTable.scan)(s.query.volumes.QueryContext(ctx, string(tenant), sandbox.MaxVolumes))
}

// VolumesLeft implements sandbox.VolumeStore.
func (s *Store) VolumesLeft(ctx context.Context) ([]sandbox.Volume, error) {
	left, err := collect(volumeTable.scan)(s.query.volumesLeft.QueryContext(ctx))
	if err != nil {
		return nil, err
	}
	moved, err := collect(volumeTable.scan)(s.query.volumesMoved.QueryContext(ctx))
	return append(left, moved...), err
}

// VolumesOn implements sandbox.VolumeStore.
func (s *Store) VolumesOn(ctx context.Context, node string) ([]sandbox.Volume, error) {
	return collect(volumeTable.scan)(s.query.volumesOn.QueryContext(ctx, node))
}

// RehomeVolume implements sandbox.VolumeStore.
func (s *Store) RehomeVolume(ctx context.Context, id string, from, to sandbox.VolumePlace) error {
	return s.writer.write(ctx, func(st *statements) error {
		v, err := oneVolume(st.volumeNow.QueryRow(id))
		if err != nil {
			return err
		}
		if v.State != sandbox.VolumeReady || v.Place() != from {
			return sandbox.Errorf(sandbox.Conflict, "the volume is %s, and elsewhere by now", v.State)
		}
		_, err = st.rehomeVolume.Exec(to.Node, to.LeftOn, id)
		return err
	})
}

// VolumeUses implements sandbox.VolumeStore.
func (s *Store) VolumeUses(ctx context.Context, id string) (all, active int, err error) {
	v, err := s.VolumeByID(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	err = s.query.volumeUses.QueryRowContext(ctx, string(v.Tenant), id).Scan(&all, &active)
	return all, active, classify(err)
}

// DropVolume implements sandbox.VolumeStore.
func (s *Store) DropVolume(ctx context.Context, id string) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.dropVolume.Exec(id)
		return err
	})
}

// mounted returns Conflict if a Volume of sb, which is about to be inserted, does not
// exist.
func mounted(p *pipeline, sb sandbox.Sandbox) {
	for _, m := range sb.Volumes {
		p.needs(p.st.volumeReady, sandbox.Errorf(sandbox.Conflict, "the volume %s (%s) is gone", m.Name, m.Volume), m.Volume, string(sb.Tenant))
	}
}

func oneVolume(row *sql.Row) (sandbox.Volume, error) {
	return one(row, volumeTable.scan, noVolume)
}

// mount is a sandbox.VolumeMount in its column.
type mount struct {
	Volume string `json:"volume"`
	Name   string `json:"name"`
	Path   string `json:"path"`
}

// mounts are VolumeMounts as JSON; none are an empty string, read as nil.
type mounts []sandbox.VolumeMount

// Value implements driver.Valuer.
func (l *mounts) Value() (driver.Value, error) {
	if len(*l) == 0 {
		*l = nil
		return "", nil
	}
	all := make([]mount, len(*l))
	for i, m := range *l {
		all[i] = mount(m)
	}
	b, err := json.Marshal(all)
	return string(b), err
}

// Scan implements sql.Scanner.
func (l *mounts) Scan(src any) error {
	text, err := textOf(src)
	*l = nil
	if err != nil || text == "" {
		return err
	}
	var all []mount
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return fmt.Errorf("decode volumes: %w", err)
	}
	for _, m := range all {
		*l = append(*l, sandbox.VolumeMount(m))
	}
	return nil
}
