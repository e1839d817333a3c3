-- +goose Up
-- Bytes a second; 0: any.
ALTER TABLE sandboxes ADD COLUMN limit_bandwidth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE snapshots ADD COLUMN limit_bandwidth INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE snapshots DROP COLUMN limit_bandwidth;
ALTER TABLE sandboxes DROP COLUMN limit_bandwidth;
