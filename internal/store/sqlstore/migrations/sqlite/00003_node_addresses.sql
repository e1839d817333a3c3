-- +goose Up
ALTER TABLE nodes ADD COLUMN address TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE nodes DROP COLUMN address;
