-- What makes a job final and what follows from it, in the same transaction. Who ends jobs gathers their
-- numbers and calls `follow_1` at last. `at` is the time of the call, read once.

-- An ErrorInfo as MessagePack: {reason, message}.
CREATE FUNCTION {error_1}(reason text, message text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $taskmq$
DECLARE
    said bytea := '\x82'::bytea;
    part text;
    raw bytea;
BEGIN
    FOREACH part IN ARRAY ARRAY['reason', reason, 'message', message] LOOP
        raw := convert_to(part, 'UTF8');
        said := said || '\xda'::bytea || substring(int4send(length(raw)) FROM 3) || raw;
    END LOOP;
    RETURN said;
END $taskmq$;

-- Takes a slot: 'taken', 'full', or 'busy' when somebody else has the row: a claim never waits for it, and
-- everybody else locks slots by key. Found full, the row stays locked, so that a slot freed meanwhile sees
-- who has joined the line. Rows are kept at 0 for the next one; `reap` removes them.
CREATE FUNCTION {take_slot_1}(wanted text, most integer) RETURNS text LANGUAGE plpgsql AS $taskmq$
DECLARE
    busy integer;
BEGIN
    SELECT used INTO busy FROM {slots} WHERE key = wanted FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        IF busy >= most THEN
            RETURN 'full';
        END IF;
        UPDATE {slots} SET used = busy + 1 WHERE key = wanted;
        RETURN 'taken';
    END IF;
    PERFORM 1 FROM {slots} WHERE key = wanted;
    IF FOUND OR NOT pg_try_advisory_xact_lock(hashtextextended(wanted, {'slots}::regclass::oid::bigint)) THEN
        RETURN 'busy';
    END IF;
    INSERT INTO {slots} (key, used) VALUES (wanted, 1) ON CONFLICT DO NOTHING;
    RETURN CASE WHEN FOUND THEN 'taken' ELSE 'busy' END;
END $taskmq$;

CREATE FUNCTION {force_slot_1}(wanted text) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    INSERT INTO {slots} AS s (key, used) VALUES (wanted, 1)
    ON CONFLICT (key) DO UPDATE SET used = s.used + 1;
END $taskmq$;

CREATE FUNCTION {ready_phase_1}(hooks integer, deliveries integer, max_deliveries integer)
RETURNS smallint LANGUAGE sql IMMUTABLE AS $taskmq$
    SELECT (CASE WHEN hooks & 2048 <> 0 THEN 3
        WHEN deliveries > 0 AND deliveries >= max_deliveries - 1 THEN 2 ELSE 1 END)::smallint
$taskmq$;

-- Gives back the slot of what was held, and lets the next of the line in. Also for what holds none: it may
-- be the one let in last, whose chance passes on.
CREATE FUNCTION {leave_slot_1}(m {messages}, at float8) RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    busy integer;
    next_ {messages};
    most integer;
BEGIN
    UPDATE {slots} SET used = greatest(0, used - CASE WHEN m.phase BETWEEN 6 AND 8 THEN 1 ELSE 0 END)
    WHERE key = m.concurrency_key RETURNING used INTO busy;
    SELECT * INTO next_ FROM {messages} b
    WHERE b.phase = 5 AND b.concurrency_key = m.concurrency_key AND b.job <> m.job
    ORDER BY b.priority DESC, b.place LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        SELECT concurrency_limit INTO most FROM {jobs} WHERE job = next_.job;
        IF coalesce(busy, 0) < most THEN
            UPDATE {messages} SET rank = 0,
                phase = {ready_phase_1}(next_.hooks, next_.deliveries, next_.max_deliveries)
            WHERE job = next_.job;
            PERFORM {lower_floor_1}(next_.job);
            PERFORM {wake_1}(ARRAY[next_.queue], ARRAY[1::bigint], at);
        END IF;
    END IF;
END $taskmq$;

CREATE FUNCTION {free_key_1}(numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    DELETE FROM {keys} k WHERE k.job = ANY(numbers)
        AND k.key = ANY(ARRAY(SELECT j.key FROM {jobs} j WHERE j.job = ANY(numbers)));
END $taskmq$;

-- Ends one job. With `settled` its receipt stays on record as the winner's; else no settlement counts any more.
CREATE FUNCTION {end_1}(
    m {messages}, final text, at float8, why bytea, settled boolean, is_dead boolean DEFAULT false,
    kind text DEFAULT NULL, data bytea DEFAULT NULL, is_stored boolean DEFAULT false,
    began float8 DEFAULT NULL, new_meta bytea DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    ttl float8;
BEGIN
    DELETE FROM {messages} WHERE job = m.job;
    UPDATE {jobs} SET state = final, finished_at = at, error = why, result_type = kind, result = data,
        hooks = m.hooks | CASE WHEN is_stored THEN 1024 ELSE 0 END, outcome = NULL,
        started_at = coalesce(m.started_at, began), meta = coalesce(new_meta, meta),
        token = CASE WHEN settled THEN m.token END, worker = m.worker, reserved_at = m.reserved_at,
        attempt = m.attempt, deliveries = m.deliveries, yields = m.yields
    WHERE job = m.job RETURNING job_ttl INTO ttl;
    IF is_dead THEN
        INSERT INTO {dead} (job, queue, died_at) VALUES (m.job, m.queue, at);
    ELSE
        INSERT INTO {endings} (at, jobs) VALUES (at + ttl, ARRAY[m.job]);
    END IF;
    IF m.hooks & 16 <> 0 OR (m.hooks & 4 <> 0 AND final <> 'SUCCEEDED') THEN
        PERFORM {free_key_1}(ARRAY[m.job]);
    END IF;
    IF m.hooks & 2 <> 0 AND m.phase <> 9 THEN
        PERFORM {leave_slot_1}(m, at);
    END IF;
END $taskmq$;

-- Puts a message back in its place: ready, or delayed until `due`. Gives its slot back.
CREATE FUNCTION {requeue_1}(
    m {messages}, at float8, due float8, is_retry boolean, count_ integer, keep boolean
) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    UPDATE {messages} SET
        phase = CASE WHEN due > at THEN 4 ELSE {ready_phase_1}(m.hooks, count_, m.max_deliveries) END,
        rank = CASE WHEN due > at THEN due ELSE 0 END,
        retrying = is_retry, deliveries = count_, token = CASE WHEN keep THEN m.token END,
        worker = NULL, attention = 0, started_at = NULL, hooks = m.hooks, attempt = m.attempt,
        yields = m.yields
    WHERE job = m.job;
    PERFORM {lower_floor_1}(m.job);
    PERFORM {wake_1}(ARRAY[m.queue], ARRAY[1::bigint], at);
    IF m.hooks & 2 <> 0 AND m.phase BETWEEN 6 AND 8 THEN
        PERFORM {leave_slot_1}(m, at);
    END IF;
END $taskmq$;
