package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var signingTable = newTable("signing_keys", func(k *sandbox.SigningKey, c *columns) {
	c.add("tenant", (*string)(&k.Tenant))
	c.add("id", &k.ID)
	c.add("secret", &k.Secret)
	c.add("created_at", (*moment)(&k.CreatedAt))
})

var (
	insertSigningKey  = signingTable.inserting("ON CONFLICT (tenant) DO NOTHING")
	replaceSigningKey = signingTable.inserting("ON CONFLICT (tenant) DO UPDATE SET id = excluded.id, secret = excluded.secret, created_at = excluded.created_at")
)

// signingStatements are the writer's prepared statements for signing keys.
type signingStatements struct {
	insertSigningKey, replaceSigningKey, writtenSigningKey *sql.Stmt
}

func (s *signingStatements) all() []prepared {
	return []prepared{
		{&s.insertSigningKey, insertSigningKey.text},
		{&s.replaceSigningKey, replaceSigningKey.text},
		{&s.writtenSigningKey, signingTable.record + `WHERE tenant = ?`},
	}
}

// signingQueries are the prepared statements of reading connections.
type signingQueries struct{ signingKey, signingKeyByID *sql.Stmt }

func (q *signingQueries) all() []prepared {
	return []prepared{
		{&q.signingKey, signingTable.record + `WHERE tenant = ?`},
		{&q.signingKeyByID, signingTable.record + `WHERE id = ?`},
	}
}

// EnsureSigningKey implements sandbox.SigningKeyStore.
func (s *Store) EnsureSigningKey(ctx context.Context, k sandbox.SigningKey) (sandbox.SigningKey, error) {
	known, err := oneSigningKey(s.query.signingKey.QueryRowContext(ctx, k.Tenant))
	if !errors.Is(err, sandbox.NotFound) {
		return known, err
	}
	var written sandbox.SigningKey
	err = s.writer.write(ctx, func(st *statements) (err error) {
		if _, err := insertSigningKey.exec(st.insertSigningKey, &k); err != nil {
			return err
		}
		written, err = oneSigningKey(st.writtenSigningKey.QueryRow(k.Tenant))
		return err
	})
	if err != nil {
		return sandbox.SigningKey{}, err
	}
	return written, nil
}

// ReplaceSigningKey implements sandbox.SigningKeyStore.
func (s *Store) ReplaceSigningKey(ctx context.Context, k sandbox.SigningKey) error {
	return s.writer.write(ctx, func(st *statements) error {
		_, err := replaceSigningKey.exec(st.replaceSigningKey, &k)
		return err
	})
}

// SigningKeyByID implements sandbox.SigningKeyStore.
func (s *Store) SigningKeyByID(ctx context.Context, id string) (sandbox.SigningKey, error) {
	return oneSigningKey(s.query.signingKeyByID.QueryRowContext(ctx, id))
}

func oneSigningKey(row *sql.Row) (sandbox.SigningKey, error) {
	return one(row, signingTable.scan, func() error { return sandbox.Errorf(sandbox.NotFound, "no such signing key") })
}
