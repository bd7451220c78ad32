-- Records as callers read them, dead letters, and purging.

-- The columns in the order in which `records.py` reads them.
CREATE VIEW {records_1} AS
SELECT j.job, j.id, j.task, coalesce(m.queue, j.queue) AS queue,
    CASE WHEN j.state IS NOT NULL THEN j.state WHEN m.phase IN (6, 7) THEN 'RUNNING'
        WHEN m.phase = 8 THEN 'WAITING' WHEN m.phase = 9 THEN 'PENDING'
        WHEN m.retrying THEN 'RETRYING' ELSE 'QUEUED' END AS state,
    coalesce(m.priority, j.priority)::integer AS priority,
    coalesce(m.attempt, j.attempt) AS attempt, coalesce(m.deliveries, j.deliveries) AS deliveries,
    j.max_deliveries, coalesce(m.yields, j.yields) AS yields, j.series, j.enqueued_at,
    CASE WHEN m.phase = 4 THEN m.rank END AS due_at, j.expires_at,
    coalesce(m.reserved_at, j.reserved_at) AS reserved_at, coalesce(m.started_at, j.started_at) AS started_at,
    j.finished_at, coalesce(m.worker, j.worker) AS worker, coalesce(m.token, j.token) AS token,
    coalesce(m.hooks, j.hooks) AS hooks, m.phase = 5 AS blocked, d.job IS NOT NULL AS dead,
    j.result_type, j.result, j.error, j.meta, j.key, j.concurrency_key, j.run, j.step, j.successors, j.tolerant,
    b.need, b.arrived, b.rule, b.tolerate, b.finish, b.otherwise
FROM {jobs} j
LEFT JOIN LATERAL (SELECT * FROM {messages} h WHERE h.job = j.job LIMIT 1) m ON true
LEFT JOIN LATERAL (SELECT * FROM {dead} h WHERE h.job = j.job LIMIT 1) d ON true
LEFT JOIN LATERAL (SELECT * FROM {barriers} h WHERE h.job = j.job LIMIT 1) b ON true;

-- LATERAL, and functions around it: looked up by number, whatever the planner knows of the tables.
CREATE FUNCTION {get_jobs_1}(ids text[]) RETURNS SETOF {records_1}
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    RETURN QUERY SELECT * FROM {records_1} r WHERE r.id = ANY(ids);
END $taskmq$;

-- How jobs stand, and their results: a join reads no more of its thousands. What has ended has no message.
CREATE FUNCTION {get_results_1}(ids text[])
RETURNS TABLE (id text, state text, result_type text, result bytea)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    RETURN QUERY SELECT j.id, CASE WHEN j.state IS NOT NULL THEN j.state WHEN m.phase IN (6, 7) THEN 'RUNNING'
            WHEN m.phase = 8 THEN 'WAITING' WHEN m.phase = 9 THEN 'PENDING'
            WHEN m.retrying THEN 'RETRYING' ELSE 'QUEUED' END, j.result_type, j.result
    FROM {jobs} j
    LEFT JOIN LATERAL (
        SELECT h.phase, h.retrying FROM {messages} h WHERE h.job = j.job AND j.state IS NULL LIMIT 1
    ) m ON true
    WHERE j.id = ANY(ids);
END $taskmq$;

CREATE FUNCTION {get_envelopes_1}(ids text[]) RETURNS TABLE (id text, envelope bytea)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    RETURN QUERY SELECT j.id, j.envelope FROM {jobs} j WHERE j.id = ANY(ids);
END $taskmq$;

-- Between two ids, in their order or against it.
CREATE FUNCTION {list_jobs_1}(
    first_ text, before_ text, states text[], named text, task_ text, most integer, backwards boolean
) RETURNS SETOF {records_1}
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    IF backwards THEN
        RETURN QUERY SELECT * FROM {records_1} r
        WHERE r.id >= first_ AND (before_ IS NULL OR r.id < before_)
            AND (states IS NULL OR r.state = ANY(states)) AND (named IS NULL OR r.queue = named)
            AND (task_ IS NULL OR r.task = task_)
        ORDER BY r.id DESC LIMIT most;
    ELSE
        RETURN QUERY SELECT * FROM {records_1} r
        WHERE r.id >= first_ AND (before_ IS NULL OR r.id < before_)
            AND (states IS NULL OR r.state = ANY(states)) AND (named IS NULL OR r.queue = named)
            AND (task_ IS NULL OR r.task = task_)
        ORDER BY r.id LIMIT most;
    END IF;
END $taskmq$;

CREATE VIEW {letters_1} AS
SELECT j.id, j.task, d.queue, j.priority::integer AS priority, d.died_at, j.attempt, j.deliveries, j.error,
    j.envelope, d.job
FROM {dead} d CROSS JOIN LATERAL (SELECT * FROM {jobs} h WHERE h.job = d.job LIMIT 1) j;

-- Dead letters, oldest first, after one of them.
CREATE FUNCTION {list_dead_1}(after_at float8, after_job bigint, named text, most integer)
RETURNS SETOF {letters_1} LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    RETURN QUERY SELECT * FROM {letters_1} d
    WHERE (d.died_at, d.job) > (after_at, after_job) AND (named IS NULL OR d.queue = named)
    ORDER BY d.died_at, d.job LIMIT most;
END $taskmq$;

CREATE FUNCTION {get_dead_1}(wanted text) RETURNS SETOF {letters_1} LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    RETURN QUERY SELECT * FROM {letters_1} d WHERE d.job = (SELECT j.job FROM {jobs} j WHERE j.id = wanted);
END $taskmq$;

CREATE FUNCTION {purge_dead_1}(ids text[], named text) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    RETURN {drop_dead_1}(ARRAY(
        SELECT d.job FROM {dead} d JOIN {jobs} j ON j.job = d.job
        WHERE (ids IS NULL OR j.id = ANY(ids)) AND (named IS NULL OR d.queue = named)
        ORDER BY d.job FOR UPDATE OF d
    ), {now}());
END $taskmq$;

CREATE FUNCTION {purge_1}(named text, most integer, OUT removed integer, OUT more boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    at float8 := {now}();
    m {messages};
    ended bigint[] := ARRAY[]::bigint[];
    found_ bigint[];
BEGIN
    found_ := ARRAY(
        (SELECT job FROM {messages} WHERE phase <= 2 AND queue = named LIMIT most + 1)
        UNION ALL (SELECT job FROM {messages} WHERE phase = 3 AND queue = named LIMIT most + 1)
        UNION ALL (SELECT job FROM {messages} WHERE phase = 4 AND queue = named LIMIT most + 1)
        UNION ALL (SELECT job FROM {messages} WHERE phase = 5 AND queue = named LIMIT most + 1)
        LIMIT most + 1
    );
    more := array_length(found_, 1) > most;
    FOR m IN
        SELECT * FROM {messages} WHERE job = ANY(found_[1:most]) AND phase <= 5
        ORDER BY concurrency_key NULLS FIRST, job FOR UPDATE
    LOOP
        -- An earlier one's end may have let this one in.
        PERFORM {end_1}(m, 'REVOKED', at, {error_1}('purged', 'the queue ' || named || ' was purged'), false);
        ended := ended || m.job;
    END LOOP;
    removed := array_length(ended, 1);
    removed := coalesce(removed, 0);
    more := coalesce(more, false);
    IF removed > 0 THEN
        PERFORM {follow_1}(ended, at);
    END IF;
END $taskmq$;

-- Counts by queue, priority and phase; what is due counts as ready, though nobody has come to promote it.
-- `born` is when the first in its place of what is ready was enqueued.
CREATE FUNCTION {stats_1}(named text[])
RETURNS TABLE (queue text, priority integer, phase integer, total bigint, born float8, now_ float8)
LANGUAGE plpgsql SET jit = off AS $taskmq$
#variable_conflict use_column
DECLARE
    at float8 := {now}();
BEGIN
    RETURN QUERY SELECT g.queue, g.priority, g.phase, g.total, j.enqueued_at, at FROM (
        SELECT m.queue, m.priority::integer AS priority, p.phase, count(*) AS total, min(m.place) AS first_,
            min(m.job) FILTER (WHERE p.phase <= 3) AS job
        FROM {messages} m,
            LATERAL (SELECT CASE WHEN m.phase = 4 AND m.rank <= at THEN 1 ELSE m.phase END::integer AS phase) p
        WHERE named IS NULL OR m.queue = ANY(named)
        GROUP BY m.queue, m.priority, p.phase
    ) g LEFT JOIN {jobs} j ON j.job = g.job;
    RETURN QUERY SELECT d.queue, 0, 10, count(*), NULL::float8, at FROM {dead} d
        WHERE named IS NULL OR d.queue = ANY(named) GROUP BY d.queue;
END $taskmq$;
