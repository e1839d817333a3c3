-- +goose Up
-- The program that a node runs, and the end of the lease that it took. An earlier program
-- renews a lease without these columns, and then the version is not that of the node.
ALTER TABLE nodes ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN version_until INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE nodes DROP COLUMN version_until;
ALTER TABLE nodes DROP COLUMN version;
