-- +goose Up
-- The lowest schema version that a program must know to use this database. A program that
-- knows a lower version than the database has starts if it knows this one. A migration
-- that only adds leaves the row as it is; one that removes or renames raises it.
CREATE TABLE schema_needs (
    one     BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    version BIGINT NOT NULL
);
INSERT INTO schema_needs (one, version) VALUES (1, 33);

-- +goose Down
DROP TABLE schema_needs;
