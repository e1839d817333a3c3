package sqlstore

import (
	"context"
	"database/sql"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var secretTable = newTable("secrets", func(v *sandbox.Secret, c *columns) {
	c.add("id", &v.ID)
	c.add("tenant", (*string)(&v.Tenant))
	c.add("name", &v.Name)
	c.add("description", &v.Description)
	c.add("key_id", &v.Sealed.KeyID)
	c.add("sealed_key", &v.Sealed.Key)
	c.add("value", &v.Sealed.Value)
	c.add("created_at", (*moment)(&v.CreatedAt))
	c.add("updated_at", (*moment)(&v.UpdatedAt))
	c.add("version", &v.Version)
	c.add("metadata", asJSON(&v.Metadata))
	c.add("value_version", &v.ValueVersion)
	c.add("hosts", asJSON(&v.Hosts))
})

var updateSecret = secretTable.updateBut(thatVersion, "id", "tenant", "name", "created_at")

// secretStatements are the writer's prepared statements for secrets.
type secretStatements struct{ insertSecret, countSecrets, updateSecret, secretExists, deleteSecret *sql.Stmt }

func (s *secretStatements) all() []prepared {
	return []prepared{
		{&s.insertSecret, secretTable.insert.text},
		{&s.countSecrets, `SELECT count(*) FROM secrets WHERE tenant = ?`},
		{&s.updateSecret, updateSecret.text},
		{&s.secretExists, `SELECT 1 FROM secrets WHERE id = ? AND tenant = ?`},
		{&s.deleteSecret, `DELETE FROM secrets WHERE tenant = ? AND name = ?`},
	}
}

// secretQueries are the prepared statements of reading connections.
type secretQueries struct{ secretByName, secrets, secretsNotUnder *sql.Stmt }

func (q *secretQueries) all() []prepared {
	record := secretTable.record
	return []prepared{
		{&q.secretByName, record + `WHERE tenant = ? AND name = ?`},
		{&q.secrets, record + `WHERE tenant = ? ORDER BY name LIMIT ?`},
		{&q.secretsNotUnder, record + `WHERE key_id <> ? ORDER BY id LIMIT ?`},
	}
}

func noSecret() error { return sandbox.Errorf(sandbox.NotFound, "no such secret") }

// InsertSecret implements sandbox.SecretStore.
func (s *Store) InsertSecret(ctx context.Context, c sandbox.Secret) (sandbox.Secret, error) {
	c.Version = 1
	args, err := secretTable.insert.args(&c)
	if err != nil {
		return sandbox.Secret{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		var have int
		if err := st.countSecrets.QueryRow(string(c.Tenant)).Scan(&have); err != nil {
			return err
		}
		_, err := st.insertSecret.Exec(args...)
		switch {
		case violated(err) != violatedNone:
			return sandbox.Errorf(sandbox.Conflict, "a secret with this name exists already").WithCause(err)
		case err == nil && have >= sandbox.MaxSecrets:
			return sandbox.Errorf(sandbox.Exhausted, "the tenant has %d secrets already: delete one first", have)
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
	c.Version++
	args, err := updateSecret.args(&c)
	if err != nil {
		return sandbox.Secret{}, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		result, err := st.updateSecret.Exec(args...)
		return changed(result, err, func() error {
			there, err := found(st.secretExists, c.ID, string(c.Tenant))
			switch {
			case err != nil:
				return err
			case !there:
				return noSecret()
			}
			return sandbox.Errorf(sandbox.Conflict, "the secret was changed by another request: read it again")
		})
	})
	if err != nil {
		return sandbox.Secret{}, err
	}
	return c, nil
}

// SecretByName implements sandbox.SecretStore.
func (s *Store) SecretByName(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.Secret, error) {
	return one(s.query.secretByName.QueryRowContext(ctx, string(tenant), name), secretTable.scan, noSecret)
}

// Secrets implements sandbox.SecretStore.
func (s *Store) Secrets(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Secret, error) {
	return collect(secretTable.scan)(s.query.secrets.QueryContext(ctx, string(tenant), sandbox.MaxSecrets))
}

// SecretsNotUnder implements sandbox.SecretStore.
func (s *Store) SecretsNotUnder(ctx context.Context, keyID string, limit int) ([]sandbox.Secret, error) {
	return collect(secretTable.scan)(s.query.secretsNotUnder.QueryContext(ctx, keyID, limit))
}

// DeleteSecret implements sandbox.SecretStore.
func (s *Store) DeleteSecret(ctx context.Context, tenant sandbox.TenantID, name string) error {
	return s.writer.write(ctx, func(st *statements) error {
		result, err := st.deleteSecret.Exec(string(tenant), name)
		return changed(result, err, noSecret)
	})
}
