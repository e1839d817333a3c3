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

const keyColumns = `id, tenant, name, role, scopes, hash, hint, created_at, expires_at, used_at,
	previous_hash, previous_hint, previous_until, previous_used_at, created_by`

// keyStatements are what the writer has prepared for keys and onces.
type keyStatements struct {
	insertKey, countKeys, deleteKey, renameKey, rotateKey, hasKey, forgetKeys *sql.Stmt
	usedKey, usedPrevious                                                     *sql.Stmt
	once, insertOnce, takeOnce, finishOnce, dropOnce, letGoOnce, prune        *sql.Stmt
}

func (s *keyStatements) all() []prepared {
	return []prepared{
		{&s.insertKey, `INSERT INTO keys (` + keyColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&s.forgetKeys, `DELETE FROM keys WHERE tenant = ? AND expires_at <> 0 AND expires_at < ?`},
		{&s.countKeys, `SELECT count(*) FROM keys WHERE tenant = ?`},
		{&s.hasKey, `SELECT count(*) > 0 FROM keys WHERE tenant = ? AND id = ?`},
		{&s.deleteKey, `DELETE FROM keys WHERE tenant = ? AND id = ?`},
		{&s.renameKey, `UPDATE keys SET name = ? WHERE tenant = ? AND id = ?`},
		{&s.rotateKey, `UPDATE keys SET hash = ?, hint = ?, used_at = ?, previous_hash = ?, previous_hint = ?, previous_until = ?, previous_used_at = ?, created_by = ?
			WHERE tenant = ? AND id = ? AND hash = ?`},
		{&s.usedKey, `UPDATE keys SET used_at = max(used_at, ?) WHERE hash = ?`},
		{&s.usedPrevious, `UPDATE keys SET previous_used_at = max(previous_used_at, ?) WHERE previous_hash = ?`},
		{&s.once, `SELECT tenant, key, request, resource, began_at, holder, status, answer FROM onces WHERE tenant = ? AND key = ?`},
		{&s.insertOnce, `INSERT OR REPLACE INTO onces (tenant, key, request, resource, began_at, holder, status, answer)
			VALUES (?, ?, ?, ?, ?, ?, 0, x'')`},
		{&s.takeOnce, `UPDATE onces SET holder = ? WHERE tenant = ? AND key = ?`},
		{&s.finishOnce, `UPDATE onces SET status = ?, answer = ? WHERE tenant = ? AND key = ? AND holder = ?`},
		{&s.dropOnce, `DELETE FROM onces WHERE tenant = ? AND key = ? AND holder = ? AND status = 0`},
		{&s.letGoOnce, `UPDATE onces SET holder = '' WHERE tenant = ? AND key = ? AND holder = ? AND status = 0`},
		{&s.prune, `DELETE FROM onces WHERE began_at < ?`},
	}
}

// keyQueries are what the reading connections have prepared.
type keyQueries struct{ keys *sql.Stmt }

func (q *keyQueries) all() []prepared {
	return []prepared{
		{&q.keys, `SELECT ` + keyColumns + ` FROM keys WHERE tenant = ? ORDER BY created_at DESC, id DESC LIMIT ?`},
	}
}

// InsertKey implements sandbox.KeyStore.
func (s *Store) InsertKey(ctx context.Context, k sandbox.Key) error {
	scopes, err := json.Marshal(k.Scopes)
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
			return sandbox.Errorf(sandbox.Exhausted, "there are %d keys already: revoke one first", have)
		}
		_, err := st.insertKey.Exec(k.ID, string(k.Tenant), k.Name, string(k.Role), string(scopes), k.Hash[:], k.Hint,
			micros(k.CreatedAt), micros(k.ExpiresAt), micros(k.UsedAt),
			previousHash(k.Previous), k.Previous.Hint, micros(k.Previous.Until), micros(k.Previous.UsedAt), k.CreatedBy)
		if primaryCode(err) == sqlite3.SQLITE_CONSTRAINT {
			return sandbox.Errorf(sandbox.Conflict, "there is a key with this ID").WithCause(err)
		}
		return err
	})
}

// KeyByHash implements sandbox.KeyStore.
func (s *Store) KeyByHash(ctx context.Context, hash sandbox.KeyHash) (sandbox.Key, error) {
	var k sandbox.Key
	err := s.brief.do(ctx, func(ctx context.Context, q *briefQueries) (err error) {
		k, err = scanKey(q.keyByHash.QueryRowContext(ctx, hash[:]).Scan)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return k, errNoKey()
	}
	return k, classify(err)
}

// Keys implements sandbox.KeyStore.
func (s *Store) Keys(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Key, error) {
	return collect(scanKey)(s.query.keys.QueryContext(ctx, string(tenant), sandbox.MaxKeys))
}

func scanKey(scan func(...any) error) (sandbox.Key, error) {
	var k sandbox.Key
	var scopes string
	var hash, previous []byte
	var created, expires, used, until, previousUsed int64
	err := scan(&k.ID, (*string)(&k.Tenant), &k.Name, (*string)(&k.Role), &scopes, &hash, &k.Hint, &created, &expires, &used,
		&previous, &k.Previous.Hint, &until, &previousUsed, &k.CreatedBy)
	if err != nil {
		return k, err
	}
	if copy(k.Hash[:], hash) != len(k.Hash) || previous != nil && copy(k.Previous.Hash[:], previous) != len(k.Previous.Hash) {
		return k, fmt.Errorf("the hash of the key %s is damaged", k.ID)
	}
	k.CreatedAt, k.ExpiresAt, k.UsedAt = fromMicros(created), fromMicros(expires), fromMicros(used)
	k.Previous.Until, k.Previous.UsedAt = fromMicros(until), fromMicros(previousUsed)
	k.Scopes = []sandbox.Scope{} // never nil, which would mean all
	return k, json.Unmarshal([]byte(scopes), &k.Scopes)
}

// previousHash is the hash as its column has it: NULL for none, of which there
// may be many.
func previousHash(p sandbox.PreviousSecret) []byte {
	if p == (sandbox.PreviousSecret{}) {
		return nil
	}
	return p.Hash[:]
}

// RenameKey implements sandbox.KeyStore.
func (s *Store) RenameKey(ctx context.Context, tenant sandbox.TenantID, id, name string) error {
	return s.writer.write(ctx, func(st *statements) error { return oneKey(st.renameKey.Exec(name, string(tenant), id)) })
}

// oneKey is the error of a statement that should have met a Key.
func oneKey(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return errNoKey()
}

// RotateKey implements sandbox.KeyStore.
func (s *Store) RotateKey(ctx context.Context, k sandbox.Key, had sandbox.KeyHash) error {
	return s.writer.write(ctx, func(st *statements) error {
		result, err := st.rotateKey.Exec(k.Hash[:], k.Hint, micros(k.UsedAt), previousHash(k.Previous), k.Previous.Hint,
			micros(k.Previous.Until), micros(k.Previous.UsedAt), k.CreatedBy, string(k.Tenant), k.ID, had[:])
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n > 0 {
			return err
		}
		var there bool
		if err := st.hasKey.QueryRow(string(k.Tenant), k.ID).Scan(&there); err != nil {
			return err
		}
		if there {
			return sandbox.Errorf(sandbox.Conflict, "the key was rotated meanwhile")
		}
		return errNoKey()
	})
}

func errNoKey() error { return sandbox.Errorf(sandbox.NotFound, "there is no such key") }

// DeleteKey implements sandbox.KeyStore.
func (s *Store) DeleteKey(ctx context.Context, tenant sandbox.TenantID, id string) error {
	return s.writer.write(ctx, func(st *statements) error { return oneKey(st.deleteKey.Exec(string(tenant), id)) })
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

// BeginOnce implements sandbox.OnceStore.
func (s *Store) BeginOnce(ctx context.Context, o sandbox.Once, expired time.Time) (there sandbox.Once, began bool, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		var scanErr error
		there, scanErr = scanOnce(st.once.QueryRow(string(o.Tenant), o.Key).Scan)
		switch {
		case errors.Is(scanErr, sql.ErrNoRows), scanErr == nil && !there.At.After(expired):
			there, began = o, true
			_, err := st.insertOnce.Exec(string(o.Tenant), o.Key, o.Request[:], o.Resource, micros(o.At), o.Holder)
			return err
		case scanErr != nil:
			return scanErr
		case there.Status == 0 && there.Request == o.Request && there.Holder != o.Holder:
			there.Holder, began = o.Holder, true
			_, err := st.takeOnce.Exec(o.Holder, string(o.Tenant), o.Key)
			return err
		}
		return nil
	})
	if err != nil {
		return sandbox.Once{}, false, err
	}
	return there, began, nil
}

func scanOnce(scan func(...any) error) (sandbox.Once, error) {
	var o sandbox.Once
	var request []byte
	var began int64
	err := scan((*string)(&o.Tenant), &o.Key, &request, &o.Resource, &began, &o.Holder, &o.Status, &o.Answer)
	if err == nil && copy(o.Request[:], request) != len(o.Request) {
		err = errors.New("the hash of a request is damaged")
	}
	o.At = fromMicros(began)
	return o, err
}

// FinishOnce implements sandbox.OnceStore.
func (s *Store) FinishOnce(ctx context.Context, o sandbox.Once) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.finishOnce.Exec(o.Status, append([]byte{}, o.Answer...), string(o.Tenant), o.Key, o.Holder)
		return err
	})
}

// DropOnce implements sandbox.OnceStore.
func (s *Store) DropOnce(ctx context.Context, o sandbox.Once) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.dropOnce.Exec(string(o.Tenant), o.Key, o.Holder)
		return err
	})
}

// LetGoOnce implements sandbox.OnceStore.
func (s *Store) LetGoOnce(ctx context.Context, o sandbox.Once) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := st.letGoOnce.Exec(string(o.Tenant), o.Key, o.Holder)
		return err
	})
}

// DeleteOnces implements sandbox.OnceStore.
func (s *Store) DeleteOnces(ctx context.Context, before time.Time) (int, error) {
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
