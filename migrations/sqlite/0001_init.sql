-- {p} is the table prefix.
--
-- Defaults, checks and triggers use only what SQLite 3.31 has built in: the
-- application that inserts brings its own library. Times are integer
-- milliseconds since the Unix epoch. One host holds a file, so there is one
-- lane; the column exists for both databases to look alike.

CREATE TABLE {p}outbox (
    pk             INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id     TEXT NOT NULL COLLATE NOCASE DEFAULT (
        lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)
        || '-' || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(hex(randomblob(2)), 2)
        || '-' || hex(randomblob(6)))
    ) CHECK (message_id GLOB replace('xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx', 'x', '[0-9a-fA-F]')),
    -- A column's type is no more than a wish: what isn't text is refused here.
    project_id     TEXT NOT NULL CHECK (typeof(project_id) = 'text' AND project_id <> ''),
    resource       TEXT NOT NULL CHECK (typeof(resource) = 'text' AND resource <> ''),
    aggregate_id   TEXT NOT NULL CHECK (typeof(aggregate_id) = 'text' AND aggregate_id <> ''),
    event_name     TEXT NOT NULL CHECK (typeof(event_name) = 'text' AND event_name <> ''),
    schema_version INTEGER NOT NULL DEFAULT 1
        CHECK (typeof(schema_version) = 'integer' AND schema_version BETWEEN 0 AND 2147483647),
    dedup_key      TEXT CHECK (typeof(dedup_key) IN ('text', 'null')),
    created_at     INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER))
        CHECK (typeof(created_at) = 'integer'),
    available_at   INTEGER CHECK (typeof(available_at) IN ('integer', 'null')),
    lane           INTEGER NOT NULL DEFAULT 0 CHECK (lane = 0),
    claims         INTEGER NOT NULL DEFAULT 0,
    claim_id       TEXT,
    claimed_until  INTEGER,
    dispatched_at  INTEGER,
    -- The long ones come last: what stands behind them is slow to reach.
    payload_json   TEXT NOT NULL CHECK (typeof(payload_json) = 'text' AND json_valid(payload_json)),
    meta_json      TEXT CHECK (
        meta_json IS NULL
        OR (typeof(meta_json) = 'text' AND json_valid(meta_json) AND json_type(meta_json) = 'object')
    ),
    result_json    TEXT,
    CONSTRAINT {p}outbox_message_id UNIQUE (message_id)
);

CREATE UNIQUE INDEX {p}outbox_dedup ON {p}outbox (project_id, dedup_key) WHERE dedup_key <> '';

-- What claims walk. A row is in one of the two.
CREATE INDEX {p}outbox_due ON {p}outbox (lane, project_id, pk)
    WHERE dispatched_at IS NULL AND available_at IS NULL;
CREATE INDEX {p}outbox_scheduled ON {p}outbox (lane, available_at, pk)
    WHERE dispatched_at IS NULL AND available_at IS NOT NULL;

CREATE TABLE {p}delivery (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    event_pk      INTEGER NOT NULL,
    message_id    TEXT NOT NULL,
    project_id    TEXT NOT NULL,
    trigger_name  TEXT NOT NULL,
    resource      TEXT NOT NULL,
    aggregate_id  TEXT NOT NULL,
    event_name    TEXT NOT NULL,
    lane          INTEGER NOT NULL,
    -- 0 for the event's own delivery, else the number of the replay.
    generation    INTEGER NOT NULL DEFAULT 0,
    -- 0 in no order, 1 in the order of events, 2 among re-driven ones alone.
    chain         INTEGER NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('ready', 'blocked', 'done', 'dead')),
    cause         TEXT NOT NULL,
    attempts      INTEGER NOT NULL DEFAULT 0,
    due_at        INTEGER NOT NULL,
    claims        INTEGER NOT NULL DEFAULT 0,
    claim_id      TEXT,
    claimed_until INTEGER,
    last_kind     TEXT,
    last_error    TEXT,
    created_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    CONSTRAINT {p}delivery_once UNIQUE (event_pk, trigger_name, generation)
);

CREATE INDEX {p}delivery_ready ON {p}delivery (project_id, trigger_name, lane, due_at, id)
    WHERE state = 'ready';
CREATE INDEX {p}delivery_run ON {p}delivery (project_id, resource, aggregate_id, trigger_name, chain, event_pk)
    WHERE state IN ('ready', 'blocked') AND chain > 0;
CREATE INDEX {p}delivery_open ON {p}delivery (project_id, trigger_name, id)
    WHERE state IN ('ready', 'blocked');
CREATE INDEX {p}delivery_dead ON {p}delivery (project_id, trigger_name, id)
    WHERE state = 'dead';

CREATE TABLE {p}attempt (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    event_pk     INTEGER NOT NULL,
    message_id   TEXT NOT NULL,
    project_id   TEXT NOT NULL,
    trigger_name TEXT NOT NULL,
    number       INTEGER NOT NULL,
    digest       TEXT,
    started_at   INTEGER NOT NULL,
    duration_us  INTEGER NOT NULL,
    cpu_us       INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    kind         TEXT,
    error        TEXT,
    logs_json    TEXT
);

CREATE INDEX {p}attempt_event ON {p}attempt (event_pk);
CREATE INDEX {p}attempt_trigger ON {p}attempt (project_id, trigger_name, id);

CREATE TABLE {p}state (
    project_id   TEXT NOT NULL,
    trigger_name TEXT NOT NULL,
    key          TEXT NOT NULL,
    value        BLOB NOT NULL,
    version      INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (project_id, trigger_name, key)
) WITHOUT ROWID;

CREATE TABLE {p}lane (
    lane        INTEGER PRIMARY KEY,
    holder      TEXT,
    lease_until INTEGER NOT NULL DEFAULT 0
);

INSERT INTO {p}lane (lane) VALUES (0);

CREATE TABLE {p}counter (
    project_id   TEXT NOT NULL,
    trigger_name TEXT NOT NULL,
    shard        INTEGER NOT NULL,
    done         INTEGER NOT NULL DEFAULT 0,
    failed       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (project_id, trigger_name, shard)
) WITHOUT ROWID;

CREATE TABLE {p}operation (
    id          TEXT PRIMARY KEY,
    project_id  TEXT NOT NULL,
    kind        TEXT NOT NULL,
    filter_json TEXT NOT NULL,
    max_items   INTEGER,
    state       TEXT NOT NULL CHECK (state IN ('running', 'done', 'cancelled')),
    total       INTEGER NOT NULL,
    done        INTEGER NOT NULL DEFAULT 0,
    position    INTEGER NOT NULL DEFAULT 0,
    last_id     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
);

-- Control: what operators and authors define. No query joins it with the data.

CREATE TABLE {p}control_version (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
);

INSERT INTO {p}control_version (one, version) VALUES (1, 1);

CREATE TABLE {p}project (
    name       TEXT PRIMARY KEY,
    enabled    INTEGER NOT NULL DEFAULT 1,
    created_at INTEGER NOT NULL
);

CREATE TABLE {p}plugin (
    project_id    TEXT NOT NULL,
    name          TEXT NOT NULL,
    active_digest TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (project_id, name)
);

CREATE TABLE {p}plugin_version (
    project_id  TEXT NOT NULL,
    plugin_name TEXT NOT NULL,
    digest      TEXT NOT NULL,
    info_json   TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    -- Last, so that nothing is read past it.
    component   BLOB NOT NULL,
    PRIMARY KEY (project_id, plugin_name, digest)
);

CREATE INDEX {p}plugin_version_digest ON {p}plugin_version (project_id, digest);

CREATE TABLE {p}trigger (
    project_id  TEXT NOT NULL,
    name        TEXT NOT NULL,
    spec_json   TEXT NOT NULL,
    paused      TEXT,
    revision    INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (project_id, name)
);

CREATE TABLE {p}secret (
    project_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    sealed     BLOB NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (project_id, name)
);

CREATE TABLE {p}api_key (
    id         TEXT PRIMARY KEY,
    name       TEXT,
    project_id TEXT,
    role       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
);

CREATE TABLE {p}host (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    version      TEXT NOT NULL,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL
);
