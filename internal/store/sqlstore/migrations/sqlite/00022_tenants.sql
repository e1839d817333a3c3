-- +goose Up
CREATE TABLE tenants (
    id           TEXT    NOT NULL PRIMARY KEY,
    name         TEXT    NOT NULL,
    parent       TEXT    NOT NULL, -- whose key vouches for it
    created_at   INTEGER NOT NULL,
    suspended_at INTEGER NOT NULL, -- 0: it is active
    reason       TEXT    NOT NULL  -- of the suspension
) STRICT, WITHOUT ROWID;

CREATE INDEX tenants_suspended ON tenants (id) WHERE suspended_at <> 0;
CREATE INDEX tenants_parent ON tenants (parent) WHERE parent <> '';

-- Who has anything already. Where an ID has a slash, the tenant before the last one
-- vouches for it.
INSERT INTO tenants (id, name, parent, created_at, suspended_at, reason)
    SELECT tenant, '', CASE WHEN instr(tenant, '/') > 1
        THEN rtrim(rtrim(tenant, replace(tenant, '/', '')), '/') ELSE '' END,
        CAST(unixepoch('subsec') * 1000000 AS INTEGER), 0, ''
    FROM (
        SELECT tenant FROM sandboxes UNION SELECT tenant FROM snapshots UNION SELECT tenant FROM keys
        UNION SELECT tenant FROM secrets UNION SELECT tenant FROM quotas UNION SELECT tenant FROM signing_keys
    )
    WHERE tenant <> '';

-- +goose Down
DROP TABLE tenants;
