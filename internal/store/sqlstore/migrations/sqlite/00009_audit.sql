-- +goose Up
-- The audit log. seq has no gaps; hash covers the entry and the hash before it.
CREATE TABLE audit (
    seq       INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL, -- microseconds
    tenant    TEXT    NOT NULL,
    user      TEXT    NOT NULL,
    role      TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    target    TEXT    NOT NULL,
    sandbox   TEXT    NOT NULL,
    detail    TEXT    NOT NULL,
    remote    TEXT    NOT NULL,
    request   TEXT    NOT NULL,
    status    INTEGER NOT NULL,
    code      TEXT    NOT NULL,
    hash      BLOB    NOT NULL
) STRICT;

CREATE INDEX audit_of_tenant ON audit (tenant, at);

-- What the first entry follows: the last one that was removed for its age.
CREATE TABLE audit_mark (
    id   INTEGER PRIMARY KEY CHECK (id = 0),
    seq  INTEGER NOT NULL,
    hash BLOB    NOT NULL
) STRICT;

INSERT INTO audit_mark (id, seq, hash) VALUES (0, 0, zeroblob(32));

-- +goose Down
DROP TABLE audit_mark;
DROP TABLE audit;
