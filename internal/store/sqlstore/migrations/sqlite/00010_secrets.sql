-- +goose Up
-- Secrets of tenants: value is sealed with a key of its own, which is sealed, as
-- sealed_key, with the master key called key_id.
CREATE TABLE secrets (
    id          TEXT    PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    description TEXT    NOT NULL,
    key_id      TEXT    NOT NULL,
    sealed_key  BLOB    NOT NULL,
    value       BLOB    NOT NULL,
    created_at  INTEGER NOT NULL, -- microseconds, as updated_at
    updated_at  INTEGER NOT NULL,
    version     INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX secrets_of_tenant ON secrets (tenant, name);

-- +goose Down
DROP TABLE secrets;
