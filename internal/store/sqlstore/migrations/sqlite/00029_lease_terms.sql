-- +goose Up
-- Who has the lease of a node's name, and how often it was taken.
ALTER TABLE nodes ADD COLUMN holder TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE nodes DROP COLUMN epoch;
ALTER TABLE nodes DROP COLUMN holder;
