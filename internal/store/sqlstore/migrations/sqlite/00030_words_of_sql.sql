-- +goose Up
-- "user" is a word of SQL.
ALTER TABLE sandboxes RENAME COLUMN user TO user_name;
ALTER TABLE snapshots RENAME COLUMN user TO user_name;
ALTER TABLE audit RENAME COLUMN user TO user_id;
-- Both databases read the condition of an index, and of its queries, alike.
DROP INDEX snapshots_loose;
CREATE INDEX snapshots_loose ON snapshots (state) WHERE state <> 'ready' OR NOT kept;

-- +goose Down
DROP INDEX snapshots_loose;
CREATE INDEX snapshots_loose ON snapshots (state) WHERE state <> 'ready' OR kept = 0;
ALTER TABLE audit RENAME COLUMN user_id TO user;
ALTER TABLE snapshots RENAME COLUMN user_name TO user;
ALTER TABLE sandboxes RENAME COLUMN user_name TO user;
