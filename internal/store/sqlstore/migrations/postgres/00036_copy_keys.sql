-- +goose Up
-- The sealed key of each tenant's copies of snapshots, by the prefix of their blobs.
CREATE TABLE copy_keys (
	prefix     TEXT COLLATE "C" PRIMARY KEY,
	sealed     BYTEA NOT NULL,
	created_at BIGINT NOT NULL
);

-- +goose Down
DROP TABLE copy_keys;
