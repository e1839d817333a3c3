-- +goose Up
ALTER TABLE sandboxes ADD COLUMN secrets TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN secrets;
