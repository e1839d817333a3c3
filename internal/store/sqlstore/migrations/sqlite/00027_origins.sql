-- +goose Up
ALTER TABLE sandboxes ADD COLUMN origin TEXT NOT NULL DEFAULT ''; -- the snapshot that it was created from; '' for none, or before

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN origin;
