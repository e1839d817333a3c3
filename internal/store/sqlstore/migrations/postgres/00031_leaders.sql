-- +goose Up
-- The process that leads each role. A row stays after its term, for the count of terms.
CREATE TABLE leaders (
    role    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    holder  TEXT COLLATE "C" NOT NULL, -- the identity of the process
    address TEXT COLLATE "C" NOT NULL,
    epoch   BIGINT NOT NULL, -- how many terms the role has had
    until   BIGINT NOT NULL -- the end of the lease, by this database's clock
);

-- +goose Down
DROP TABLE leaders;
