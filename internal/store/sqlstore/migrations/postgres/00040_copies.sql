-- +goose Up
-- Part of the names of packs: installations that share blobs and keys do not share packs,
-- because each deletes what its own rows do not need.
CREATE TABLE pack_scope (
	one   BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
	scope TEXT COLLATE "C" NOT NULL
);
INSERT INTO pack_scope (one, scope) VALUES (1, replace(CAST(gen_random_uuid() AS TEXT), '-', ''));

-- The copies of snapshots in blobs, by the prefix of their blobs. until is when the last put
-- of the copy has ended for certain; 0: all have.
CREATE TABLE copies (
	snapshot TEXT COLLATE "C" NOT NULL,
	prefix   TEXT COLLATE "C" NOT NULL,
	node     TEXT COLLATE "C" NOT NULL,
	state    TEXT COLLATE "C" NOT NULL, -- copying, ready or deleting
	attempt  BIGINT NOT NULL, -- the number of the latest attempt
	until    BIGINT NOT NULL,
	earlier  BIGINT NOT NULL, -- as until, of the attempts before
	PRIMARY KEY (snapshot, prefix)
);
CREATE INDEX copies_deleting ON copies (until) WHERE state = 'deleting';

-- Each pack that is, or may be, in blobs. One that is being deleted is put and used by no
-- copy, until the row has gone.
CREATE TABLE packs (
	name     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
	deleting BOOLEAN NOT NULL
);
CREATE INDEX packs_deleting ON packs (name) WHERE deleting;

-- The packs that each copy uses, and the attempt at the copy that last said so.
CREATE TABLE copy_packs (
	snapshot TEXT COLLATE "C" NOT NULL,
	prefix   TEXT COLLATE "C" NOT NULL,
	pack     TEXT COLLATE "C" NOT NULL,
	attempt  BIGINT NOT NULL,
	PRIMARY KEY (snapshot, prefix, pack)
);
CREATE INDEX copy_packs_pack ON copy_packs (pack);

-- Dropped snapshots whose files a node that was away may still have.
CREATE TABLE left_states (
	node     TEXT COLLATE "C" NOT NULL,
	snapshot TEXT COLLATE "C" NOT NULL,
	PRIMARY KEY (node, snapshot)
);

-- The copy of a snapshot is needed as long as its row exists. A trigger says so, because a
-- session manager of an earlier version drops snapshots too and knows no copies.
-- +goose StatementBegin
CREATE FUNCTION delete_copies() RETURNS trigger AS $$
BEGIN
	UPDATE copies SET state = 'deleting' WHERE snapshot = OLD.id;
	RETURN NULL;
END
$$ LANGUAGE plpgsql;
-- +goose StatementEnd
CREATE TRIGGER snapshots_copies AFTER DELETE ON snapshots FOR EACH ROW EXECUTE FUNCTION delete_copies();

-- +goose Down
DROP TRIGGER snapshots_copies ON snapshots;
DROP FUNCTION delete_copies();
DROP TABLE left_states, copy_packs, packs, copies, pack_scope;
