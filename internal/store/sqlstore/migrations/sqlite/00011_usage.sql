-- +goose Up
-- What Sandboxes were charged for, by day, in seconds and GiB-seconds.
CREATE TABLE usage_days (
    tenant  TEXT    NOT NULL,
    day     INTEGER NOT NULL, -- since 1970
    sandbox TEXT    NOT NULL,
    seconds REAL    NOT NULL,
    cpu     REAL    NOT NULL,
    memory  REAL    NOT NULL,
    disk    REAL    NOT NULL,
    PRIMARY KEY (tenant, day, sandbox)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_of_day ON usage_days (day);

-- Sandboxes that are charged for now, from when on that is not in usage_days yet.
CREATE TABLE usage_open (
    sandbox      TEXT    NOT NULL PRIMARY KEY,
    tenant       TEXT    NOT NULL,
    since        INTEGER NOT NULL, -- microseconds
    cpus         REAL    NOT NULL,
    memory_bytes INTEGER NOT NULL,
    disk_bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO usage_open (sandbox, tenant, since, cpus, memory_bytes, disk_bytes)
    SELECT id, tenant, CAST(unixepoch('subsec') * 1000000 AS INTEGER), limit_cpus, limit_memory_bytes, disk_bytes
    FROM sandboxes WHERE state IN ('running', 'pausing');

-- +goose Down
DROP TABLE usage_open;
DROP TABLE usage_days;
