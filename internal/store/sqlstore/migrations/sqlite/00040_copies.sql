-- +goose Up
-- Part of the names of packs: installations that share blobs and keys do not share packs,
-- because each deletes what its own rows do not need.
CREATE TABLE pack_scope (
	one   INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
	scope TEXT NOT NULL
);
INSERT INTO pack_scope (one, scope) VALUES (1, lower(hex(randomblob(16))));

-- The copies of snapshots in blobs, by the prefix of their blobs. until is when the last put
-- of the copy has ended for certain; 0: all have.
CREATE TABLE copies (
	snapshot TEXT NOT NULL,
	prefix   TEXT NOT NULL,
	node     TEXT NOT NULL,
	state    TEXT NOT NULL, -- copying, ready or deleting
	attempt  INTEGER NOT NULL, -- the number of the latest attempt
	until    INTEGER NOT NULL,
	earlier  INTEGER NOT NULL, -- as until, of the attempts before
	PRIMARY KEY (snapshot, prefix)
) WITHOUT ROWID;
CREATE INDEX copies_deleting ON copies (until) WHERE state = 'deleting';

-- Each pack that is, or may be, in blobs. One that is being deleted is put and used by no
-- copy, until the row has gone.
CREATE TABLE packs (
	name     TEXT NOT NULL PRIMARY KEY,
	deleting INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX packs_deleting ON packs (name) WHERE deleting;

-- The packs that each copy uses, and the attempt at the copy that last said so.
CREATE TABLE copy_packs (
	snapshot TEXT NOT NULL,
	prefix   TEXT NOT NULL,
	pack     TEXT NOT NULL,
	attempt  INTEGER NOT NULL,
	PRIMARY KEY (snapshot, prefix, pack)
) WITHOUT ROWID;
CREATE INDEX copy_packs_pack ON copy_packs (pack);

-- Dropped snapshots whose files a node that was away may still have.
CREATE TABLE left_states (
	node     TEXT NOT NULL,
	snapshot TEXT NOT NULL,
	PRIMARY KEY (node, snapshot)
) WITHOUT ROWID;

-- The copy of a snapshot is needed as long as its row exists. A trigger says so, because a
-- session manager of an earlier version drops snapshots too and knows no copies.
-- +goose StatementBegin
CREATE TRIGGER snapshots_copies AFTER DELETE ON snapshots BEGIN
	UPDATE copies SET state = 'deleting' WHERE snapshot = OLD.id;
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER snapshots_copies;
DROP TABLE left_states;
DROP TABLE copy_packs;
DROP TABLE packs;
DROP TABLE copies;
DROP TABLE pack_scope;
