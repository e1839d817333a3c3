-- +goose Up
CREATE TABLE volumes (
    id         TEXT    PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    node       TEXT    NOT NULL,
    max_bytes  INTEGER NOT NULL,
    created_at INTEGER NOT NULL -- microseconds
) STRICT;

-- A name is free once what had it is being deleted.
CREATE UNIQUE INDEX volumes_of_tenant ON volumes (tenant, name) WHERE state <> 'deleting';
CREATE INDEX volumes_use ON volumes (tenant, max_bytes);
CREATE INDEX volumes_left ON volumes (state) WHERE state <> 'ready';

-- What is mounted where: a list in JSON; empty for none, as most have.
ALTER TABLE sandboxes ADD COLUMN volumes TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN volumes TEXT NOT NULL DEFAULT '';
CREATE INDEX sandboxes_volumes ON sandboxes (tenant) WHERE volumes <> '' AND state <> 'ended';

-- +goose Down
DROP INDEX sandboxes_volumes;
ALTER TABLE snapshots DROP COLUMN volumes;
ALTER TABLE sandboxes DROP COLUMN volumes;
DROP TABLE volumes;
