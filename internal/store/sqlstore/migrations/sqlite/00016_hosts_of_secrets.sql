-- +goose Up
ALTER TABLE secrets ADD COLUMN hosts TEXT NOT NULL DEFAULT 'null'; -- JSON array of strings; null: any

-- +goose Down
ALTER TABLE secrets DROP COLUMN hosts;
