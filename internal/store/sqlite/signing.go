package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const signingColumns = `tenant, id, secret, created_at`

// signingStatements are what the writer has prepared for signing keys.
type signingStatements struct {
	insertSigningKey, replaceSigningKey, writtenSigningKey *sql.Stmt
}

func (s *signingStatements) all() []prepared {
	return []prepared{
		{&s.insertSigningKey, `INSERT INTO signing_keys (` + signingColumns + `) VALUES (?, ?, ?, ?) ON CONFLICT (tenant) DO NOTHING`},
		{&s.replaceSigningKey, `INSERT INTO signing_keys (` + signingColumns + `) VALUES (?, ?, ?, ?)
			ON CONFLICT (tenant) DO UPDATE SET id = excluded.id, secret = excluded.secret, created_at = excluded.created_at`},
		{&s.writtenSigningKey, `SELECT ` + signingColumns + ` FROM signing_keys WHERE tenant = ?`},
	}
}

// signingQueries are what the reading connections have prepared for them.
type signingQueries struct{ signingKey, signingKeyByID *sql.Stmt }

func (q *signingQueries) all() []prepared {
	return []prepared{
		{&q.signingKey, `SELECT ` + signingColumns + ` FROM signing_keys WHERE tenant = ?`},
		{&q.signingKeyByID, `SELECT ` + signingColumns + ` FROM signing_keys WHERE id = ?`},
	}
}

// EnsureSigningKey implements sandbox.SigningKeyStore.
func (s *Store) EnsureSigningKey(ctx context.Context, k sandbox.SigningKey) (sandbox.SigningKey, error) {
	known, err := scanSigningKey(s.query.signingKey.QueryRowContext(ctx, k.Tenant))
	if !errors.Is(err, sandbox.NotFound) {
		return known, err
	}
	var written sandbox.SigningKey
	err = s.writer.write(ctx, func(st *statements) (err error) {
		if _, err := st.insertSigningKey.Exec(k.Tenant, k.ID, k.Secret, micros(k.CreatedAt)); err != nil {
			return err
		}
		written, err = scanSigningKey(st.writtenSigningKey.QueryRow(k.Tenant))
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
		_, err := st.replaceSigningKey.Exec(k.Tenant, k.ID, k.Secret, micros(k.CreatedAt))
		return err
	})
}

// SigningKeyByID implements sandbox.SigningKeyStore.
func (s *Store) SigningKeyByID(ctx context.Context, id string) (sandbox.SigningKey, error) {
	return scanSigningKey(s.query.signingKeyByID.QueryRowContext(ctx, id))
}

func scanSigningKey(row *sql.Row) (sandbox.SigningKey, error) {
	var k sandbox.SigningKey
	var created int64
	err := row.Scan(&k.Tenant, &k.ID, &k.Secret, &created)
	if errors.Is(err, sql.ErrNoRows) {
		return k, sandbox.Errorf(sandbox.NotFound, "there is no such signing key")
	}
	k.CreatedAt = fromMicros(created)
	return k, classify(err)
}
