-- Messages go out. Rows by kind: 'd' a delivery; 'a' a held row with attention (priority has its bits, envelope
-- nothing); 'c' the credit of a queue (expires_at); and one 'h': priority is the head, enqueued_at now,
-- expires_at the time until the next due, attempt 1 when there is more.

-- Leases what was taken. Without nested loops, as `end_all_1`.
CREATE FUNCTION {lease_1}(taken bigint[], me text, lease_for float8, new_token text, at float8)
RETURNS TABLE (
    job bigint, id text, task text, queue text, priority integer, envelope bytea, max_deliveries integer,
    enqueued_at float8, lease float8, attempt integer, deliveries integer, yields integer, series integer,
    expires_at float8, meta bytea, outcome bytea, run text, step text
) LANGUAGE plpgsql SET enable_nestloop = off AS $taskmq$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH leased AS (
        UPDATE {messages} m SET phase = 6, rank = at + coalesce(m.lease, lease_for),
            deliveries = m.deliveries + 1, worker = me, token = new_token, reserved_at = at,
            retrying = false, attention = CASE m.phase WHEN 2 THEN 2 ELSE 0 END
        FROM unnest(taken) WITH ORDINALITY AS t (job, n)
        WHERE m.job = t.job AND m.job = ANY(taken)
        RETURNING t.n, m.job, m.priority, m.max_deliveries, m.lease, m.attempt, m.deliveries, m.yields
    )
    SELECT l.job, j.id, j.task, j.queue, l.priority::integer, j.envelope, l.max_deliveries, j.enqueued_at,
        l.lease, l.attempt, l.deliveries, l.yields, j.series, j.expires_at, j.meta, j.outcome, j.run, j.step
    FROM leased l JOIN {jobs} j ON j.job = l.job AND j.job = ANY(taken) ORDER BY l.n;
END $taskmq$;

CREATE FUNCTION {reserve_1}(
    me text, names text[], weights float8[], credits float8[], room integer, lease_for float8,
    new_token text, top integer
) RETURNS TABLE (
    kind text, job bigint, id text, task text, queue text, priority integer, envelope bytea,
    max_deliveries integer, enqueued_at float8, lease float8, attempt integer, deliveries integer,
    yields integer, series integer, expires_at float8, meta bytea, outcome bytea, run text, step text
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
#variable_conflict use_column
DECLARE
    at float8 := {now}();
    due float8 := {next_due_1}(names);
    slow boolean := EXISTS (SELECT 1 FROM {floors} f WHERE f.queue = ANY(names));
    began timestamptz;
    more boolean := false;
    holds_last boolean := false;
    taken bigint[] := ARRAY[]::bigint[];
    picked bigint[];
    passed bigint[] := ARRAY[]::bigint[];
    missed bigint[];
    odd boolean;
    asked integer;
    vain integer := 0;
BEGIN
    IF due <= at THEN
        more := {promote_1}(names, at) >= 500;
        due := {next_due_1}(names);
    END IF;
    RETURN QUERY SELECT 'a', m.job, m.token, NULL::text, NULL::text, m.attention::integer, NULL::bytea,
        NULL::integer, NULL::float8, NULL::float8, NULL::integer, NULL::integer, NULL::integer,
        NULL::integer, NULL::float8, NULL::bytea, NULL::bytea, NULL::text, NULL::text
    FROM {messages} m WHERE m.worker = me AND m.attention <> 0;
    IF FOUND THEN
        holds_last := EXISTS (SELECT 1 FROM {messages} m WHERE m.worker = me AND m.attention & 2 <> 0);
    END IF;
    IF slow THEN
        PERFORM {refresh_floor_1}(names, at);
    END IF;
    IF slow OR array_length(names, 1) > 1 THEN
        SELECT s.taken, s.holds_last, more OR s.more, s.credits INTO taken, holds_last, more, credits
        FROM {share_1}(names, weights, credits, room, holds_last, top, at, slow) s;
        room := room - coalesce(array_length(taken, 1), 0);
        RETURN QUERY SELECT 'c', NULL::bigint, NULL::text, NULL::text, names[c.n], NULL::integer,
            NULL::bytea, NULL::integer, NULL::float8, NULL::float8, NULL::integer, NULL::integer,
            NULL::integer, NULL::integer, c.value, NULL::bytea, NULL::bytea, NULL::text, NULL::text
        FROM unnest(credits) WITH ORDINALITY AS c (value, n) WHERE c.value > 0;
    ELSE
        WHILE room > 0 LOOP
            asked := room;
            began := clock_timestamp();
            SELECT array_agg(x.job), bool_or(x.odd) INTO picked, odd FROM (
                SELECT m.job, (m.phase = 2 OR m.hooks & 394 <> 0 OR m.expires_at <= at) AS odd
                FROM {messages} m
                WHERE m.queue = names[1] AND m.phase <= 2 AND (m.phase = 1 OR NOT holds_last)
                    AND m.priority <= top AND m.job <> ALL(taken || passed)
                ORDER BY m.priority DESC, m.place LIMIT asked FOR UPDATE SKIP LOCKED
            ) x;
            -- Who may have no other last chance does not see all that is ready.
            IF NOT holds_last AND {is_slow_1}(began, 1) THEN
                PERFORM {raise_floors_1}(names[1], picked, coalesce(array_length(picked, 1), 0) < asked, top,
                    began, at);
                slow := true;
            END IF;
            EXIT WHEN picked IS NULL;
            asked := asked - array_length(picked, 1);
            IF odd THEN
                vain := vain + array_length(picked, 1);
                SELECT a.admitted, a.last, a.passed INTO picked, holds_last, missed
                FROM {admit_1}(picked, holds_last, at) a;
                passed := passed || missed;
                vain := vain - coalesce(array_length(picked, 1), 0);
            END IF;
            taken := taken || picked;
            room := room - coalesce(array_length(picked, 1), 0);
            EXIT WHEN asked > 0;
            IF vain >= 500 AND room > 0 THEN
                more := true;
                EXIT;
            END IF;
        END LOOP;
    END IF;
    more := more OR (room > 0 AND passed <> ARRAY[]::bigint[]);
    IF taken <> ARRAY[]::bigint[] THEN
        RETURN QUERY SELECT 'd', l.* FROM {lease_1}(taken, me, lease_for, new_token, at) l;
    END IF;
    RETURN QUERY SELECT 'h', NULL::bigint, NULL::text, NULL::text, NULL::text,
        {head_1}(names, holds_last, top, ARRAY[]::bigint[], slow), NULL::bytea, NULL::integer, at, NULL::float8,
        more::integer, NULL::integer, NULL::integer, NULL::integer,
        CASE WHEN due > at THEN due - at WHEN due IS NOT NULL THEN 0 END, NULL::bytea,
        NULL::bytea, NULL::text, NULL::text;
END $taskmq$;
