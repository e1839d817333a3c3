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

// takingOver replaces a record that began at or before ?9, and takes one over that has no
// answer yet from another Holder, for the same request.
const takingOver = `ON CONFLICT (tenant, key) DO UPDATE SET holder = excluded.holder,
	request = CASE WHEN onces.began_at <= ?9 THEN excluded.request ELSE onces.request END,
	resource = CASE WHEN onces.began_at <= ?9 THEN excluded.resource ELSE onces.resource END,
	status = CASE WHEN onces.began_at <= ?9 THEN excluded.status ELSE onces.status END,
	answer = CASE WHEN onces.began_at <= ?9 THEN excluded.answer ELSE onces.answer END,
	began_at = CASE WHEN onces.began_at <= ?9 THEN excluded.began_at ELSE onces.began_at END
	WHERE onces.began_at <= ?9 OR (onces.status = 0 AND onces.request = excluded.request AND onces.holder <> excluded.holder)`

// The statements about a Once whose Holder still runs it.
const (
	thatRecord = "tenant = $tenant AND key = $key"
	openRecord = thatRecord + " AND holder = $holder AND status = 0"
)

var (
	beginIdempotent   = idempotencyTable.inserting(takingOver)
	finishIdempotent  = idempotencyTable.update(thatRecord+" AND holder = $holder", "status", "answer")
	dropIdempotent    = idempotencyTable.command("DELETE FROM onces WHERE " + openRecord)
	releaseIdempotent = idempotencyTable.command("UPDATE onces SET holder = '' WHERE " + openRecord)
)

// keyStatements are the writer's prepared statements for keys and onces.
type keyStatements struct {
	insertKey, countKeys, deleteKey, renameKey, rotateKey, hasKey, forgetKeys         *sql.Stmt
	usedKey, usedPrevious                                                             *sql.Stmt
	once, beginIdempotent, finishIdempotent, dropIdempotent, releaseIdempotent, prune *sql.Stmt
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
		{&s.beginIdempotent, beginIdempotent.text},
		{&s.finishIdempotent, finishIdempotent.text},
		{&s.dropIdempotent, dropIdempotent.text},
		{&s.releaseIdempotent, releaseIdempotent.text},
		{&s.prune, `DELETE FROM onces WHERE (tenant, key) IN (SELECT tenant, key FROM onces WHERE began_at < ? LIMIT ?)`},
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
	o.Status, o.Answer = 0, nil
	args, err := beginIdempotent.args(&o)
	if err != nil {
		return sandbox.IdempotencyRecord{}, false, err
	}
	args = append(args, micros(expired))
	err = s.writer.send(ctx, func(p *pipeline) error {
		p.add(step{stmt: p.st.beginIdempotent, args: args, last: true, count: func(n int64) error {
			began = n > 0
			return nil
		}})
		p.add(step{stmt: p.st.once, args: []any{string(o.Tenant), o.Key}, last: true, row: func(scan scanner) (err error) {
			there, err = idempotencyTable.scan(scan)
			return err
		}})
		return nil
	})
	if err != nil {
		return sandbox.IdempotencyRecord{}, false, err
	}
	return there, began, nil
}

// FinishIdempotent implements sandbox.IdempotencyStore.
func (s *Store) FinishIdempotent(ctx context.Context, o sandbox.IdempotencyRecord, e sandbox.AuditEntry, started ...string) (sandbox.AuditMark, error) {
	return s.appendAudit(ctx, e, started, func(p *pipeline) { finishIdempotent.send(p, p.st.finishIdempotent, &o) })
}

// DropIdempotent implements sandbox.IdempotencyStore.
func (s *Store) DropIdempotent(ctx context.Context, o sandbox.IdempotencyRecord) error {
	return s.writer.send(ctx, func(p *pipeline) error {
		dropIdempotent.send(p, p.st.dropIdempotent, &o)
		return nil
	})
}

// ReleaseIdempotent implements sandbox.IdempotencyStore.
func (s *Store) ReleaseIdempotent(ctx context.Context, o sandbox.IdempotencyRecord) error {
	return s.writer.send(ctx, func(p *pipeline) error {
		releaseIdempotent.send(p, p.st.releaseIdempotent, &o)
		return nil
	})
}

// DeleteIdempotent implements sandbox.IdempotencyStore.
func (s *Store) DeleteIdempotent(ctx context.Context, before time.Time) (int, error) {
	return s.deleteAll(ctx, micros(before), func(st *statements) *sql.Stmt { return st.prune })
}
