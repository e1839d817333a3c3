-- +goose Up
-- The kept snapshots on a node, which leave it when it drains.
CREATE INDEX snapshots_kept_on ON snapshots (node, created_at, id) WHERE kept AND state = 'ready' AND layer = '';

-- +goose Down
DROP INDEX snapshots_kept_on;
