-- Arrivals at held messages, and those that follow from them.

-- What the rule of a barrier says: 'wait', 'release' or 'give_up'. As `taskmq.transport.arrivals.decide`.
CREATE FUNCTION {decide_1}(b {barriers}) RETURNS text LANGUAGE sql IMMUTABLE AS $taskmq$
    SELECT CASE
        WHEN b.need <= 0 THEN 'release'
        WHEN b.rule = 'all_ok' THEN
            CASE WHEN b.failed > 0 THEN 'give_up' WHEN b.arrived >= b.need THEN 'release' ELSE 'wait' END
        WHEN b.rule = 'any_failed' THEN
            CASE WHEN b.failed > 0 THEN 'release' WHEN b.arrived >= b.need THEN 'give_up' ELSE 'wait' END
        WHEN b.arrived < b.need THEN 'wait'
        WHEN b.rule = 'tolerate' AND b.failed > b.tolerate THEN 'give_up'
        ELSE 'release' END
$taskmq$;

-- Lets a held message go or ends it, if its barrier says so. True when that was an end.
CREATE FUNCTION {resolve_1}(b {barriers}, at float8, source text, verdict text)
RETURNS boolean LANGUAGE plpgsql AS $taskmq$
DECLARE
    verdict_ text := {decide_1}(b);
    m {messages};
    guarding text;
BEGIN
    IF verdict_ = 'wait' THEN
        RETURN false;
    END IF;
    SELECT * INTO m FROM {messages} WHERE job = b.job AND phase = 9 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF verdict_ = 'give_up' THEN
        PERFORM {end_1}(m, b.otherwise, at, {error_1}('skipped', CASE WHEN b.rule = 'any_failed'
            THEN 'none of the jobs it waited for has failed'
            ELSE 'job ' || source || ' arrived ' || verdict END), false);
        RETURN true;
    END IF;
    SELECT g.id INTO guarding FROM {jobs} j JOIN {jobs} g ON g.id = j.guard
        LEFT JOIN {messages} r ON r.job = g.job
    WHERE j.job = b.job AND (g.state IS NOT NULL OR r.hooks & 512 <> 0);
    IF FOUND THEN
        PERFORM {end_1}(m, 'REVOKED', at, {error_1}('revoked', 'its run ' || guarding || ' is over'), false);
        RETURN true;
    ELSIF b.finish THEN
        PERFORM {end_1}(m, 'SUCCEEDED', at, NULL, false);
        RETURN true;
    END IF;
    PERFORM {requeue_1}(m, at, coalesce(at + b.delay, b.eta), false, m.deliveries, false);
    RETURN false;
END $taskmq$;

-- Counts arrivals, wave after wave until none follows. A source counts once at a target: what is inserted is
-- counted, under the lock of the target's row.
CREATE FUNCTION {arrive_1}(targets text[], sources text[], serieses integer[], verdicts text[], at float8)
RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    held record;
    bar {barriers};
    numbers bigint[];
    ended bigint[];
BEGIN
    WHILE array_length(targets, 1) > 0 LOOP
        ended := ARRAY[]::bigint[];
        numbers := ARRAY(SELECT j.job FROM {jobs} j WHERE j.id = ANY(targets));
        PERFORM 1 FROM {barriers} WHERE job = ANY(numbers) ORDER BY job FOR UPDATE;
        FOR held IN
            WITH said AS MATERIALIZED (
                SELECT j.job, t.source, t.series, t.verdict, t.n
                FROM unnest(targets, sources, serieses, verdicts) WITH ORDINALITY
                    AS t (target, source, series, verdict, n)
                JOIN {jobs} j ON j.id = t.target AND j.id = ANY(targets)
                JOIN {barriers} b ON b.job = j.job AND b.job = ANY(numbers)
            ), new_ AS (
                INSERT INTO {arrivals} (target, source, series, verdict)
                SELECT DISTINCT ON (job, source) job, source, series, verdict FROM said
                ORDER BY job, source, n
                ON CONFLICT DO NOTHING RETURNING target, source, verdict
            )
            SELECT target, count(*) AS arrived, count(*) FILTER (WHERE verdict <> 'ok') AS failed,
                coalesce(min(source) FILTER (WHERE verdict <> 'ok'), min(source)) AS source,
                coalesce(min(verdict) FILTER (WHERE verdict <> 'ok'), 'ok') AS verdict
            FROM new_ GROUP BY target ORDER BY target
        LOOP
            UPDATE {barriers} b SET arrived = b.arrived + held.arrived, failed = b.failed + held.failed
            WHERE b.job = held.target RETURNING * INTO bar;
            IF {resolve_1}(bar, at, held.source, held.verdict) THEN
                ended := ended || bar.job;
            END IF;
        END LOOP;
        IF ended = ARRAY[]::bigint[] THEN
            RETURN;
        END IF;
        PERFORM {tell_1}(ended, at);
        SELECT array_agg(e.target), array_agg(e.source), array_agg(e.series), array_agg(e.verdict)
        INTO targets, sources, serieses, verdicts FROM {edges_1}(ended) e;
    END LOOP;
END $taskmq$;

-- The arrivals that ended jobs make at their successors.
CREATE FUNCTION {edges_1}(ended bigint[])
RETURNS TABLE (target text, source text, series integer, verdict text) LANGUAGE sql STABLE AS $taskmq$
    SELECT s.target, j.id, j.series, CASE WHEN j.state = 'SUCCEEDED' OR s.tolerant THEN 'ok'
        WHEN j.state = 'SKIPPED' THEN 'skipped' ELSE 'failed' END
    FROM {jobs} j, unnest(j.successors, j.tolerant) AS s (target, tolerant)
    WHERE j.job = ANY(ended) ORDER BY j.job
$taskmq$;

-- What follows from ends: who waits for them hears, and their successors too.
CREATE FUNCTION {follow_1}(ended bigint[], at float8) RETURNS void
LANGUAGE plpgsql AS $taskmq$
DECLARE
    targets text[];
    sources text[];
    serieses integer[];
    verdicts text[];
BEGIN
    PERFORM {tell_1}(ended, at);
    SELECT array_agg(e.target), array_agg(e.source), array_agg(e.series), array_agg(e.verdict)
    INTO targets, sources, serieses, verdicts FROM {edges_1}(ended) e;
    IF array_length(targets, 1) > 0 THEN
        PERFORM {arrive_1}(targets, sources, serieses, verdicts, at);
    END IF;
END $taskmq$;
