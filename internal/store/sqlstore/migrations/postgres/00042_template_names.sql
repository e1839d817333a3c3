-- +goose Up
-- What the names of templates meant when the node that keeps the templates last told it, for
-- the time in which that node is away.
CREATE TABLE template_names (
    tenant      TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL, -- of the template, without a tag or version
    asked       TEXT COLLATE "C" NOT NULL, -- NAME, NAME:TAG or NAME@VERSION; empty: older rows of this name do not count
    version     TEXT COLLATE "C" NOT NULL,
    defaults    BYTEA NOT NULL,            -- of the template, in JSON
    answered_at TIMESTAMPTZ NOT NULL,      -- before the question was sent, by this server's clock
    PRIMARY KEY (tenant, name, asked)
);

CREATE INDEX template_names_of_tenants ON template_names (tenant, answered_at);
CREATE INDEX template_names_age ON template_names (answered_at);

-- +goose Down

DROP TABLE template_names;
