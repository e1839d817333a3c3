-- +goose Up
-- Bytes that connections of Sandboxes carried to the outside, and back.
ALTER TABLE usage_days ADD COLUMN sent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage_days ADD COLUMN received INTEGER NOT NULL DEFAULT 0;

-- What is in usage_days of each Boot.
CREATE TABLE traffic_boots (
    boot     TEXT    NOT NULL PRIMARY KEY,
    sent     INTEGER NOT NULL,
    received INTEGER NOT NULL,
    seen_at  INTEGER NOT NULL -- microseconds
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE traffic_boots;
ALTER TABLE usage_days DROP COLUMN received;
ALTER TABLE usage_days DROP COLUMN sent;
