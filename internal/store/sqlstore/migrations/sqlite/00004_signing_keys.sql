-- +goose Up
-- What signs URLs of files: one key a Tenant, gone when it is replaced.
CREATE TABLE signing_keys (
    tenant     TEXT    NOT NULL PRIMARY KEY,
    id         TEXT    NOT NULL UNIQUE,
    secret     BLOB    NOT NULL,
    created_at INTEGER NOT NULL -- microseconds since 1970 in UTC
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE signing_keys;
