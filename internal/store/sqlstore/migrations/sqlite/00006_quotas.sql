-- +goose Up
-- Quotas of tenants that have one of their own.
CREATE TABLE quotas (
    tenant TEXT NOT NULL PRIMARY KEY,
    quota  TEXT NOT NULL -- JSON
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE quotas;
