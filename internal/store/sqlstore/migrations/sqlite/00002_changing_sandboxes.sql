-- +goose Up
ALTER TABLE sandboxes ADD COLUMN idle_timeout INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN limit_cpus REAL NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN limit_memory_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN limit_pids INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN user TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN cwd TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN ended_output TEXT NOT NULL DEFAULT '';
-- A Sandbox from before has all of its Shape.
UPDATE sandboxes SET limit_cpus = cpus, limit_memory_bytes = memory_bytes, limit_pids = pids;

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN ended_output;
ALTER TABLE sandboxes DROP COLUMN revision;
ALTER TABLE sandboxes DROP COLUMN cwd;
ALTER TABLE sandboxes DROP COLUMN user;
ALTER TABLE sandboxes DROP COLUMN limit_pids;
ALTER TABLE sandboxes DROP COLUMN limit_memory_bytes;
ALTER TABLE sandboxes DROP COLUMN limit_cpus;
ALTER TABLE sandboxes DROP COLUMN idle_timeout;
