-- One bounded pass of maintenance. Rows by kind: 'e' a job that ended (id, task, queue, state, reason); one 'h':
-- counts are requeued, timed_out, pruned, more; next_at is the time until somebody is needed next.

CREATE FUNCTION {reap_1}(
    recover boolean, most integer, dead_ttl float8, dead_max bigint, finished_max bigint, worker_ttl float8,
    rate_kept float8, timed_out_ bytea
) RETURNS TABLE (kind text, id text, task text, queue text, state text, reason text, counts bigint[], next_in float8)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
#variable_conflict use_column
DECLARE
    at float8 := {now}();
    m {messages};
    requeued bigint := 0;
    timed_out bigint := 0;
    pruned bigint;
    more boolean := false;
    looked integer := 0;
    ended bigint[] := ARRAY[]::bigint[];
    lost bytea := {lost_1}();
    next_at float8;
    edge float8 := {lease_floor_1}(at);
    began timestamptz := clock_timestamp();
    slow boolean := edge > '-infinity';
BEGIN
    -- By key, so that slots are given back in one order everywhere.
    FOR m IN
        WITH over AS MATERIALIZED (
            SELECT h.* FROM {messages} h WHERE h.phase BETWEEN 6 AND 8 AND h.rank > edge AND h.rank <= at
                AND (recover OR h.phase = 8)
            ORDER BY h.rank LIMIT most FOR UPDATE SKIP LOCKED
        ) SELECT * FROM over o ORDER BY o.concurrency_key NULLS FIRST, o.job
    LOOP
        looked := looked + 1;
        IF m.phase = 8 THEN
            PERFORM {hand_over_1}(m, timed_out_, at);
            timed_out := timed_out + 1;
        ELSIF m.phase = 7 OR (m.hooks & 512 = 0 AND m.deliveries >= m.max_deliveries) THEN
            PERFORM {end_1}(m, 'FAILED', at, lost, false, true);
            ended := ended || m.job;
            RETURN QUERY SELECT 'e', j.id, j.task, j.queue, 'FAILED', 'worker lost', NULL::bigint[], NULL::float8
                FROM {jobs} j WHERE j.job = m.job;
        ELSIF m.hooks & 512 <> 0 THEN
            PERFORM {end_1}(m, 'REVOKED', at, {error_1}('revoked', 'it was revoked'), false);
            ended := ended || m.job;
            RETURN QUERY SELECT 'e', j.id, j.task, j.queue, 'REVOKED', 'revoked', NULL::bigint[], NULL::float8
                FROM {jobs} j WHERE j.job = m.job;
        ELSE
            PERFORM {requeue_1}(m, at, NULL, false, m.deliveries, true);
            requeued := requeued + 1;
        END IF;
    END LOOP;
    IF NOT slow AND recover AND looked < most AND {is_slow_reap_1}(began) THEN
        PERFORM {raise_lease_floor_1}(began, at);
        slow := true;
    END IF;
    more := looked >= most;
    looked := 0;
    FOR m IN
        WITH over AS MATERIALIZED (
            SELECT h.* FROM {messages} h WHERE h.phase <= 5 AND h.expires_at IS NOT NULL AND h.expires_at <= at
            ORDER BY h.expires_at LIMIT most FOR UPDATE SKIP LOCKED
        ) SELECT * FROM over o ORDER BY o.concurrency_key NULLS FIRST, o.job
    LOOP
        looked := looked + 1;
        PERFORM {end_1}(m, 'EXPIRED', at, {error_1}('expired', 'it was not started before its expiry'), false);
        ended := ended || m.job;
        RETURN QUERY SELECT 'e', j.id, j.task, j.queue, 'EXPIRED', 'expired', NULL::bigint[], NULL::float8
            FROM {jobs} j WHERE j.job = m.job;
    END LOOP;
    more := more OR looked >= most;
    IF ended <> ARRAY[]::bigint[] THEN
        PERFORM {follow_1}(ended, at);
    END IF;
    pruned := {prune_dead_1}(at, most, dead_ttl, dead_max);
    looked := {prune_jobs_1}(at, most, finished_max);
    more := more OR looked >= most;
    pruned := pruned + looked + {prune_rest_1}(at, most, worker_ttl, rate_kept);
    -- While a walk is slow nobody walks for the next end: soon is right enough.
    SELECT min(x.at) INTO next_at FROM (
        SELECT at + 1 AS at WHERE slow UNION ALL
        (SELECT h.rank AS at FROM {messages} h WHERE NOT slow AND h.phase BETWEEN 6 AND 8 ORDER BY h.rank LIMIT 1)
        UNION ALL
        (SELECT h.expires_at FROM {messages} h WHERE h.phase <= 5 AND h.expires_at IS NOT NULL
            ORDER BY h.expires_at LIMIT 1)
    ) x WHERE x.at < 'infinity';
    RETURN QUERY SELECT 'h', NULL::text, NULL::text, NULL::text, NULL::text, NULL::text,
        ARRAY[requeued, timed_out, pruned, more::integer],
        CASE WHEN next_at IS NOT NULL THEN greatest(0, next_at - at) END;
END $taskmq$;
