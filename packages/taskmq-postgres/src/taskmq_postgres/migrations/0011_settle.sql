-- What workers say of their deliveries. Rows by kind: 's' a result that is not ok (n, status, reason); 'a' held
-- rows with attention (job, token as status, n has the bits); one 'h': n is the head, at now.

-- Nothing but ends, by one statement, as far as they are held. Without nested loops: both tables are met by
-- number, bounded by ANY, whatever the planner knows of them; it would join a batch of 100 pair by pair else.
CREATE FUNCTION {end_all_1}(
    numbers bigint[], tokens text[], finals text[], agos float8[], result_kinds text[], datas bytea[],
    whys bytea[], metas bytea[], storeds boolean[], at float8, OUT done bigint[], OUT hooked integer
) LANGUAGE plpgsql SET enable_nestloop = off AS $taskmq$
BEGIN
    WITH said AS MATERIALIZED (
        SELECT * FROM unnest(numbers, tokens, finals, agos, result_kinds, datas, whys, metas, storeds)
            AS t (job, token, final, ago, result_kind, data, why, meta, stored)
    ), gone AS (
        -- "+ 0" keeps it off the index of leases.
        DELETE FROM {messages} m USING said t
        WHERE m.job = t.job AND m.token = t.token AND m.phase + 0 = 6 AND m.job = ANY(numbers)
        RETURNING m.job, m.token, m.hooks, m.attempt, m.deliveries, m.yields, m.reserved_at, m.worker,
            coalesce(m.started_at, at - t.ago) AS started_at, coalesce(t.final, 'SUCCEEDED') AS final,
            t.result_kind, t.data, t.why, t.meta, t.stored
    ), written AS (
        UPDATE {jobs} j SET state = g.final, finished_at = at, started_at = g.started_at,
            reserved_at = g.reserved_at, attempt = g.attempt, deliveries = g.deliveries,
            yields = g.yields, worker = g.worker, token = g.token, result_type = g.result_kind,
            result = g.data, error = g.why, meta = coalesce(g.meta, j.meta), outcome = NULL,
            hooks = CASE WHEN g.stored THEN g.hooks | 1024 ELSE g.hooks END
        FROM gone g WHERE j.job = g.job AND j.job = ANY(numbers) RETURNING j.job, j.job_ttl, j.hooks
    ), kept AS (
        INSERT INTO {endings} (at, jobs)
        SELECT at + w.job_ttl, array_agg(w.job) FROM written w GROUP BY w.job_ttl
    )
    SELECT array_agg(w.job), bit_or(w.hooks) INTO done, hooked FROM written w;
END $taskmq$;

-- Keys and slots of jobs that ended together.
CREATE FUNCTION {after_ends_1}(ended bigint[], at float8) RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    m {messages};
    j record;
BEGIN
    PERFORM {free_key_1}(ARRAY(
        SELECT e.job FROM {jobs} e WHERE e.job = ANY(ended)
            AND (e.hooks & 16 <> 0 OR (e.hooks & 4 <> 0 AND e.state <> 'SUCCEEDED'))
    ));
    FOR j IN
        SELECT e.job, e.concurrency_key FROM {jobs} e WHERE e.job = ANY(ended) AND e.hooks & 2 <> 0
        ORDER BY e.concurrency_key, e.job
    LOOP
        m := NULL;
        m.job := j.job;
        m.concurrency_key := j.concurrency_key;
        m.phase := 6;
        PERFORM {leave_slot_1}(m, at);
    END LOOP;
END $taskmq$;

-- What a worker hears with each answer: its held rows with attention, and the head of its queues.
CREATE FUNCTION {look_1}(me text, names text[], at float8)
RETURNS TABLE (kind text, n integer, status text, reason text, job bigint, at_ float8)
LANGUAGE plpgsql AS $taskmq$
#variable_conflict use_column
DECLARE
    holds_last boolean := false;
BEGIN
    RETURN QUERY SELECT 'a', m.attention::integer, m.token, NULL::text, m.job, NULL::float8
    FROM {messages} m WHERE m.worker = me AND m.attention <> 0;
    IF FOUND THEN
        holds_last := EXISTS (SELECT 1 FROM {messages} m WHERE m.worker = me AND m.attention & 2 <> 0);
    END IF;
    RETURN QUERY SELECT 'h', {head_1}(names, holds_last, 9, ARRAY[]::bigint[],
        EXISTS (SELECT 1 FROM {floors} f WHERE f.queue = ANY(names))), NULL::text, NULL::text,
        NULL::bigint, at;
END $taskmq$;

CREATE FUNCTION {settle_1}(
    me text, names text[], numbers bigint[], tokens text[], kinds text[], finals text[], agos float8[],
    delays float8[], result_kinds text[], datas bytea[], whys bytea[], metas bytea[], storeds boolean[],
    envelopes bytea[]
) RETURNS TABLE (kind text, n integer, status text, reason text, job bigint, at_ float8)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
#variable_conflict use_column
DECLARE
    at float8 := {now}();
    done bigint[];
    hooked integer;
    item record;
    answer record;
BEGIN
    IF kinds IS NULL THEN
        SELECT e.done, e.hooked INTO done, hooked FROM {end_all_1}(numbers, tokens, finals, agos, result_kinds,
            datas, whys, metas, storeds, at) e;
    ELSE
        -- Without a kind are the ends of jobs that the call names once.
        SELECT e.done, e.hooked INTO done, hooked FROM (
            SELECT array_agg(t.job) AS jobs, array_agg(t.token) AS tokens, array_agg(t.final) AS finals,
                array_agg(t.ago) AS agos, array_agg(t.result_kind) AS result_kinds, array_agg(t.data) AS datas,
                array_agg(t.why) AS whys, array_agg(t.meta) AS metas, array_agg(t.stored) AS storeds
            FROM unnest(numbers, tokens, kinds, finals, agos, result_kinds, datas, whys, metas, storeds)
                AS t (job, token, kind, final, ago, result_kind, data, why, meta, stored)
            WHERE t.kind IS NULL
        ) g, LATERAL {end_all_1}(g.jobs, g.tokens, g.finals, g.agos, g.result_kinds, g.datas, g.whys, g.metas,
            g.storeds, at) e
        WHERE g.jobs IS NOT NULL;
    END IF;
    IF done IS NOT NULL THEN
        IF hooked & 23 <> 0 THEN
            PERFORM {after_ends_1}(done, at);
        END IF;
        IF hooked & 1 <> 0 THEN
            PERFORM {follow_1}(done, at);
        ELSE
            PERFORM {tell_1}(done, at);
        END IF;
    END IF;
    IF coalesce(array_length(done, 1), 0) < array_length(numbers, 1) THEN
        PERFORM {lock_1}(numbers);
        FOR item IN
            SELECT * FROM unnest(numbers, tokens, kinds, finals, agos, delays, result_kinds, datas, whys, metas,
                storeds, envelopes) WITH ORDINALITY
                AS t (job, token, kind, final, ago, delay, result_kind, data, why, meta, stored, envelope, n)
            WHERE done IS NULL OR t.job <> ALL(done) ORDER BY t.n
        LOOP
            SELECT s.status, s.reason INTO answer FROM {settle_one_1}(item.job, item.token,
                coalesce(item.kind, 'ack'), coalesce(item.final, 'SUCCEEDED'), item.ago, item.delay,
                item.result_kind, item.data, item.why, item.meta, item.stored, item.envelope, at) s;
            IF answer.status <> 'ok' THEN
                RETURN QUERY SELECT 's', item.n::integer, answer.status::text, answer.reason::text,
                    NULL::bigint, NULL::float8;
            END IF;
        END LOOP;
    END IF;
    RETURN QUERY SELECT * FROM {look_1}(me, names, at);
END $taskmq$;
