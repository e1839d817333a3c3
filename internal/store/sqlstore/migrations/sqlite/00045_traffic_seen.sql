-- +goose Up
-- The boots whose traffic is to be forgotten.
CREATE INDEX traffic_boots_seen ON traffic_boots (seen_at);

-- +goose Down
DROP INDEX traffic_boots_seen;
