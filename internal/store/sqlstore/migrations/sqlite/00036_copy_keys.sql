-- +goose Up
-- The sealed key of each tenant's copies of snapshots, by the prefix of their blobs.
CREATE TABLE copy_keys (
	prefix     TEXT PRIMARY KEY,
	sealed     BLOB NOT NULL,
	created_at INTEGER NOT NULL
);

-- +goose Down
DROP TABLE copy_keys;
