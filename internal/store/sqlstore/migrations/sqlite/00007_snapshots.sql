-- +goose Up
ALTER TABLE sandboxes ADD COLUMN snapshot TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN stay_paused INTEGER NOT NULL DEFAULT 0;

CREATE TABLE snapshots (
    id           TEXT    NOT NULL PRIMARY KEY,
    tenant       TEXT    NOT NULL,
    sandbox_id   TEXT    NOT NULL,
    parent       TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    kept         INTEGER NOT NULL,
    state        TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    node         TEXT    NOT NULL,
    bytes        INTEGER NOT NULL,
    memory       INTEGER NOT NULL,
    build        TEXT    NOT NULL,
    digest       TEXT    NOT NULL,
    template     TEXT    NOT NULL,
    image        TEXT    NOT NULL,
    cpus         REAL    NOT NULL,
    memory_bytes INTEGER NOT NULL,
    disk_bytes   INTEGER NOT NULL,
    pids         INTEGER NOT NULL,
    limit_cpus   REAL    NOT NULL,
    limit_memory_bytes INTEGER NOT NULL,
    limit_pids   INTEGER NOT NULL,
    network      TEXT    NOT NULL,
    env          TEXT    NOT NULL, -- JSON object of strings
    user         TEXT    NOT NULL,
    cwd          TEXT    NOT NULL,
    timeline     INTEGER NOT NULL,
    version      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX snapshots_name ON snapshots (sandbox_id, name) WHERE name <> '';
CREATE INDEX snapshots_tenant ON snapshots (tenant, created_at DESC, id DESC);
CREATE INDEX snapshots_sandbox ON snapshots (sandbox_id, created_at DESC, id DESC);
CREATE INDEX snapshots_parent ON snapshots (parent) WHERE parent <> '';
CREATE INDEX snapshots_loose ON snapshots (state) WHERE state <> 'ready' OR kept = 0;
-- Who refers to a Snapshot.
CREATE INDEX sandboxes_snapshot ON sandboxes (snapshot, state)
    WHERE snapshot <> '' AND state NOT IN ('stopping', 'ended');

-- +goose Down
DROP INDEX sandboxes_snapshot;
DROP TABLE snapshots;
ALTER TABLE sandboxes DROP COLUMN stay_paused;
ALTER TABLE sandboxes DROP COLUMN snapshot;
