-- +goose Up
-- Times are microseconds since 1970 in UTC, 0 for none; durations microseconds.
CREATE TABLE sandboxes (
    id           TEXT    NOT NULL PRIMARY KEY,
    tenant       TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    template     TEXT    NOT NULL,
    image        TEXT    NOT NULL,
    engine       TEXT    NOT NULL,
    cpus         REAL    NOT NULL,
    memory_bytes INTEGER NOT NULL,
    disk_bytes   INTEGER NOT NULL,
    pids         INTEGER NOT NULL,
    network      TEXT    NOT NULL,
    metadata     TEXT    NOT NULL, -- JSON object of strings
    env          TEXT    NOT NULL, -- JSON object of strings
    boot_id      TEXT    NOT NULL,
    boot_number  INTEGER NOT NULL,
    boot_node    TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    timeout      INTEGER NOT NULL,
    deadline     INTEGER NOT NULL,
    on_timeout   TEXT    NOT NULL,
    timeline     INTEGER NOT NULL,
    ended_cause  TEXT    NOT NULL,
    ended_at     INTEGER NOT NULL,
    version      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A name is taken until the Sandbox that has it has ended.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (tenant, name)
    WHERE name <> '' AND state <> 'ended';
-- Lists go through one Tenant's records, newest first.
CREATE INDEX sandboxes_tenant ON sandboxes (tenant, created_at DESC, id DESC);
-- Most lists and all counts leave out the ended ones, which are soon many more.
CREATE INDEX sandboxes_tenant_open ON sandboxes (tenant, created_at DESC, id DESC, state)
    WHERE state <> 'ended';
CREATE INDEX sandboxes_deadline ON sandboxes (deadline)
    WHERE state NOT IN ('stopping', 'ended');
CREATE INDEX sandboxes_ended ON sandboxes (ended_at)
    WHERE state = 'ended';

CREATE TABLE nodes (
    name        TEXT    NOT NULL PRIMARY KEY,
    engine      TEXT    NOT NULL,
    lease_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE nodes;
DROP TABLE sandboxes;
