-- +goose Up
-- The CPU features that a start from the snapshot needs. An earlier program records none,
-- and does not change them.
ALTER TABLE snapshots ADD COLUMN cpu TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE snapshots DROP COLUMN cpu;
