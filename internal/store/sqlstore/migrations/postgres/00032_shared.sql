-- +goose Up
-- What the processes of one installation tell each other, on machines of their own.

-- Keyed hashes of secrets that they share, by the secret's name: a process with another
-- secret finds out when it starts.
CREATE TABLE fingerprints (
    secret      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    fingerprint TEXT COLLATE "C" NOT NULL
);

-- Builds by steps, each written by the gateway that runs it and read by the others.
CREATE TABLE builds (
    id      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tenant  TEXT COLLATE "C" NOT NULL,
    state   TEXT COLLATE "C" NOT NULL, -- waiting, taken or over
    body    BYTEA NOT NULL,
    log     BYTEA NOT NULL,
    changes BIGINT NOT NULL,           -- of the log
    cancel  BOOLEAN NOT NULL,          -- another gateway asks for its end
    seen_at TIMESTAMPTZ NOT NULL       -- when its gateway last wrote it, by this server's clock
);

CREATE INDEX builds_of_tenants ON builds (tenant);

-- +goose Down

DROP TABLE builds, fingerprints;
