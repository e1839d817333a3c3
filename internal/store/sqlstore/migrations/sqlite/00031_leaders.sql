-- +goose Up
-- The process that leads each role. A row stays after its term, for the count of terms.
CREATE TABLE leaders (
    role    TEXT NOT NULL PRIMARY KEY,
    holder  TEXT NOT NULL, -- the identity of the process
    address TEXT NOT NULL,
    epoch   INTEGER NOT NULL, -- how many terms the role has had
    until   INTEGER NOT NULL -- the end of the lease
);

-- +goose Down
DROP TABLE leaders;
