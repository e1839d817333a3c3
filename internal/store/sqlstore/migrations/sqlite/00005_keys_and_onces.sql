-- +goose Up
CREATE TABLE keys (
    id         TEXT    NOT NULL PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    role       TEXT    NOT NULL,
    scopes     TEXT    NOT NULL, -- JSON array of strings
    hash       BLOB    NOT NULL, -- SHA-256 of the secret
    hint       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX keys_hash ON keys (hash);
CREATE INDEX keys_tenant ON keys (tenant, created_at DESC, id DESC);

-- Requests that take effect once, by the client's Idempotency-Key.
CREATE TABLE onces (
    tenant   TEXT    NOT NULL,
    key      TEXT    NOT NULL,
    request  BLOB    NOT NULL, -- SHA-256 of what was asked
    resource TEXT    NOT NULL,
    began_at INTEGER NOT NULL,
    holder   TEXT    NOT NULL,
    status   INTEGER NOT NULL, -- of the answer; 0 while it is under way
    answer   BLOB    NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX onces_began ON onces (began_at);

-- +goose Down
DROP TABLE onces;
DROP TABLE keys;
