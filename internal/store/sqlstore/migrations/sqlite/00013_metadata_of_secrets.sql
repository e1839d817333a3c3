-- +goose Up
ALTER TABLE secrets ADD COLUMN metadata TEXT NOT NULL DEFAULT 'null';
ALTER TABLE secrets ADD COLUMN value_version INTEGER NOT NULL DEFAULT 1;

-- +goose Down
ALTER TABLE secrets DROP COLUMN value_version;
ALTER TABLE secrets DROP COLUMN metadata;
