-- +goose Up
-- What builds of templates go on from; empty: it is a snapshot of its owner's.
ALTER TABLE snapshots ADD COLUMN layer TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN used_at INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE snapshots DROP COLUMN used_at;
ALTER TABLE snapshots DROP COLUMN layer;
