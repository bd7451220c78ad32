-- The clock, and who is woken. Nobody is notified who does not sleep: NOTIFY takes a global lock at commit.

CREATE FUNCTION {now}() RETURNS float8 LANGUAGE sql STABLE AS $taskmq$
    SELECT date_part('epoch', statement_timestamp())
$taskmq$;

-- Wakes up to `counts` sleepers of each queue, each once: a sleeper is taken out before it is told. In a
-- caller's own transaction (`keep`) it is only told: its row must not be locked for so long.
CREATE FUNCTION {wake_1}(named text[], counts bigint[], at float8, keep boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    n integer;
    sleeper record;
BEGIN
    -- By time, so that rows long gone are not even met. Most calls end here.
    PERFORM 1 FROM {sleepers} WHERE until > at LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR n IN 1 .. coalesce(array_length(named, 1), 0) LOOP
        IF keep THEN
            PERFORM pg_notify(s.channel, s.name) FROM (
                SELECT name, channel FROM {sleepers} WHERE until > at AND named[n] = ANY(queues)
                LIMIT counts[n]
            ) s;
        ELSE
            FOR sleeper IN DELETE FROM {sleepers} WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM {sleepers} WHERE until > at AND named[n] = ANY(queues)
                LIMIT counts[n] FOR UPDATE SKIP LOCKED
            )) RETURNING name, channel LOOP
                PERFORM pg_notify(sleeper.channel, sleeper.name);
            END LOOP;
        END IF;
    END LOOP;
END $taskmq$;

-- Wakes one sleeper by its name.
CREATE FUNCTION {call_1}(whom text) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    PERFORM pg_notify(channel, name) FROM {sleepers} WHERE name = whom;
END $taskmq$;

-- Wakes whoever waits for the end of one of these jobs.
CREATE FUNCTION {tell_1}(ended bigint[], at float8) RETURNS void
LANGUAGE plpgsql AS $taskmq$
DECLARE
    watcher record;
BEGIN
    PERFORM 1 FROM {watches} WHERE until > at LIMIT 1;
    IF FOUND THEN
        FOR watcher IN DELETE FROM {watches} WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM {watches} WHERE job = ANY(ended) FOR UPDATE SKIP LOCKED
        )) RETURNING name, channel LOOP
            -- Equal notifications of one transaction are sent once.
            PERFORM pg_notify(watcher.channel, watcher.name);
        END LOOP;
    END IF;
END $taskmq$;

-- Whether one of these queues has something visible, or due.
CREATE FUNCTION {probe_1}(named text[]) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    PERFORM 1 FROM unnest(named) AS q (name) WHERE EXISTS (
        SELECT 1 FROM {messages} m WHERE m.queue = q.name AND m.phase <= 2
    ) OR EXISTS (
        SELECT 1 FROM {messages} m WHERE m.queue = q.name AND m.phase = 4 AND m.rank <= {now}()
    ) LIMIT 1;
    RETURN FOUND;
END $taskmq$;

CREATE FUNCTION {sleep_1}(me text, where_ text, named text[], seconds float8) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    INSERT INTO {sleepers} (until, name, channel, queues) VALUES ({now}() + seconds, me, where_, named);
    RETURN {probe_1}(named);
END $taskmq$;

CREATE FUNCTION {awake_1}(me text) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    DELETE FROM {sleepers} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {sleepers} WHERE name = me FOR UPDATE SKIP LOCKED
    ));
END $taskmq$;

CREATE FUNCTION {pending_1}(ids text[]) RETURNS SETOF text
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    RETURN QUERY SELECT j.id FROM {jobs} j WHERE j.id = ANY(ids) AND j.state IS NULL;
END $taskmq$;

CREATE FUNCTION {watch_1}(me text, where_ text, ids text[], seconds float8) RETURNS SETOF text
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    INSERT INTO {watches} (job, until, name, channel)
    SELECT j.job, {now}() + seconds, me, where_ FROM {jobs} j WHERE j.id = ANY(ids) AND j.state IS NULL;
    RETURN QUERY SELECT * FROM {pending_1}(ids);
END $taskmq$;

CREATE FUNCTION {unwatch_1}(me text) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    DELETE FROM {watches} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {watches} WHERE name = me FOR UPDATE SKIP LOCKED
    ));
END $taskmq$;
