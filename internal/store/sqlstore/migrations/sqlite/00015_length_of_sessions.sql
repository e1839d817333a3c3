-- +goose Up
ALTER TABLE sandboxes ADD COLUMN runs_until INTEGER NOT NULL DEFAULT 0; -- the latest deadline while it runs; 0: any

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN runs_until;
