-- New series of ended jobs: `reopen`, and `replay_dead`, which is one.

-- The descendants to be held again: all of them, or the skipped ones and records without a task.
CREATE FUNCTION {descendants_1}(named bigint[], every boolean) RETURNS bigint[] LANGUAGE plpgsql AS $taskmq$
DECLARE
    found_ bigint[] := ARRAY[]::bigint[];
    wave bigint[] := named;
BEGIN
    WHILE array_length(wave, 1) > 0 LOOP
        wave := ARRAY(
            SELECT DISTINCT t.job FROM {jobs} s, unnest(s.successors) AS e (id)
            JOIN {jobs} t ON t.id = e.id JOIN {barriers} b ON b.job = t.job
            WHERE s.job = ANY(wave) AND t.job <> ALL(found_) AND t.job <> ALL(named)
                AND (every OR t.state = 'SKIPPED' OR b.finish)
            ORDER BY t.job
        );
        found_ := found_ || wave;
    END LOOP;
    RETURN found_;
END $taskmq$;

CREATE FUNCTION {anew_1}(numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    DELETE FROM {dead} WHERE job = ANY(numbers);
    DELETE FROM {completions} WHERE job = ANY(numbers);
    UPDATE {jobs} SET state = NULL, series = series + 1, attempt = 1, deliveries = 0, yields = 0,
        expires_at = NULL, reserved_at = NULL, started_at = NULL, finished_at = NULL, worker = NULL,
        token = NULL, error = NULL, outcome = NULL, result_type = NULL, result = NULL,
        hooks = hooks & ~(128 | 256 | 512 | 1024)
    WHERE job = ANY(numbers);
END $taskmq$;

CREATE FUNCTION {reopen_1}(
    ids text[], expect_ids text[], expect_series integer[], every boolean, new_queue text, new_priority integer,
    only_dead boolean, OUT status text, OUT reopened text[], OUT reason text
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    at float8 := {now}();
    named bigint[];
    held bigint[];
    again bigint[];
    queued bigint[];
    dependent bigint[];
    trouble record;
BEGIN
    status := 'refused';
    reopened := ARRAY[]::text[];
    reason := '';
    PERFORM 1 FROM {jobs} j WHERE j.id = ANY(ids) ORDER BY j.job FOR UPDATE;
    SELECT t.id, j.job, r.state, d.job AS dead INTO trouble FROM unnest(ids) WITH ORDINALITY AS t (id, n)
        LEFT JOIN {jobs} j ON j.id = t.id LEFT JOIN {records_1} r ON r.job = j.job
        LEFT JOIN {dead} d ON d.job = j.job
    WHERE j.state IS NULL OR (only_dead AND d.job IS NULL) ORDER BY t.n LIMIT 1;
    IF FOUND THEN
        reason := CASE WHEN trouble.job IS NULL THEN 'there is no job ' || trouble.id
            ELSE 'job ' || trouble.id || ' has not ended, it is ' || trouble.state END;
        RETURN;
    END IF;
    named := ARRAY(SELECT j.job FROM {jobs} j JOIN (
        SELECT t.id, min(t.n) AS n FROM unnest(ids) WITH ORDINALITY AS t (id, n) GROUP BY t.id
    ) o ON o.id = j.id ORDER BY o.n);
    held := {descendants_1}(named, every);
    PERFORM 1 FROM {barriers} b WHERE b.job = ANY(held) ORDER BY b.job FOR UPDATE;
    PERFORM 1 FROM {jobs} j WHERE j.job = ANY(held) ORDER BY j.job FOR UPDATE;
    SELECT r.id, r.state INTO trouble FROM {records_1} r WHERE r.job = ANY(held)
        AND r.state NOT IN ('PENDING', 'SUCCEEDED', 'FAILED', 'REVOKED', 'EXPIRED', 'SKIPPED') LIMIT 1;
    IF FOUND THEN
        reason := 'job ' || trouble.id || ', which depends on it, is ' || trouble.state;
        RETURN;
    END IF;
    SELECT e.id, e.series INTO trouble FROM unnest(expect_ids, expect_series) AS e (id, series)
        LEFT JOIN {jobs} j ON j.id = e.id WHERE j.series IS DISTINCT FROM e.series LIMIT 1;
    IF FOUND THEN
        reason := 'job ' || trouble.id || ' is not in series ' || trouble.series;
        RETURN;
    END IF;
    again := ARRAY(SELECT j.job FROM {jobs} j WHERE j.job = ANY(held) AND j.state IS NOT NULL
        ORDER BY array_position(held, j.job));
    dependent := {withdraw_1}(named || again);
    queued := ARRAY(SELECT j.job FROM {jobs} j LEFT JOIN {barriers} b ON b.job = j.job
        WHERE j.job = ANY(named) AND NOT coalesce(b.finish OR b.job = ANY(dependent), false)
        ORDER BY array_position(named, j.job));
    PERFORM {anew_1}(named || again);
    -- A new place at the tail, in the order named; the others are held again.
    IF new_queue IS NOT NULL OR new_priority IS NOT NULL THEN
        UPDATE {jobs} SET queue = coalesce(new_queue, queue), priority = coalesce(new_priority, priority)
        WHERE job = ANY(queued);
    END IF;
    INSERT INTO {messages} (job, place, priority, phase, queue, max_deliveries, lease, hooks, concurrency_key)
    SELECT j.job, nextval({'numbers}), j.priority,
        CASE WHEN j.job <> ALL(queued) THEN 9 ELSE {ready_phase_1}(j.hooks, 0, j.max_deliveries) END,
        j.queue, j.max_deliveries, j.lease, j.hooks, j.concurrency_key
    FROM unnest(named || again) WITH ORDINALITY AS t (job, n) JOIN {jobs} j ON j.job = t.job ORDER BY t.n;
    INSERT INTO {keys} (key, job, id, until, look_at)
    SELECT j.key, j.job, j.id, at + j.key_ttl, at + j.key_ttl FROM {jobs} j
    WHERE j.job = ANY(named || again) AND j.key IS NOT NULL ORDER BY j.key ON CONFLICT DO NOTHING;
    PERFORM {wake_1}(array_agg(q.queue), array_agg(q.total), at) FROM (
        SELECT j.queue, count(*) AS total FROM {jobs} j WHERE j.job = ANY(queued) GROUP BY j.queue
    ) q;
    status := 'ok';
    reopened := ARRAY(SELECT j.id FROM unnest(named || again) WITH ORDINALITY AS t (job, n)
        JOIN {jobs} j ON j.job = t.job ORDER BY t.n);
END $taskmq$;

-- Takes back the arrivals of these sources; the targets that had any.
CREATE FUNCTION {withdraw_1}(numbers bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $taskmq$
DECLARE
    targets bigint[];
BEGIN
    targets := ARRAY(SELECT DISTINCT a.target FROM {arrivals} a JOIN {jobs} j ON j.id = a.source
        WHERE j.job = ANY(numbers) ORDER BY a.target);
    PERFORM 1 FROM {barriers} b WHERE b.job = ANY(targets) ORDER BY b.job FOR UPDATE;
    WITH gone AS (
        DELETE FROM {arrivals} a USING {jobs} j WHERE j.job = ANY(numbers) AND a.source = j.id
        RETURNING a.target, a.verdict
    )
    UPDATE {barriers} b SET arrived = b.arrived - g.total, failed = b.failed - g.bad
    FROM (
        SELECT target, count(*) AS total, count(*) FILTER (WHERE verdict <> 'ok') AS bad
        FROM gone GROUP BY target
    ) g WHERE b.job = g.target;
    RETURN targets;
END $taskmq$;

CREATE FUNCTION {replay_1}(ids text[], new_queue text, new_priority integer) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    id_ text;
    total integer := 0;
BEGIN
    FOR id_ IN SELECT t.id FROM unnest(ids) WITH ORDINALITY AS t (id, n) GROUP BY t.id ORDER BY min(t.n) LOOP
        IF (SELECT r.status FROM {reopen_1}(ARRAY[id_], NULL, NULL, false, new_queue, new_priority, true) r)
            = 'ok' THEN
            total := total + 1;
        END IF;
    END LOOP;
    RETURN total;
END $taskmq$;
