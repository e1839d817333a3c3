package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var keyTable = newTable("keys", func(k *sandbox.Key, c *columns) {
	c.add("id", &k.ID)
	c.add("tenant", (*string)(&k.Tenant))
	c.add("name", &k.Name)
	c.add("role", (*string)(&k.Role))
	c.add("scopes", asJSON(&k.Scopes))
	c.add("hash", (*hash)(&k.Hash))
	c.add("hint", &k.Hint)
	c.add("created_at", (*moment)(&k.CreatedAt))
	c.add("expires_at", (*moment)(&k.ExpiresAt))
	c.add("used_at", (*moment)(&k.UsedAt))
	c.add("previous_hash", (*optionalHash)(&k.Previous.Hash))
	c.add("previous_hint", &k.Previous.Hint)
	c.add("previous_until", (*moment)(&k.Previous.Until))
	c.add("previous_used_at", (*moment)(&k.Previous.UsedAt))
	c.add("created_by", &k.CreatedBy)
})

var (
	renameKey = keyTable.update("tenant = $tenant AND id = $id", "name")
	// rotateKey binds an extra argument: the Key's previous hash.
	rotateKey = keyTable.update("tenant = $tenant AND id = $id AND hash = ?",
		"hash", "hint", "used_at", "previous_hash", "previous_hint", "previous_until", "previous_used_at", "created_by")
)

var idempotencyTable = newTable("onces", func(o *sandbox.IdempotencyRecord, c *columns) {
	c.add("tenant", (*string)(&o.Tenant))
	c.add("key", &o.Key)
	c.add("request", (*hash)(&o.Request))
	c.add("resource", &o.Resource)
	c.add("began_at", (*moment)(&o.At))
	c.add("holder", &o.Holder)
	c.add("status", &o.Status)
	c.add("answer", (*blob)(&o.Answer))
})

// The statements about a Once whose Holder still runs it.
const (
	thatRecord = "tenant = $tenant AND key = $key"
	openRecord = thatRecord + " AND holder = $holder AND status = 0"
)

var (
	insertIdempotent  = idempotencyTable.replacing("tenant", "key")
	takeIdempotent    = idempotencyTable.update(thatRecord, "holder")
	finishIdempotent  = idempotencyTable.update(thatRecord+" AND holder = $holder", "status", "answer")
	dropIdempotent    = idempotencyTable.command("DELETE FROM onces WHERE " + openRecord)
	releaseIdempotent = idempotencyTable.command("UPDATE onces SET holder = '' WHERE " + openRecord)
)

// keyStatements are the writer's prepared statements for keys and onces.
type keyStatements struct {
	insertKey, countKeys, deleteKey, renameKey, rotateKey, hasKey, forgetKeys                          *sql.Stmt
	usedKey, usedPrevious                                                                              *sql.Stmt
	once, insertIdempotent, takeIdempotent, finishIdempotent, dropIdempotent, releaseIdempotent, prune *sql.Stmt
}

func (s *keyStatements) all() []prepared {
	return []prepared{
		{&s.insertKey, keyTable.insert.text},
		{&s.forgetKeys, `DELETE FROM keys WHERE tenant = ? AND expires_at <> 0 AND expires_at < ?`},
		{&s.countKeys, `SELECT count(*) FROM keys WHERE tenant = ?`},
		{&s.hasKey, `SELECT count(*) > 0 FROM keys WHERE tenant = ? AND id = ?`},
		{&s.deleteKey, `DELETE FROM keys WHERE tenant = ? AND id = ?`},
		{&s.renameKey, renameKey.text},
		{&s.rotateKey, rotateKey.text},
		{&s.usedKey, `UPDATE keys SET used_at = ?1 WHERE hash = ?2 AND used_at < ?1`},
		{&s.usedPrevious, `UPDATE keys SET previous_used_at = ?1 WHERE previous_hash = ?2 AND previous_used_at < ?1`},
		{&s.once, idempotencyTable.record + `WHERE tenant = ? AND key = ?`},
		{&s.insertIdempotent, insertIdempotent.text},
		{&s.takeIdempotent, takeIdempotent.text},
		{&s.finishIdempotent, finishIdempotent.text},
		{&s.dropIdempotent, dropIdempotent.text},
		{&s.releaseIdempotent, releaseIdempotent.text},
		{&s.prune, `DELETE FROM onces WHERE began_at < ?`},
	}
}

// keyQueries are the prepared statements of reading connections.
type keyQueries struct{ keys *sql.Stmt }

func (q *keyQueries) all() []prepared {
	return []prepared{
		{&q.keys, keyTable.record + `WHERE tenant = ? ORDER BY created_at DESC, id DESC LIMIT ?`},
	}
}

// InsertKey implements sandbox.KeyStore.
func (s *Store) InsertKey(ctx context.Context, k sandbox.Key) error {
	args, err := keyTable.insert.args(&k)
	if err != nil {
		return err
	}
	return s.writer.write(ctx, func(st *statements) error {
		if _, err := st.forgetKeys.Exec(string(k.Tenant), micros(k.CreatedAt.Add(-sandbox.KeyMemory))); err != nil {
			return err
		}
		var have int
		if err := st.countKeys.QueryRow(string(k.Tenant)).Scan(&have); err != nil {
			return err
		}
		if have >= sandbox.MaxKeys {
			return sandbox.Errorf(sandbox.Exhausted, "the tenant has %d keys already: revoke one first", have)
		}
		_, err := st.insertKey.Exec(args...)
		if violated(err) != violatedNone {
			return sandbox.Errorf(sandbox.Conflict, "a key with this ID exists already").WithCause(err)
		}
		return err
	})
}

// KeyByHash implements sandbox.KeyStore.
func (s *Store) KeyByHash(ctx context.Context, hash sandbox.KeyHash) (sandbox.Key, error) {
	var k sandbox.Key
	err := s.brief.do(ctx, func(ctx context.Context, q *briefQueries) (err error) {
		k, err = keyTable.scan(q.keyByHash.QueryRowContext(ctx, hash[:]).Scan)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return k, errNoKey()
	}
	return k, classify(err)
}

// Keys implements sandbox.KeyStore.
func (s *Store) Keys(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Key, error) {
	return collect(keyTable.scan)(s.query.keys.QueryContext(ctx, string(tenant), sandbox.MaxKeys))
}

// RenameKey implements sandbox.KeyStore.
func (s *Store) RenameKey(ctx context.Context, tenant sandbox.TenantID, id, name string) error {
	k := sandbox.Key{ID: id, Tenant: tenant, Name: name}
	return s.writer.write(ctx, func(st *statements) error {
		result, err := renameKey.exec(st.renameKey, &k)
		return changed(result, err, errNoKey)
	})
}

// RotateKey implements sandbox.KeyStore.
func (s *Store) RotateKey(ctx context.Context, k sandbox.Key, had sandbox.KeyHash) error {
	args, err := rotateKey.args(&k)
	if err != nil {
		return err
	}
	return s.writer.write(ctx, func(st *statements) error {
		result, err := st.rotateKey.Exec(append(args, had[:])...)
		return changed(result, err, func() error {
			var there bool
			if err := st.hasKey.QueryRow(string(k.Tenant), k.ID).Scan(&there); err != nil {
				return err
			}
			if there {
				return sandbox.Errorf(sandbox.Conflict, "the key was rotated meanwhile")
			}
			return errNoKey()
		})
	})
}

func errNoKey() error { return sandbox.Errorf(sandbox.NotFound, "no such key") }

// DeleteKey implements sandbox.KeyStore.
func (s *Store) DeleteKey(ctx context.Context, tenant sandbox.TenantID, id string) error {
	return s.writer.write(ctx, func(st *statements) error {
		result, err := st.deleteKey.Exec(string(tenant), id)
		return changed(result, err, errNoKey)
	})
}

// UsedKeys implements sandbox.KeyStore.
func (s *Store) UsedKeys(ctx context.Context, used map[sandbox.KeyHash]time.Time) error {
	return s.writer.write(ctx, func(st *statements) error {
		for hash, at := range used {
			for _, stmt := range []*sql.Stmt{st.usedKey, st.usedPrevious} {
				if _, err := stmt.Exec(micros(at), hash[:]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// BeginIdempotent implements sandbox.IdempotencyStore.
func (s *Store) BeginIdempotent(ctx context.Context, o sandbox.IdempotencyRecord, expired time.Time) (there sandbox.IdempotencyRecord, began bool, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		var scanErr error
		there, scanErr = idempotencyTable.scan(st.once.QueryRow(string(o.Tenant), o.Key).Scan)
		switch {
		case errors.Is(scanErr, sql.ErrNoRows), scanErr == nil && !there.At.After(expired):
			there, began = o, true
			begun := o
			begun.Status, begun.Answer = 0, nil
			_, err := insertIdempotent.exec(st.insertIdempotent, &begun)
			return err
		case scanErr != nil:
			return scanErr
		case there.Status == 0 && there.Request == o.Request && there.Holder != o.Holder:
			there.Holder, began = o.Holder, true
			_, err := takeIdempotent.exec(st.takeIdempotent, &o)
			return err
		}
		return nil
	})
	if err != nil {
		return sandbox.IdempotencyRecord{}, false, err
	}
	return there, began, nil
}

// FinishIdempotent implements sandbox.IdempotencyStore.
func (s *Store) FinishIdempotent(ctx context.Context, o sandbox.IdempotencyRecord) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := finishIdempotent.exec(st.finishIdempotent, &o)
		return err
	})
}

// DropIdempotent implements sandbox.IdempotencyStore.
func (s *Store) DropIdempotent(ctx context.Context, o sandbox.IdempotencyRecord) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := dropIdempotent.exec(st.dropIdempotent, &o)
		return err
	})
}

// ReleaseIdempotent implements sandbox.IdempotencyStore.
func (s *Store) ReleaseIdempotent(ctx context.Context, o sandbox.IdempotencyRecord) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := releaseIdempotent.exec(st.releaseIdempotent, &o)
		return err
	})
}

// DeleteIdempotent implements sandbox.IdempotencyStore.
func (s *Store) DeleteIdempotent(ctx context.Context, before time.Time) (int, error) {
	var n int64
	err := s.writer.write(ctx, func(st *statements) error {
		result, err := st.prune.Exec(micros(before))
		if err != nil {
			return err
		}
		n, err = result.RowsAffected()
		return err
	})
	return int(n), err
}
