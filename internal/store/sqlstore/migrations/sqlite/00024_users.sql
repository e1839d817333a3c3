-- +goose Up
CREATE TABLE users (
    tenant     TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    email      TEXT    NOT NULL,
    source     TEXT    NOT NULL,
    issuer     TEXT    NOT NULL,
    given      TEXT    NOT NULL, -- the role that somebody here gave them; '' for none
    said       TEXT    NOT NULL, -- the role that their last token said
    state      TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL, -- 0: never
    version    INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

-- Who may be forgotten where there is no room, the longest unseen first.
CREATE INDEX users_forgettable ON users (tenant, seen_at) WHERE state = 'active' AND given = '' AND source <> 'invited';

-- One row, whose number is another after each change of a user.
CREATE TABLE users_changed (n INTEGER NOT NULL) STRICT;
INSERT INTO users_changed (n) VALUES (0);

ALTER TABLE keys ADD COLUMN created_by TEXT NOT NULL DEFAULT ''; -- a user of its tenant; '' for nobody

-- +goose Down
ALTER TABLE keys DROP COLUMN created_by;
DROP TABLE users_changed;
DROP TABLE users;
