-- Jobs that are finished from outside: parking, completions, and the ways they can cross.

-- Parks a delivery, or applies the completion that came before. True when that ended the job.
CREATE FUNCTION {park_1}(m {messages}, ago float8, timeout float8, at float8) RETURNS boolean
LANGUAGE plpgsql AS $taskmq$
DECLARE
    said {completions};
BEGIN
    m.started_at := coalesce(m.started_at, at - ago);
    m.hooks := m.hooks & ~256;
    UPDATE {jobs} SET outcome = NULL WHERE job = m.job AND outcome IS NOT NULL;
    IF m.hooks & 512 <> 0 THEN
        PERFORM {end_1}(m, 'REVOKED', at, {error_1}('revoked', 'it was revoked'), true);
        RETURN true;
    END IF;
    SELECT * INTO said FROM {completions} WHERE job = m.job AND token = m.token;
    IF FOUND THEN
        RETURN {apply_completion_1}(m, said, at);
    END IF;
    UPDATE {messages} SET phase = 8, rank = coalesce(at + timeout, 'infinity'), attention = 0,
        retrying = false, started_at = m.started_at, hooks = m.hooks WHERE job = m.job;
    IF m.phase <= 5 AND m.hooks & 2 <> 0 THEN
        PERFORM {force_slot_1}(m.concurrency_key);
    END IF;
    RETURN false;
END $taskmq$;

-- Ends a parked job as it was said, or hands the outcome to a worker. True when it ended.
CREATE FUNCTION {apply_completion_1}(m {messages}, said {completions}, at float8) RETURNS boolean
LANGUAGE plpgsql AS $taskmq$
BEGIN
    IF said.state = 'SUCCEEDED' THEN
        PERFORM {end_1}(m, 'SUCCEEDED', at, NULL, true, false, said.result_type, said.result);
    ELSIF said.retryable THEN
        PERFORM {hand_over_1}(m, said.completion, at);
        RETURN false;
    ELSE
        PERFORM {end_1}(m, 'FAILED', at,
            coalesce(said.error, {error_1}('exception', 'it was completed as failed')), true, true,
            said.result_type, said.result);
    END IF;
    RETURN true;
END $taskmq$;

-- Queues a parked job with an outcome, for a worker that knows the task to decide.
CREATE FUNCTION {hand_over_1}(m {messages}, said bytea, at float8) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    UPDATE {jobs} SET outcome = said WHERE job = m.job;
    m.hooks := m.hooks | 384;
    PERFORM {requeue_1}(m, at, NULL, false, m.deliveries, false);
END $taskmq$;

CREATE FUNCTION {complete_1}(
    wanted text, receipt text, completion_ bytea, final text, kind text, data bytea, why bytea, again boolean,
    OUT status text, OUT reason text
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    at float8 := {now}();
    number bigint;
    ended text;
    m {messages};
    said {completions};
BEGIN
    reason := '';
    status := 'refused';
    SELECT job INTO number FROM {jobs} WHERE id = wanted;
    IF NOT FOUND THEN
        reason := 'there is no such job';
        RETURN;
    END IF;
    SELECT * INTO m FROM {messages} WHERE job = number FOR UPDATE;
    SELECT * INTO said FROM {completions} WHERE job = number;
    IF said.token = receipt THEN
        IF said.completion = completion_ THEN
            status := 'already';
        ELSE
            reason := 'it was completed with another outcome';
        END IF;
        RETURN;
    END IF;
    IF m.job IS NULL THEN
        SELECT state INTO ended FROM {jobs} WHERE job = number;
        reason := 'it has ended ' || ended;
        RETURN;
    ELSIF m.token IS DISTINCT FROM receipt THEN
        reason := 'the token is of an earlier delivery';
        RETURN;
    END IF;
    INSERT INTO {completions} (job, token, completion, state, result_type, result, error, retryable)
    VALUES (number, receipt, completion_, final, kind, data, why, again)
    ON CONFLICT (job) DO UPDATE SET token = excluded.token, completion = excluded.completion,
        state = excluded.state, result_type = excluded.result_type, result = excluded.result,
        error = excluded.error, retryable = excluded.retryable;
    m.hooks := m.hooks | 128;
    UPDATE {messages} SET hooks = m.hooks WHERE job = number;
    IF m.phase <> 8 THEN
        status := 'kept';
        RETURN;
    END IF;
    SELECT * INTO said FROM {completions} WHERE job = number;
    IF {apply_completion_1}(m, said, at) THEN
        status := 'ok';
        PERFORM {follow_1}(ARRAY[number], at);
    ELSE
        status := 'handed';
    END IF;
END $taskmq$;

-- Raises the number of arrivals that a held message waits for.
CREATE FUNCTION {expect_1}(wanted text, more integer) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    UPDATE {barriers} b SET need = b.need + more FROM {jobs} j JOIN {messages} m ON m.job = j.job
    WHERE j.id = wanted AND b.job = j.job AND m.phase = 9;
END $taskmq$;

-- Ends a record that has no task, unless it has ended.
CREATE FUNCTION {finish_1}(wanted text, final text, why bytea, kind text, data bytea) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    at float8 := {now}();
    m {messages};
BEGIN
    SELECT h.* INTO m FROM {jobs} j JOIN {messages} h ON h.job = j.job WHERE j.id = wanted FOR UPDATE OF h;
    IF FOUND THEN
        PERFORM {end_1}(m, final, at, why, false, false, kind, data);
        PERFORM {follow_1}(ARRAY[m.job], at);
    END IF;
END $taskmq$;
