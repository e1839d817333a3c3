-- +goose Up
ALTER TABLE users ADD COLUMN decided_by TEXT NOT NULL DEFAULT ''; -- the highest role of who gave or suspended; '' for nobody, or before

-- +goose Down
ALTER TABLE users DROP COLUMN decided_by;
