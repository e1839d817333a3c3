package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const secretColumns = `id, tenant, name, description, key_id, sealed_key, value, created_at, updated_at, version, metadata, value_version, hosts`

// secretStatements are what the writer has prepared for secrets.
type secretStatements struct{ insertSecret, countSecrets, updateSecret, secretExists, deleteSecret *sql.Stmt }

func (s *secretStatements) all() []prepared {
	return []prepared{
		{&s.insertSecret, `INSERT INTO secrets (` + secretColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&s.countSecrets, `SELECT count(*) FROM secrets WHERE tenant = ?`},
		{&s.updateSecret, `UPDATE secrets SET description = ?, metadata = ?, hosts = ?, value_version = ?, key_id = ?, sealed_key = ?, value = ?, updated_at = ?, version = version + 1
			WHERE id = ? AND tenant = ? AND version = ?`},
		{&s.secretExists, `SELECT 1 FROM secrets WHERE id = ? AND tenant = ?`},
		{&s.deleteSecret, `DELETE FROM secrets WHERE tenant = ? AND name = ?`},
	}
}

// secretQueries are what the reading connections have prepared.
type secretQueries struct{ secretByName, secrets, secretsNotUnder *sql.Stmt }

func (q *secretQueries) all() []prepared {
	const record = `SELECT ` + secretColumns + ` FROM secrets `
	return []prepared{
		{&q.secretByName, record + `WHERE tenant = ? AND name = ?`},
		{&q.secrets, record + `WHERE tenant = ? ORDER BY name LIMIT ?`},
		{&q.secretsNotUnder, record + `WHERE key_id <> ? ORDER BY id LIMIT ?`},
	}
}

func noSecret() error { return sandbox.Errorf(sandbox.NotFound, "there is no such secret") }

// secretTexts are the columns that are JSON.
func secretTexts(c sandbox.Secret) (metadata, hosts string, err error) {
	m, err := json.Marshal(c.Metadata)
	if err != nil {
		return "", "", err
	}
	h, err := json.Marshal(c.Hosts)
	return string(m), string(h), err
}

// InsertSecret implements sandbox.SecretStore.
func (s *Store) InsertSecret(ctx context.Context, c sandbox.Secret) (sandbox.Secret, error) {
	c.Version = 1
	metadata, hosts, err := secretTexts(c)
	if err != nil {
		return sandbox.Secret{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		var have int
		if err := st.countSecrets.QueryRow(string(c.Tenant)).Scan(&have); err != nil {
			return err
		}
		_, err := st.insertSecret.Exec(c.ID, string(c.Tenant), c.Name, c.Description, c.Sealed.KeyID, c.Sealed.Key, c.Sealed.Value,
			micros(c.CreatedAt), micros(c.UpdatedAt), c.Version, metadata, c.ValueVersion, hosts)
		switch {
		case primaryCode(err) == sqlite3.SQLITE_CONSTRAINT:
			return sandbox.Errorf(sandbox.Conflict, "there is a secret with this name").WithCause(err)
		case err == nil && have >= sandbox.MaxSecrets:
			return sandbox.Errorf(sandbox.Exhausted, "there are %d secrets already: delete one first", have)
		}
		return err
	})
	if err != nil {
		return sandbox.Secret{}, err
	}
	return c, nil
}

// UpdateSecret implements sandbox.SecretStore.
func (s *Store) UpdateSecret(ctx context.Context, c sandbox.Secret) (sandbox.Secret, error) {
	metadata, hosts, err := secretTexts(c)
	if err != nil {
		return sandbox.Secret{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		result, err := st.updateSecret.Exec(c.Description, metadata, hosts, c.ValueVersion, c.Sealed.KeyID, c.Sealed.Key, c.Sealed.Value, micros(c.UpdatedAt),
			c.ID, string(c.Tenant), c.Version)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return err
		}
		there, err := found(st.secretExists, c.ID, string(c.Tenant))
		switch {
		case err != nil:
			return err
		case !there:
			return noSecret()
		}
		return sandbox.Errorf(sandbox.Conflict, "the secret was changed by somebody else meanwhile")
	})
	if err != nil {
		return sandbox.Secret{}, err
	}
	c.Version++
	return c, nil
}

// SecretByName implements sandbox.SecretStore.
func (s *Store) SecretByName(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.Secret, error) {
	c, err := scanSecret(s.query.secretByName.QueryRowContext(ctx, string(tenant), name).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return c, noSecret()
	}
	return c, classify(err)
}

// Secrets implements sandbox.SecretStore.
func (s *Store) Secrets(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Secret, error) {
	return collect(scanSecret)(s.query.secrets.QueryContext(ctx, string(tenant), sandbox.MaxSecrets))
}

// SecretsNotUnder implements sandbox.SecretStore.
func (s *Store) SecretsNotUnder(ctx context.Context, keyID string, limit int) ([]sandbox.Secret, error) {
	return collect(scanSecret)(s.query.secretsNotUnder.QueryContext(ctx, keyID, limit))
}

func scanSecret(scan func(...any) error) (sandbox.Secret, error) {
	var c sandbox.Secret
	var created, updated int64
	var metadata, hosts []byte
	err := scan(&c.ID, (*string)(&c.Tenant), &c.Name, &c.Description, &c.Sealed.KeyID, &c.Sealed.Key, &c.Sealed.Value, &created, &updated, &c.Version,
		&metadata, &c.ValueVersion, &hosts)
	if err == nil {
		err = errors.Join(json.Unmarshal(metadata, &c.Metadata), json.Unmarshal(hosts, &c.Hosts))
	}
	c.CreatedAt, c.UpdatedAt = fromMicros(created), fromMicros(updated)
	return c, err
}

// DeleteSecret implements sandbox.SecretStore.
func (s *Store) DeleteSecret(ctx context.Context, tenant sandbox.TenantID, name string) error {
	return s.writer.write(ctx, func(st *statements) error {
		result, err := st.deleteSecret.Exec(string(tenant), name)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return noSecret()
	})
}
