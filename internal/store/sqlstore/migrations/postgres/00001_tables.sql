-- +goose Up
-- Times are microseconds since 1970 in UTC, 0 for none. Texts are ordered by their bytes,
-- as cursors need it.

CREATE TABLE sandboxes (
    id                 TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tenant             TEXT COLLATE "C" NOT NULL,
    name               TEXT COLLATE "C" NOT NULL,
    state              TEXT COLLATE "C" NOT NULL,
    template           TEXT COLLATE "C" NOT NULL,
    image              TEXT COLLATE "C" NOT NULL,
    engine             TEXT COLLATE "C" NOT NULL,
    cpus               DOUBLE PRECISION NOT NULL,
    memory_bytes       BIGINT NOT NULL,
    disk_bytes         BIGINT NOT NULL,
    pids               BIGINT NOT NULL,
    network            TEXT COLLATE "C" NOT NULL,
    metadata           TEXT COLLATE "C" NOT NULL, -- JSON object of strings, as env
    env                TEXT COLLATE "C" NOT NULL,
    boot_id            TEXT COLLATE "C" NOT NULL,
    boot_number        BIGINT NOT NULL,
    boot_node          TEXT COLLATE "C" NOT NULL,
    created_at         BIGINT NOT NULL,
    started_at         BIGINT NOT NULL,
    timeout            BIGINT NOT NULL, -- durations are microseconds too
    deadline           BIGINT NOT NULL,
    on_timeout         TEXT COLLATE "C" NOT NULL,
    timeline           BIGINT NOT NULL,
    ended_cause        TEXT COLLATE "C" NOT NULL,
    ended_at           BIGINT NOT NULL,
    version            BIGINT NOT NULL,
    idle_timeout       BIGINT NOT NULL,
    limit_cpus         DOUBLE PRECISION NOT NULL,
    limit_memory_bytes BIGINT NOT NULL,
    limit_pids         BIGINT NOT NULL,
    user_name          TEXT COLLATE "C" NOT NULL,
    cwd                TEXT COLLATE "C" NOT NULL,
    revision           BIGINT NOT NULL,
    ended_output       TEXT COLLATE "C" NOT NULL,
    snapshot           TEXT COLLATE "C" NOT NULL,
    stay_paused        BOOLEAN NOT NULL,
    snapshot_at        BIGINT NOT NULL,
    checkpoint_every   BIGINT NOT NULL,
    restored_from      TEXT COLLATE "C" NOT NULL,
    restored_lost      BIGINT NOT NULL,
    restored_times     BIGINT NOT NULL,
    secrets            TEXT COLLATE "C" NOT NULL,
    runs_until         BIGINT NOT NULL, -- the latest deadline while it runs; 0: any
    ingress            TEXT COLLATE "C" NOT NULL,
    limit_bandwidth    BIGINT NOT NULL, -- bytes a second; 0: any
    volumes            TEXT COLLATE "C" NOT NULL, -- JSON array; empty: none
    origin             TEXT COLLATE "C" NOT NULL -- the snapshot that it was created from; empty: none
);

CREATE UNIQUE INDEX sandboxes_name ON sandboxes (tenant, name) WHERE name <> '' AND state <> 'ended';
CREATE INDEX sandboxes_tenant ON sandboxes (tenant, created_at DESC, id DESC);
CREATE INDEX sandboxes_tenant_open ON sandboxes (tenant, created_at DESC, id DESC, state) WHERE state <> 'ended';
CREATE INDEX sandboxes_deadline ON sandboxes (deadline) WHERE state NOT IN ('stopping', 'ended');
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE state = 'ended';
CREATE INDEX sandboxes_snapshot ON sandboxes (snapshot, state) WHERE snapshot <> '' AND state NOT IN ('stopping', 'ended');
CREATE INDEX sandboxes_volumes ON sandboxes (tenant) WHERE volumes <> '' AND state <> 'ended';
CREATE INDEX sandboxes_counted ON sandboxes (tenant, created_at, ended_cause) WHERE ended_cause <> 'refused';
CREATE INDEX sandboxes_refused ON sandboxes (ended_at) WHERE ended_cause = 'refused';

CREATE TABLE nodes (
    name        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    engine      TEXT COLLATE "C" NOT NULL,
    lease_until BIGINT NOT NULL,
    address     TEXT COLLATE "C" NOT NULL,
    holder      TEXT COLLATE "C" NOT NULL, -- the identity of the data folder that has the lease
    epoch       BIGINT NOT NULL -- how often the lease was taken
);

CREATE TABLE signing_keys (
    tenant     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    id         TEXT COLLATE "C" NOT NULL UNIQUE,
    secret     BYTEA NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE TABLE keys (
    id               TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tenant           TEXT COLLATE "C" NOT NULL,
    name             TEXT COLLATE "C" NOT NULL,
    role             TEXT COLLATE "C" NOT NULL,
    scopes           TEXT COLLATE "C" NOT NULL, -- JSON array of strings
    hash             BYTEA NOT NULL, -- SHA-256 of the secret
    hint             TEXT COLLATE "C" NOT NULL,
    created_at       BIGINT NOT NULL,
    expires_at       BIGINT NOT NULL,
    used_at          BIGINT NOT NULL,
    previous_hash    BYTEA, -- of the secret before it was rotated; NULL: it never was
    previous_hint    TEXT COLLATE "C" NOT NULL,
    previous_until   BIGINT NOT NULL,
    previous_used_at BIGINT NOT NULL,
    created_by       TEXT COLLATE "C" NOT NULL -- a user of its tenant; empty: nobody
);

CREATE UNIQUE INDEX keys_hash ON keys (hash);
CREATE INDEX keys_tenant ON keys (tenant, created_at DESC, id DESC);
CREATE UNIQUE INDEX keys_previous_hash ON keys (previous_hash);

CREATE TABLE onces (
    tenant   TEXT COLLATE "C" NOT NULL,
    key      TEXT COLLATE "C" NOT NULL,
    request  BYTEA NOT NULL, -- SHA-256 of the request
    resource TEXT COLLATE "C" NOT NULL,
    began_at BIGINT NOT NULL,
    holder   TEXT COLLATE "C" NOT NULL,
    status   BIGINT NOT NULL, -- of the response; 0 while it is in progress
    answer   BYTEA NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE INDEX onces_began ON onces (began_at);

CREATE TABLE quotas (
    tenant TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    quota  TEXT COLLATE "C" NOT NULL -- JSON
);

CREATE TABLE snapshots (
    id                 TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tenant             TEXT COLLATE "C" NOT NULL,
    sandbox_id         TEXT COLLATE "C" NOT NULL,
    parent             TEXT COLLATE "C" NOT NULL,
    name               TEXT COLLATE "C" NOT NULL,
    kept               BOOLEAN NOT NULL,
    state              TEXT COLLATE "C" NOT NULL,
    created_at         BIGINT NOT NULL,
    node               TEXT COLLATE "C" NOT NULL,
    bytes              BIGINT NOT NULL,
    memory             BOOLEAN NOT NULL,
    build              TEXT COLLATE "C" NOT NULL,
    digest             TEXT COLLATE "C" NOT NULL,
    template           TEXT COLLATE "C" NOT NULL,
    image              TEXT COLLATE "C" NOT NULL,
    cpus               DOUBLE PRECISION NOT NULL,
    memory_bytes       BIGINT NOT NULL,
    disk_bytes         BIGINT NOT NULL,
    pids               BIGINT NOT NULL,
    limit_cpus         DOUBLE PRECISION NOT NULL,
    limit_memory_bytes BIGINT NOT NULL,
    limit_pids         BIGINT NOT NULL,
    network            TEXT COLLATE "C" NOT NULL,
    env                TEXT COLLATE "C" NOT NULL, -- JSON object of strings
    user_name          TEXT COLLATE "C" NOT NULL,
    cwd                TEXT COLLATE "C" NOT NULL,
    timeline           BIGINT NOT NULL,
    version            BIGINT NOT NULL,
    limit_bandwidth    BIGINT NOT NULL,
    layer              TEXT COLLATE "C" NOT NULL, -- what builds of templates go on from; empty: it is a snapshot of its owner
    used_at            BIGINT NOT NULL,
    volumes            TEXT COLLATE "C" NOT NULL
);

CREATE UNIQUE INDEX snapshots_name ON snapshots (sandbox_id, name) WHERE name <> '';
CREATE INDEX snapshots_tenant ON snapshots (tenant, created_at DESC, id DESC);
CREATE INDEX snapshots_sandbox ON snapshots (sandbox_id, created_at DESC, id DESC);
CREATE INDEX snapshots_parent ON snapshots (parent) WHERE parent <> '';
CREATE INDEX snapshots_image ON snapshots (image, created_at DESC, id DESC) WHERE state <> 'deleting';
CREATE INDEX snapshots_loose ON snapshots (state) WHERE state <> 'ready' OR NOT kept;

CREATE TABLE audit (
    seq       BIGINT NOT NULL PRIMARY KEY,
    at        BIGINT NOT NULL,
    tenant    TEXT COLLATE "C" NOT NULL,
    user_id   TEXT COLLATE "C" NOT NULL,
    role      TEXT COLLATE "C" NOT NULL,
    key       TEXT COLLATE "C" NOT NULL,
    operation TEXT COLLATE "C" NOT NULL,
    target    TEXT COLLATE "C" NOT NULL,
    sandbox   TEXT COLLATE "C" NOT NULL,
    detail    TEXT COLLATE "C" NOT NULL,
    remote    TEXT COLLATE "C" NOT NULL,
    request   TEXT COLLATE "C" NOT NULL,
    status    BIGINT NOT NULL,
    code      TEXT COLLATE "C" NOT NULL,
    hash      BYTEA NOT NULL -- of the entry and the hash before it
);

CREATE INDEX audit_of_tenant ON audit (tenant, at);

CREATE TABLE audit_mark (
    id   BIGINT NOT NULL PRIMARY KEY CHECK (id = 0),
    seq  BIGINT NOT NULL,
    hash BYTEA NOT NULL
);

CREATE TABLE secrets (
    id            TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tenant        TEXT COLLATE "C" NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    description   TEXT COLLATE "C" NOT NULL,
    key_id        TEXT COLLATE "C" NOT NULL,
    sealed_key    BYTEA NOT NULL,
    value         BYTEA NOT NULL, -- sealed with a key of its own, which is sealed, as sealed_key, with the master key key_id
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    version       BIGINT NOT NULL,
    metadata      TEXT COLLATE "C" NOT NULL,
    value_version BIGINT NOT NULL,
    hosts         TEXT COLLATE "C" NOT NULL -- JSON array of strings; null: any
);

CREATE UNIQUE INDEX secrets_of_tenant ON secrets (tenant, name);

CREATE TABLE usage_days (
    tenant   TEXT COLLATE "C" NOT NULL,
    day      BIGINT NOT NULL, -- since 1970
    sandbox  TEXT COLLATE "C" NOT NULL,
    seconds  DOUBLE PRECISION NOT NULL, -- the amounts are seconds and GiB-seconds
    cpu      DOUBLE PRECISION NOT NULL,
    memory   DOUBLE PRECISION NOT NULL,
    disk     DOUBLE PRECISION NOT NULL,
    sent     BIGINT NOT NULL,
    received BIGINT NOT NULL,
    PRIMARY KEY (tenant, day, sandbox)
);

CREATE INDEX usage_of_day ON usage_days (day);

CREATE TABLE usage_open (
    sandbox      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tenant       TEXT COLLATE "C" NOT NULL,
    since        BIGINT NOT NULL, -- usage from then on is not in usage_days yet
    cpus         DOUBLE PRECISION NOT NULL,
    memory_bytes BIGINT NOT NULL,
    disk_bytes   BIGINT NOT NULL
);

CREATE TABLE traffic_boots (
    boot     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    sent     BIGINT NOT NULL,
    received BIGINT NOT NULL,
    seen_at  BIGINT NOT NULL
);

CREATE TABLE tenants (
    id           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name         TEXT COLLATE "C" NOT NULL,
    parent       TEXT COLLATE "C" NOT NULL, -- the tenant whose key vouches for it
    created_at   BIGINT NOT NULL,
    suspended_at BIGINT NOT NULL, -- 0: it is active
    reason       TEXT COLLATE "C" NOT NULL
);

CREATE INDEX tenants_suspended ON tenants (id) WHERE suspended_at <> 0;
CREATE INDEX tenants_parent ON tenants (parent) WHERE parent <> '';

CREATE TABLE volumes (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tenant     TEXT COLLATE "C" NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    state      TEXT COLLATE "C" NOT NULL,
    node       TEXT COLLATE "C" NOT NULL,
    max_bytes  BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE UNIQUE INDEX volumes_of_tenant ON volumes (tenant, name) WHERE state <> 'deleting';
CREATE INDEX volumes_use ON volumes (tenant, max_bytes);
CREATE INDEX volumes_left ON volumes (state) WHERE state <> 'ready';

CREATE TABLE users (
    tenant     TEXT COLLATE "C" NOT NULL,
    id         TEXT COLLATE "C" NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    email      TEXT COLLATE "C" NOT NULL,
    source     TEXT COLLATE "C" NOT NULL,
    issuer     TEXT COLLATE "C" NOT NULL,
    given      TEXT COLLATE "C" NOT NULL, -- the role that somebody here gave them; empty: none
    said       TEXT COLLATE "C" NOT NULL, -- the role in their last token
    state      TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    seen_at    BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    decided_by TEXT COLLATE "C" NOT NULL, -- the highest role of who gave or suspended
    PRIMARY KEY (tenant, id)
);

CREATE INDEX users_forgettable ON users (tenant, seen_at) WHERE state = 'active' AND given = '' AND source <> 'invited';

CREATE TABLE users_changed (
    n BIGINT NOT NULL
);

CREATE TABLE webhooks (
    id      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    kinds   TEXT COLLATE "C" NOT NULL, -- with a space before and after each
    since   BIGINT NOT NULL,
    waiting BIGINT NOT NULL, -- rows of outbox
    bytes   BIGINT NOT NULL, -- of their events
    missing BIGINT NOT NULL, -- lost since the last one that came
    lost    BIGINT NOT NULL -- ever
);

CREATE TABLE outbox (
    seq      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook  TEXT COLLATE "C" NOT NULL,
    id       TEXT COLLATE "C" NOT NULL,
    kind     TEXT COLLATE "C" NOT NULL,
    event    TEXT COLLATE "C" NOT NULL, -- JSON
    alike    TEXT COLLATE "C" NOT NULL, -- equal for events that are counted together; empty: this one never is
    count    BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    last_at  BIGINT NOT NULL,
    tries    BIGINT NOT NULL,
    next_at  BIGINT NOT NULL
);

CREATE INDEX outbox_due ON outbox (webhook, next_at);
CREATE INDEX outbox_oldest ON outbox (webhook, seq);
CREATE INDEX outbox_kind ON outbox (webhook, kind, seq);
CREATE INDEX outbox_alike ON outbox (webhook, alike) WHERE alike <> '' AND tries = 0;

CREATE TABLE told (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL
);

CREATE INDEX told_at ON told (at);

-- Which database this is: data folders that belong to it keep its id.
CREATE TABLE installation (id TEXT COLLATE "C" NOT NULL);

-- Writes of a check that the database takes any.
CREATE TABLE touched (n BIGINT NOT NULL);

INSERT INTO audit_mark (id, seq, hash) VALUES (0, 0, decode(repeat('00', 32), 'hex'));
INSERT INTO users_changed (n) VALUES (0);
INSERT INTO touched (n) VALUES (0);
INSERT INTO installation (id) VALUES (CAST(gen_random_uuid() AS TEXT));

-- +goose Down

DROP TABLE installation, touched, told, outbox, webhooks, users_changed, users, volumes, tenants, traffic_boots, usage_open, usage_days, secrets, audit_mark, audit, snapshots, quotas, onces, keys, signing_keys, nodes, sandboxes;
