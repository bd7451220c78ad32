-- The tables. `{name}` stands for a quoted name with schema and prefix, `{-name}` for one without schema
-- (indexes), `{'name}` for the first as a literal.
--
-- Times are seconds of the epoch. Payloads and errors are bytea: no text is refused for what is in it.
--
-- messages.phase: 1 ready, 2 ready at its last chance, 3 ready and external, 4 delayed, 5 blocked (in its
-- key's line), 6 leased, 7 acknowledged before the work, 8 parked, 9 held. `rank` is when: due (4), the end
-- of the lease (6, 7), the time-out (8).
-- hooks: 1 successors, 2 concurrency key, 4 idempotency key, 8 freed at the start, 16 freed at any end,
-- 32 run, 64 hold, 128 a completion is kept, 256 an outcome is handed over, 512 cancelled, 1024 the
-- result is stored elsewhere, 2048 external.
-- messages.attention: 1 cancelled, 2 last chance, 4 to be ended by force.

CREATE SEQUENCE {numbers};

CREATE TABLE {jobs} (
    job bigint PRIMARY KEY,
    enqueued_at float8 NOT NULL,
    finished_at float8,
    reserved_at float8,
    started_at float8,
    expires_at float8,
    job_ttl float8 NOT NULL,
    series integer NOT NULL DEFAULT 1,
    attempt integer NOT NULL DEFAULT 1,
    deliveries integer NOT NULL DEFAULT 0,
    max_deliveries integer NOT NULL,
    yields integer NOT NULL DEFAULT 0,
    max_yields integer NOT NULL DEFAULT 100,
    hooks integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    id text COLLATE "C" NOT NULL,
    task text NOT NULL,
    queue text NOT NULL,
    state text,                        -- of what has ended; NULL while its message lives
    worker text,
    token text,
    run text,
    step text,
    key text,
    key_ttl float8,
    concurrency_key text,
    concurrency_limit integer,
    guard text,
    successors text[],
    tolerant boolean[],
    lease float8,
    error bytea,
    meta bytea,
    outcome bytea,
    result_type text,
    result bytea,
    envelope bytea NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE UNIQUE INDEX {-jobs_id} ON {jobs} (id);

CREATE TABLE {messages} (
    job bigint PRIMARY KEY,
    place bigint NOT NULL,
    rank float8 NOT NULL DEFAULT 0,
    lease float8,
    expires_at float8,
    reserved_at float8,
    started_at float8,
    hooks integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 1,
    deliveries integer NOT NULL DEFAULT 0,
    max_deliveries integer NOT NULL,
    yields integer NOT NULL DEFAULT 0,
    phase smallint NOT NULL,
    priority smallint NOT NULL,
    attention smallint NOT NULL DEFAULT 0,
    retrying boolean NOT NULL DEFAULT false,
    queue text NOT NULL,
    worker text,
    token text,
    concurrency_key text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000,
    autovacuum_vacuum_cost_delay = 1);
CREATE INDEX {-messages_ready} ON {messages} (queue, priority DESC, place) WHERE phase <= 2;
CREATE INDEX {-messages_external} ON {messages} (queue) WHERE phase = 3;
CREATE INDEX {-messages_delayed} ON {messages} (queue, rank) WHERE phase = 4;
CREATE INDEX {-messages_blocked} ON {messages} (concurrency_key, priority DESC, place) WHERE phase = 5;
CREATE INDEX {-messages_over} ON {messages} (rank) WHERE phase BETWEEN 6 AND 8;
CREATE INDEX {-messages_expiring} ON {messages} (expires_at) WHERE expires_at IS NOT NULL AND phase <= 5;
CREATE INDEX {-messages_attention} ON {messages} (worker) WHERE attention <> 0;

-- Where the ready messages of a queue and band begin, while dead rows before it can't be vacuumed; see
-- 0006_floors.sql. Empty in normal times.
CREATE TABLE {floors} (
    queue text NOT NULL, priority smallint NOT NULL, place bigint NOT NULL, until float8 NOT NULL,
    PRIMARY KEY (queue, priority)
) WITH (fillfactor = 50);

CREATE TABLE {dead} (job bigint PRIMARY KEY, queue text NOT NULL, died_at float8 NOT NULL);
CREATE INDEX {-dead_line} ON {dead} (died_at, job);

-- What a held message waits for, and what has come.
CREATE TABLE {barriers} (
    job bigint PRIMARY KEY,
    need integer NOT NULL,
    arrived integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    rule text NOT NULL,
    tolerate integer NOT NULL,
    finish boolean NOT NULL,
    otherwise text NOT NULL,
    delay float8,
    eta float8
) WITH (fillfactor = 50);
CREATE TABLE {arrivals} (
    target bigint NOT NULL, source text COLLATE "C" NOT NULL, series integer NOT NULL, verdict text NOT NULL,
    PRIMARY KEY (target, source)
);
CREATE INDEX {-arrivals_source} ON {arrivals} (source);

CREATE TABLE {keys} (
    key text COLLATE "C" PRIMARY KEY, job bigint NOT NULL, id text NOT NULL, until float8 NOT NULL,
    look_at float8 NOT NULL
);
CREATE INDEX {-keys_look_at} ON {keys} (look_at);
CREATE TABLE {slots} (key text COLLATE "C" PRIMARY KEY, used integer NOT NULL) WITH (fillfactor = 50);
CREATE INDEX {-slots_free} ON {slots} (key) WHERE used = 0;
CREATE TABLE {completions} (
    job bigint PRIMARY KEY, token text NOT NULL, completion bytea NOT NULL, state text NOT NULL,
    result_type text, result bytea, error bytea, retryable boolean NOT NULL
);
CREATE TABLE {spent} (
    job bigint NOT NULL, token text NOT NULL, until float8 NOT NULL, PRIMARY KEY (job, token)
);
CREATE INDEX {-spent_until} ON {spent} (until);
CREATE TABLE {endings} (at float8 NOT NULL, jobs bigint[] NOT NULL);
CREATE INDEX {-endings_at} ON {endings} (at);

CREATE TABLE {leases} (name text PRIMARY KEY, owner text, token bigint NOT NULL, until float8 NOT NULL);
CREATE SEQUENCE {fences};
CREATE TABLE {workers} (
    id text PRIMARY KEY, heartbeat_at float8 NOT NULL, stale_at float8 NOT NULL, info bytea NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE {rates} (
    name text PRIMARY KEY, free_at float8 NOT NULL, promised_until float8 NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE {facts} (name text PRIMARY KEY, value text NOT NULL);

-- Who sleeps, and for what: worth nothing after a crash. Found by time, so that what is long gone costs
-- nothing even while an old snapshot keeps it from being vacuumed.
CREATE UNLOGGED TABLE {sleepers} (
    until float8 NOT NULL, name text NOT NULL, channel text NOT NULL, queues text[] NOT NULL
);
CREATE INDEX {-sleepers_until} ON {sleepers} (until);
CREATE INDEX {-sleepers_name} ON {sleepers} (name);
CREATE UNLOGGED TABLE {watches} (
    job bigint NOT NULL, until float8 NOT NULL, name text NOT NULL, channel text NOT NULL
);
CREATE INDEX {-watches_job} ON {watches} (job);
CREATE INDEX {-watches_until} ON {watches} (until);
CREATE INDEX {-watches_name} ON {watches} (name);
