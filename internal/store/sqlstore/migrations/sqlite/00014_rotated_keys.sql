-- +goose Up
-- The secret that a key had before it was rotated, and until when it is valid.
ALTER TABLE keys ADD COLUMN previous_hash BLOB; -- NULL: it never was
ALTER TABLE keys ADD COLUMN previous_hint TEXT NOT NULL DEFAULT '';
ALTER TABLE keys ADD COLUMN previous_until INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN previous_used_at INTEGER NOT NULL DEFAULT 0;

CREATE UNIQUE INDEX keys_previous_hash ON keys (previous_hash);

-- +goose Down
DROP INDEX keys_previous_hash;
ALTER TABLE keys DROP COLUMN previous_used_at;
ALTER TABLE keys DROP COLUMN previous_until;
ALTER TABLE keys DROP COLUMN previous_hint;
ALTER TABLE keys DROP COLUMN previous_hash;
