-- What a claim looks at before it takes: what is due, and the rare ones among what it picked.

-- Makes ready what is due in these queues, 500 at most; how many.
CREATE FUNCTION {promote_1}(names text[], at float8) RETURNS integer LANGUAGE plpgsql AS $taskmq$
DECLARE
    due bigint[];
BEGIN
    due := ARRAY(
        SELECT d.job FROM unnest(names) AS q (name) CROSS JOIN LATERAL (
            SELECT job FROM {messages} WHERE phase = 4 AND queue = q.name AND rank <= at
            ORDER BY rank LIMIT 500 FOR UPDATE SKIP LOCKED
        ) d LIMIT 500
    );
    UPDATE {messages} m SET phase = {ready_phase_1}(m.hooks, m.deliveries, m.max_deliveries), rank = 0
    WHERE m.job = ANY(due);
    PERFORM 1 FROM {floors} LIMIT 1;
    IF FOUND THEN
        PERFORM {lower_floor_1}(d.job) FROM unnest(due) AS d (job);
    END IF;
    RETURN coalesce(array_length(due, 1), 0);
END $taskmq$;

CREATE FUNCTION {next_due_1}(names text[]) RETURNS float8 LANGUAGE plpgsql AS $taskmq$
BEGIN
    RETURN (SELECT min(d.rank) FROM unnest(names) AS q (name) CROSS JOIN LATERAL (
        SELECT rank FROM {messages} WHERE phase = 4 AND queue = q.name ORDER BY rank LIMIT 1
    ) d);
END $taskmq$;

-- Looks at the rare ones among what was picked: past their expiry, at their last chance, of a key, with an
-- outcome. Returns what may be leased, and what is passed over because its key's row is locked just now; the rest
-- has been ended, blocked, or stays.
CREATE FUNCTION {admit_1}(
    picked bigint[], holds_last boolean, at float8, OUT admitted bigint[], OUT last boolean, OUT passed bigint[]
) LANGUAGE plpgsql AS $taskmq$
DECLARE
    m {messages};
    most integer;
    slot text;
    ended bigint[] := ARRAY[]::bigint[];
    left_out bigint[] := ARRAY[]::bigint[];
BEGIN
    last := holds_last;
    passed := ARRAY[]::bigint[];
    FOR m IN
        SELECT * FROM {messages} r WHERE r.job = ANY(picked)
            AND (r.phase = 2 OR r.hooks & 394 <> 0 OR r.expires_at <= at)
        ORDER BY r.concurrency_key NULLS FIRST, array_position(picked, r.job)
    LOOP
        IF m.expires_at <= at THEN
            PERFORM {end_1}(m, 'EXPIRED', at,
                {error_1}('expired', 'it was not started before its expiry'), false);
            ended := ended || m.job;
            CONTINUE;
        ELSIF m.phase = 2 AND last THEN
            left_out := left_out || m.job;
            CONTINUE;
        ELSIF m.hooks & 2 <> 0 THEN
            SELECT concurrency_limit INTO most FROM {jobs} WHERE job = m.job;
            slot := {take_slot_1}(m.concurrency_key, most);
            IF slot = 'full' THEN
                UPDATE {messages} SET phase = 5 WHERE job = m.job;
            ELSIF slot = 'busy' THEN
                passed := passed || m.job;
            END IF;
            IF slot <> 'taken' THEN
                left_out := left_out || m.job;
                CONTINUE;
            END IF;
        END IF;
        last := last OR m.phase = 2;
        IF m.hooks & 8 <> 0 THEN
            PERFORM {free_key_1}(ARRAY[m.job]);
        END IF;
        IF m.hooks & 128 <> 0 THEN
            -- Kept for a delivery that was lost before its park; what is handed over is not dropped.
            PERFORM 1 FROM {jobs} WHERE job = m.job AND outcome IS NOT NULL;
            IF NOT FOUND THEN
                DELETE FROM {completions} WHERE job = m.job;
                UPDATE {messages} SET hooks = hooks & ~128 WHERE job = m.job;
            END IF;
        END IF;
    END LOOP;
    IF ended <> ARRAY[]::bigint[] THEN
        PERFORM {follow_1}(ended, at);
    END IF;
    admitted := ARRAY(
        SELECT t.job FROM unnest(picked) WITH ORDINALITY AS t (job, n)
        WHERE t.job <> ALL(left_out) AND t.job <> ALL(ended) ORDER BY t.n
    );
END $taskmq$;
