-- +goose Up
CREATE TABLE webhooks (
    id      TEXT    NOT NULL PRIMARY KEY,
    kinds   TEXT    NOT NULL, -- with a space before and after each
    since   INTEGER NOT NULL,
    waiting INTEGER NOT NULL, -- rows of outbox
    bytes   INTEGER NOT NULL, -- of them
    missing INTEGER NOT NULL, -- lost since the last one that came
    lost    INTEGER NOT NULL  -- ever
) STRICT, WITHOUT ROWID;

-- What waits, once for each webhook. Numbers are never used again: one that is being
-- sent may go meanwhile.
CREATE TABLE outbox (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    webhook  TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    event    TEXT    NOT NULL, -- JSON
    alike    TEXT    NOT NULL, -- the same for what is counted together; empty: it never is
    count    INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    last_at  INTEGER NOT NULL,
    tries    INTEGER NOT NULL,
    next_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX outbox_due ON outbox (webhook, next_at);
CREATE INDEX outbox_oldest ON outbox (webhook, seq);
CREATE INDEX outbox_kind ON outbox (webhook, kind, seq);
CREATE INDEX outbox_alike ON outbox (webhook, alike) WHERE alike <> '' AND tries = 0;

-- What must be told once.
CREATE TABLE told (
    id TEXT    NOT NULL PRIMARY KEY,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX told_at ON told (at);

-- +goose Down
DROP TABLE told;
DROP TABLE outbox;
DROP TABLE webhooks;
