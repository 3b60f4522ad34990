-- {p} is the table prefix, {lanes} the number of lanes.
--
-- Data: what belongs to the events of one database. Times are integer
-- milliseconds since the Unix epoch. Text that is compared or indexed is
-- COLLATE "C": byte order, the same everywhere.

CREATE FUNCTION {p}now_ms() RETURNS bigint
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- The public table: an application needs INSERT on this one and nothing else.
-- Claims touch no indexed column and half of each page is kept free, so that
-- they are heap-only updates.
CREATE TABLE {p}outbox (
    pk             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id     uuid NOT NULL DEFAULT gen_random_uuid(),
    project_id     text COLLATE "C" NOT NULL CHECK (project_id <> ''),
    resource       text COLLATE "C" NOT NULL CHECK (resource <> ''),
    aggregate_id   text COLLATE "C" NOT NULL CHECK (aggregate_id <> ''),
    event_name     text COLLATE "C" NOT NULL CHECK (event_name <> ''),
    schema_version integer NOT NULL DEFAULT 1 CHECK (schema_version >= 0),
    payload_json   json NOT NULL,
    meta_json      json CHECK (json_typeof(meta_json) = 'object'),
    dedup_key      text COLLATE "C",
    created_at     bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    available_at   bigint,
    lane           smallint NOT NULL GENERATED ALWAYS AS (
        abs(hashtextextended(aggregate_id, hashtextextended(resource, hashtextextended(project_id, 0))) % {lanes})
    ) STORED,
    claims         integer NOT NULL DEFAULT 0,
    claim_id       uuid,
    claimed_until  bigint,
    dispatched_at  bigint,
    result_json    json,
    CONSTRAINT {p}outbox_message_id UNIQUE (message_id)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE UNIQUE INDEX {p}outbox_dedup ON {p}outbox (project_id, dedup_key) WHERE dedup_key <> '';

-- What claims walk. A row is in one of the two.
CREATE INDEX {p}outbox_due ON {p}outbox (lane, project_id, pk)
    WHERE dispatched_at IS NULL AND available_at IS NULL;
CREATE INDEX {p}outbox_scheduled ON {p}outbox (lane, available_at, pk)
    WHERE dispatched_at IS NULL AND available_at IS NOT NULL;

CREATE TABLE {p}delivery (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_pk      bigint NOT NULL,
    message_id    uuid NOT NULL,
    project_id    text COLLATE "C" NOT NULL,
    trigger_name  text COLLATE "C" NOT NULL,
    resource      text COLLATE "C" NOT NULL,
    aggregate_id  text COLLATE "C" NOT NULL,
    event_name    text COLLATE "C" NOT NULL,
    lane          smallint NOT NULL,
    -- 0 for the event's own delivery, else the number of the replay.
    generation    integer NOT NULL DEFAULT 0,
    -- 0 in no order, 1 in the order of events, 2 among re-driven ones alone.
    chain         smallint NOT NULL,
    state         text COLLATE "C" NOT NULL CHECK (state IN ('ready', 'blocked', 'done', 'dead')),
    cause         text COLLATE "C" NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    due_at        bigint NOT NULL,
    claims        integer NOT NULL DEFAULT 0,
    claim_id      uuid,
    claimed_until bigint,
    last_kind     text COLLATE "C",
    last_error    text,
    created_at    bigint NOT NULL,
    ended_at      bigint,
    CONSTRAINT {p}delivery_once UNIQUE (event_pk, trigger_name, generation)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX {p}delivery_ready ON {p}delivery (project_id, trigger_name, lane, due_at, id)
    WHERE state = 'ready';
-- No other index covers open deliveries: the planner would take it for this one.
CREATE INDEX {p}delivery_run ON {p}delivery (project_id, resource, aggregate_id, trigger_name, chain, event_pk)
    WHERE state IN ('ready', 'blocked') AND chain > 0;
CREATE INDEX {p}delivery_dead ON {p}delivery (project_id, trigger_name, id)
    WHERE state = 'dead';

CREATE TABLE {p}attempt (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_pk     bigint NOT NULL,
    message_id   uuid NOT NULL,
    project_id   text COLLATE "C" NOT NULL,
    trigger_name text COLLATE "C" NOT NULL,
    number       integer NOT NULL,
    digest       text COLLATE "C",
    started_at   bigint NOT NULL,
    duration_us  bigint NOT NULL,
    cpu_us       bigint NOT NULL,
    memory_bytes bigint NOT NULL,
    kind         text COLLATE "C",
    error        text,
    logs_json    text
);

CREATE INDEX {p}attempt_event ON {p}attempt (event_pk);
CREATE INDEX {p}attempt_trigger ON {p}attempt (project_id, trigger_name, id);

CREATE TABLE {p}state (
    project_id   text COLLATE "C" NOT NULL,
    trigger_name text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    value        bytea NOT NULL,
    version      bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (project_id, trigger_name, key)
) WITH (fillfactor = 70);

CREATE TABLE {p}lane (
    lane        smallint PRIMARY KEY,
    holder      uuid,
    lease_until bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);

INSERT INTO {p}lane (lane) SELECT generate_series(0, {lanes} - 1);

-- Totals that would be slow to count; spread over shards, so that hosts don't
-- wait for each other.
CREATE TABLE {p}counter (
    project_id   text COLLATE "C" NOT NULL,
    trigger_name text COLLATE "C" NOT NULL,
    shard        smallint NOT NULL,
    done         bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (project_id, trigger_name, shard)
) WITH (fillfactor = 20);

CREATE TABLE {p}operation (
    id          uuid PRIMARY KEY,
    project_id  text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    filter_json text NOT NULL,
    max_items   bigint,
    state       text COLLATE "C" NOT NULL CHECK (state IN ('running', 'done', 'cancelled')),
    total       bigint NOT NULL,
    done        bigint NOT NULL DEFAULT 0,
    position    bigint NOT NULL DEFAULT 0,
    last_id     bigint NOT NULL,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL
);

-- Wake-up. Hosts that have nothing to do write into this sequence until when
-- they want to be told of new events; a sequence, since no snapshot hides its
-- value. A notification takes an instance-wide lock at commit, so none is sent
-- while hosts are busy.
CREATE SEQUENCE {p}asleep_until AS bigint MINVALUE 0 START 0;

CREATE FUNCTION {p}wake() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF (SELECT last_value FROM {p}asleep_until) > (extract(epoch FROM clock_timestamp()) * 1000)::bigint THEN
        PERFORM pg_notify('{p}wake', '');
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER {p}wake AFTER INSERT ON {p}outbox
    FOR EACH STATEMENT EXECUTE FUNCTION {p}wake();

-- Control: what operators and authors define. No query joins it with the data.

CREATE TABLE {p}control_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
) WITH (fillfactor = 20);

INSERT INTO {p}control_version (version) VALUES (1);

CREATE TABLE {p}project (
    name       text COLLATE "C" PRIMARY KEY,
    enabled    boolean NOT NULL DEFAULT true,
    created_at bigint NOT NULL
);

CREATE TABLE {p}plugin (
    project_id    text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    active_digest text COLLATE "C" NOT NULL,
    created_at    bigint NOT NULL,
    PRIMARY KEY (project_id, name)
);

CREATE TABLE {p}plugin_version (
    project_id  text COLLATE "C" NOT NULL,
    plugin_name text COLLATE "C" NOT NULL,
    digest      text COLLATE "C" NOT NULL,
    info_json   text NOT NULL,
    component   bytea NOT NULL,
    created_at  bigint NOT NULL,
    PRIMARY KEY (project_id, plugin_name, digest)
);

CREATE INDEX {p}plugin_version_digest ON {p}plugin_version (project_id, digest);

CREATE TABLE {p}trigger (
    project_id  text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    spec_json   text NOT NULL,
    paused      text,
    revision    bigint NOT NULL,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    PRIMARY KEY (project_id, name)
);

CREATE TABLE {p}secret (
    project_id text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    sealed     bytea NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (project_id, name)
);

CREATE TABLE {p}api_key (
    id         uuid PRIMARY KEY,
    name       text,
    project_id text COLLATE "C",
    role       text COLLATE "C" NOT NULL,
    hash       bytea NOT NULL UNIQUE,
    created_at bigint NOT NULL,
    expires_at bigint
);

CREATE TABLE {p}host (
    id           uuid PRIMARY KEY,
    name         text NOT NULL,
    version      text NOT NULL,
    started_at   bigint NOT NULL,
    heartbeat_at bigint NOT NULL
);
