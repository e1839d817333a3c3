-- +goose Up
-- Sandboxes leave a node that drains. An earlier program renews a lease without this
-- column, and it stays as it is.
ALTER TABLE nodes ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE nodes DROP COLUMN draining;
