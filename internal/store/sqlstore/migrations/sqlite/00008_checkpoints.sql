-- +goose Up
ALTER TABLE sandboxes ADD COLUMN snapshot_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN checkpoint_every INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN restored_from TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN restored_lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN restored_times INTEGER NOT NULL DEFAULT 0;
-- Of those from before nobody knows when they were last saved.
UPDATE sandboxes SET snapshot_at = started_at WHERE snapshot <> '';

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN restored_times;
ALTER TABLE sandboxes DROP COLUMN restored_lost;
ALTER TABLE sandboxes DROP COLUMN restored_from;
ALTER TABLE sandboxes DROP COLUMN checkpoint_every;
ALTER TABLE sandboxes DROP COLUMN snapshot_at;
