-- +goose Up
ALTER TABLE sandboxes ADD COLUMN ingress TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN ingress;
