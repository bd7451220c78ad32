-- Messages come in. Columns that no message of the call needs are NULL instead of arrays; what a message has
-- several of is an array as text.
-- Answers a row (n, status, id) for each message that was not created; (0, 'fenced') stored nothing.

-- Takes the idempotency key for a new job, unless it belongs to another: the owner's id then.
CREATE FUNCTION {take_key_1}(
    wanted text, number bigint, new_id text, ttl float8, at float8, batch bigint[]
) RETURNS text LANGUAGE plpgsql AS $taskmq$
DECLARE
    owner text;
BEGIN
    LOOP
        INSERT INTO {keys} AS k (key, job, id, until, look_at)
        VALUES (wanted, number, new_id, at + ttl, at + ttl)
        ON CONFLICT (key) DO UPDATE SET job = excluded.job, id = excluded.id, until = excluded.until,
            look_at = excluded.look_at
        WHERE k.until <= at AND k.job <> ALL(batch)
            AND NOT EXISTS (SELECT 1 FROM {messages} m WHERE m.job = k.job);
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT id INTO owner FROM {keys} WHERE key = wanted;
        IF FOUND THEN
            RETURN owner;
        END IF;
        -- Freed in between: once more.
    END LOOP;
END $taskmq$;

CREATE FUNCTION {enqueue_1}(
    ids text[], tasks text[], queues text[], priorities smallint[], envelopes bytea[],
    max_deliverieses integer[], job_ttls float8[], delays float8[], etas float8[], expireses float8[],
    leases float8[], hookses integer[], runs text[], steps text[], keys_ text[], key_ttls float8[],
    concurrency_keys text[], concurrency_limits integer[], max_yieldses integer[], guards text[],
    needs integer[], rules text[], tolerates integer[], finishes boolean[], otherwises text[],
    successorses text[], tolerants text[],
    fence text DEFAULT NULL, fence_token bigint DEFAULT NULL, foreign_ boolean DEFAULT false
) RETURNS TABLE (n integer, status text, id text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
#variable_conflict use_column
DECLARE
    at float8 := {now}();
    total integer := array_length(ids, 1);
    numbers bigint[] := ARRAY(SELECT nextval({'numbers}) FROM generate_series(1, total));
    wanted bigint[] := numbers;
    made bigint[];
    key_of record;
    owner text;
BEGIN
    IF fence IS NOT NULL THEN
        PERFORM 1 FROM {leases} WHERE name = fence AND token = fence_token AND owner IS NOT NULL
            AND until > at FOR SHARE;
        IF NOT FOUND THEN
            RETURN QUERY SELECT 0, 'fenced', NULL::text;
            RETURN;
        END IF;
    END IF;
    IF keys_ IS NOT NULL THEN
        -- By key, so that two calls never wait for each other crosswise; in a key the first message wins.
        FOR key_of IN
            SELECT k.key, k.n, ids[k.n] AS id, EXISTS (SELECT 1 FROM {jobs} j WHERE j.id = ids[k.n]) AS old
            FROM unnest(keys_) WITH ORDINALITY AS k (key, n) WHERE k.key IS NOT NULL ORDER BY k.key, k.n
        LOOP
            owner := CASE WHEN key_of.old THEN key_of.id ELSE {take_key_1}(
                key_of.key, numbers[key_of.n], key_of.id, key_ttls[key_of.n], at, numbers) END;
            IF owner IS NOT NULL THEN
                wanted[key_of.n] := NULL;
                RETURN QUERY SELECT key_of.n::integer,
                    CASE WHEN owner = key_of.id THEN 'exists' ELSE 'duplicate' END, owner;
            END IF;
        END LOOP;
    END IF;
    INSERT INTO {jobs} (job, enqueued_at, expires_at, job_ttl, max_deliveries, max_yields, hooks, priority,
        id, task, queue, run, step, key, key_ttl, concurrency_key, concurrency_limit, guard, lease, envelope,
        successors, tolerant)
    SELECT t.job, at, at + t.expires, t.job_ttl, t.max_deliveries, coalesce(t.max_yields, 100),
        coalesce(t.hooks, 0), t.priority, t.id, t.task, t.queue, t.run, t.step, t.key, t.key_ttl,
        t.concurrency_key, t.concurrency_limit, t.guard, t.lease, t.envelope,
        t.successors::text[], t.tolerant::boolean[]
    FROM unnest(wanted, ids, tasks, queues, priorities, envelopes, max_deliverieses, job_ttls, expireses,
            leases, hookses, runs, steps, keys_, key_ttls, concurrency_keys, concurrency_limits, max_yieldses,
            guards, successorses, tolerants)
        AS t (job, id, task, queue, priority, envelope, max_deliveries, job_ttl, expires, lease, hooks, run,
            step, key, key_ttl, concurrency_key, concurrency_limit, max_yields, guard, successors, tolerant)
    WHERE t.job IS NOT NULL
    ON CONFLICT (id) DO NOTHING;
    GET DIAGNOSTICS total = ROW_COUNT;
    IF total < array_length(ids, 1) THEN
        made := ARRAY(SELECT j.job FROM {jobs} j WHERE j.job = ANY(wanted));
        RETURN QUERY SELECT t.n::integer, 'exists', ids[t.n]
            FROM unnest(wanted) WITH ORDINALITY AS t (job, n)
            WHERE t.job IS NOT NULL AND t.job <> ALL(made);
        IF keys_ IS NOT NULL THEN
            DELETE FROM {keys} k WHERE k.job = ANY(wanted) AND k.job <> ALL(made);
        END IF;
        wanted := ARRAY(SELECT CASE WHEN t.job = ANY(made) THEN t.job END
            FROM unnest(wanted) WITH ORDINALITY AS t (job, n) ORDER BY t.n);
    END IF;
    IF needs IS NULL AND hookses IS NULL AND delays IS NULL AND etas IS NULL THEN
        INSERT INTO {messages} (job, place, priority, phase, queue, max_deliveries, lease, expires_at)
        SELECT t.job, t.job, t.priority, 1, t.queue, t.max_deliveries, t.lease, at + t.expires
        FROM unnest(wanted, queues, priorities, max_deliverieses, expireses, leases)
            AS t (job, queue, priority, max_deliveries, expires, lease)
        WHERE t.job IS NOT NULL;
    ELSE
        INSERT INTO {messages} (job, place, priority, phase, rank, queue, max_deliveries, lease, expires_at,
            hooks, concurrency_key)
        SELECT t.job, t.job, t.priority,
            CASE WHEN t.need IS NOT NULL THEN 9 WHEN d.due > at THEN 4
                WHEN t.hooks & 2048 <> 0 THEN 3 ELSE 1 END,
            CASE WHEN t.need IS NULL AND d.due > at THEN d.due ELSE 0 END,
            t.queue, t.max_deliveries, t.lease, at + t.expires, coalesce(t.hooks, 0), t.concurrency_key
        FROM unnest(wanted, queues, priorities, max_deliverieses, delays, etas, expireses, leases, hookses,
                concurrency_keys, needs)
            AS t (job, queue, priority, max_deliveries, delay, eta, expires, lease, hooks, concurrency_key,
                need),
            LATERAL (SELECT coalesce(at + t.delay, t.eta) AS due) d
        WHERE t.job IS NOT NULL;
        IF needs IS NOT NULL THEN
            PERFORM {hold_all_1}(wanted, delays, etas, needs, rules, tolerates, finishes, otherwises, at);
        END IF;
    END IF;
    PERFORM 1 FROM {sleepers} WHERE until > at LIMIT 1;
    IF FOUND THEN
        PERFORM {wake_1}(array_agg(w.queue), array_agg(w.total), at, foreign_) FROM (
            SELECT q.name AS queue, count(*) AS total FROM unnest(queues) AS q (name) GROUP BY q.name
        ) w;
    END IF;
END $taskmq$;

-- Holds of what has just been inserted. A hold of nothing is released at once.
CREATE FUNCTION {hold_all_1}(
    numbers bigint[], delays float8[], etas float8[], needs integer[], rules text[], tolerates integer[],
    finishes boolean[], otherwises text[], at float8
) RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    bar {barriers};
    ended bigint[] := ARRAY[]::bigint[];
BEGIN
    INSERT INTO {barriers} (job, need, rule, tolerate, finish, otherwise, delay, eta)
    SELECT t.job, t.need, t.rule, t.tolerate, t.finish, t.otherwise, t.delay, t.eta
    FROM unnest(numbers, needs, rules, tolerates, finishes, otherwises, delays, etas)
        AS t (job, need, rule, tolerate, finish, otherwise, delay, eta)
    WHERE t.job IS NOT NULL AND t.need IS NOT NULL;
    FOR bar IN
        SELECT b.* FROM unnest(numbers, needs) WITH ORDINALITY AS t (job, need, n)
        JOIN {barriers} b ON b.job = t.job WHERE t.need <= 0 ORDER BY t.n
    LOOP
        IF {resolve_1}(bar, at, '', 'ok') THEN
            ended := ended || bar.job;
        END IF;
    END LOOP;
    IF ended <> ARRAY[]::bigint[] THEN
        PERFORM {follow_1}(ended, at);
    END IF;
END $taskmq$;

-- One plain message: no key, no hold, nothing rare.
CREATE FUNCTION {enqueue_one_1}(
    new_id text, task_ text, named text, level smallint, envelope_ bytea, max_deliveries_ integer,
    job_ttl_ float8, delay float8, eta float8, expires float8, lease_ float8, foreign_ boolean
) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    at float8 := {now}();
    due float8 := coalesce(at + delay, eta);
    number bigint;
BEGIN
    INSERT INTO {jobs} (job, enqueued_at, expires_at, job_ttl, max_deliveries, priority, id, task, queue, lease,
        envelope)
    VALUES (nextval({'numbers}), at, at + expires, job_ttl_, max_deliveries_, level, new_id, task_, named, lease_,
        envelope_)
    ON CONFLICT (id) DO NOTHING RETURNING job INTO number;
    IF number IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO {messages} (job, place, priority, phase, rank, queue, max_deliveries, lease, expires_at)
    VALUES (number, number, level, CASE WHEN due > at THEN 4 ELSE 1 END, CASE WHEN due > at THEN due ELSE 0 END,
        named, max_deliveries_, lease_, at + expires);
    PERFORM 1 FROM {sleepers} WHERE until > at LIMIT 1;
    IF FOUND THEN
        PERFORM {wake_1}(ARRAY[named], ARRAY[1::bigint], at, foreign_);
    END IF;
    RETURN true;
END $taskmq$;
