-- Whether a settlement counts, and what one by itself does.

-- Locks messages, and the slots of their keys, in one order, so that two batches never wait for each other crosswise.
CREATE FUNCTION {lock_1}(numbers bigint[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    PERFORM 1 FROM {messages} m WHERE m.job = ANY(numbers) ORDER BY m.job FOR UPDATE;
    PERFORM 1 FROM {slots} s WHERE s.key = ANY(ARRAY(
        SELECT m.concurrency_key FROM {messages} m WHERE m.job = ANY(numbers)
    )) ORDER BY s.key FOR UPDATE;
END $taskmq$;

-- Whether a receipt counts: 'ok', or the answer. Locks the message that it holds.
CREATE FUNCTION {judge_1}(number bigint, receipt text, kind text, OUT status text, OUT reason text, OUT m {messages})
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    reason := '';
    SELECT * INTO m FROM {messages} WHERE job = number AND token = receipt FOR UPDATE;
    IF NOT FOUND THEN
        status := CASE WHEN EXISTS (
            SELECT 1 FROM {jobs} j WHERE j.job = number AND j.token = receipt AND j.state IS NOT NULL
        ) OR EXISTS (
            SELECT 1 FROM {spent} s WHERE s.job = number AND s.token = receipt
        ) THEN 'already' ELSE 'lost' END;
    ELSIF m.phase = 8 THEN
        status := 'already';
    ELSIF m.phase = 7 AND kind = 'run' THEN
        status := 'already';
    ELSIF m.phase = 7 AND kind IN ('defer', 'yield', 'release', 'counted') THEN
        status := 'refused';
        reason := 'acknowledged before the work: it can''t go back';
    ELSE
        status := 'ok';
    END IF;
END $taskmq$;

-- The same for a whole call, locked in one order: rows of those that do not count.
CREATE FUNCTION {judge_all_1}(numbers bigint[], tokens text[], kinds text[])
RETURNS TABLE (n integer, status text, reason text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
#variable_conflict use_column
DECLARE
    item record;
    g record;
BEGIN
    PERFORM {lock_1}(numbers);
    FOR item IN
        SELECT t.job, t.token, t.kind, t.n::integer AS n FROM unnest(numbers, tokens, kinds) WITH ORDINALITY
            AS t (job, token, kind, n)
        -- What is simply held counts.
        WHERE NOT EXISTS (SELECT 1 FROM {messages} m WHERE m.job = t.job AND m.token = t.token AND m.phase < 7)
    LOOP
        SELECT * INTO g FROM {judge_1}(item.job, item.token, item.kind);
        IF g.status <> 'ok' THEN
            RETURN QUERY SELECT item.n, g.status::text, g.reason::text;
        END IF;
    END LOOP;
END $taskmq$;

-- Puts a delivery back, or ends it when it was cancelled meanwhile; its receipt is kept for repeated calls.
CREATE FUNCTION {give_back_1}(
    m {messages}, at float8, due float8, is_retry boolean, count_ integer, OUT ended boolean
) LANGUAGE plpgsql AS $taskmq$
BEGIN
    ended := m.hooks & 512 <> 0;
    IF ended THEN
        PERFORM {end_1}(m, 'REVOKED', at, {error_1}('revoked', 'it was revoked'), true);
        RETURN;
    END IF;
    PERFORM {requeue_1}(m, at, due, is_retry, count_, false);
    INSERT INTO {spent} (job, token, until) VALUES (m.job, m.token, at + 86400)
    ON CONFLICT DO NOTHING;
END $taskmq$;

CREATE FUNCTION {lost_1}() RETURNS bytea LANGUAGE sql IMMUTABLE AS $taskmq$
    SELECT {error_1}('worker lost', 'its worker went away while it had the job')
$taskmq$;

-- Gives a delivery whose lease was taken back to its holder again.
CREATE FUNCTION {hold_again_1}(m {messages}) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    IF m.hooks & 2 <> 0 THEN
        PERFORM {force_slot_1}(m.concurrency_key);
    END IF;
    IF m.deliveries > 1 AND m.deliveries >= m.max_deliveries THEN
        UPDATE {messages} SET attention = attention | 2 WHERE job = m.job;
    END IF;
END $taskmq$;

CREATE FUNCTION {acknowledge_1}(m {messages}, ago float8, at float8) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    UPDATE {messages} SET phase = 7, started_at = coalesce(m.started_at, at - ago), retrying = false,
        rank = CASE WHEN m.phase <= 5 THEN at + coalesce(m.lease, 60) ELSE m.rank END
    WHERE job = m.job;
    IF m.phase <= 5 THEN
        PERFORM {hold_again_1}(m);
    END IF;
END $taskmq$;

-- One settlement by itself.
CREATE FUNCTION {settle_one_1}(
    number bigint, receipt text, kind text, final text, ago float8, delay float8, result_kind text, data bytea,
    why bytea, new_meta bytea, is_stored boolean, new_envelope bytea, at float8,
    OUT status text, OUT reason text
) LANGUAGE plpgsql AS $taskmq$
DECLARE
    verdict record;
    m {messages};
    most integer;
    ended boolean := true;
BEGIN
    SELECT * INTO verdict FROM {judge_1}(number, receipt, kind);
    status := verdict.status;
    reason := verdict.reason;
    m := verdict.m;
    IF status <> 'ok' THEN
        RETURN;
    END IF;
    IF kind = 'ack' OR kind = 'bury' THEN
        PERFORM {end_1}(m, final, at, why, true, kind = 'bury', result_kind, data, coalesce(is_stored, false),
            at - ago, new_meta);
        PERFORM {follow_1}(ARRAY[number], at);
        RETURN;
    END IF;
    IF kind = 'yield' THEN
        SELECT max_yields INTO most FROM {jobs} WHERE job = number;
        IF m.yields >= most THEN
            status := 'refused';
            reason := 'max yields';
            RETURN;
        END IF;
        m.yields := m.yields + 1;
    END IF;
    IF kind = 'run' THEN
        PERFORM {acknowledge_1}(m, ago, at);
        ended := false;
    ELSIF kind = 'park' THEN
        ended := {park_1}(m, ago, delay, at);
    ELSIF kind = 'retry' THEN
        m.attempt := m.attempt + 1;
        m.hooks := m.hooks & ~256;
        UPDATE {jobs} SET error = coalesce(why, error), envelope = coalesce(new_envelope, envelope),
            outcome = NULL WHERE job = number;
        ended := {give_back_1}(m, at, at + delay, true, 0);
    ELSIF kind = 'counted' AND m.deliveries >= m.max_deliveries AND m.hooks & 512 = 0 THEN
        PERFORM {end_1}(m, 'FAILED', at, {lost_1}(), true, true);
    ELSE
        ended := {give_back_1}(m, at, at + delay, false,
            CASE WHEN kind = 'counted' THEN m.deliveries ELSE greatest(0, m.deliveries - 1) END);
    END IF;
    IF new_meta IS NOT NULL THEN
        UPDATE {jobs} SET meta = new_meta WHERE job = number;
    END IF;
    IF ended THEN
        PERFORM {follow_1}(ARRAY[number], at);
    END IF;
END $taskmq$;
