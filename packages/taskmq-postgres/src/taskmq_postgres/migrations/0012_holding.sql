-- While a delivery is held: `extend`, `reclaim`, `revoke`, and completion from outside.

-- Rows of `extend_1` by kind: 'l' a receipt that is lost (n), 'e' expired, 'x' cancelled (status is "force" when
-- it is to be ended by force); then those of `look_1`.
CREATE FUNCTION {extend_1}(me text, names text[], numbers bigint[], tokens text[], wishes float8[], agos float8[])
RETURNS TABLE (kind text, n integer, status text, reason text, job bigint, at_ float8)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
#variable_conflict use_column
DECLARE
    at float8 := {now}();
    item record;
    m {messages};
BEGIN
    PERFORM 1 FROM {messages} h WHERE h.job = ANY(numbers) ORDER BY h.job FOR UPDATE;
    FOR item IN
        SELECT * FROM unnest(numbers, tokens, wishes, agos) WITH ORDINALITY AS t (job, token, wish, ago, n)
    LOOP
        SELECT * INTO m FROM {messages} h
        WHERE h.job = item.job AND h.token = item.token AND h.phase <= 7;
        IF NOT FOUND THEN
            RETURN QUERY SELECT 'l', item.n::integer, NULL::text, NULL::text, NULL::bigint, NULL::float8;
            CONTINUE;
        END IF;
        UPDATE {messages} h SET phase = CASE h.phase WHEN 7 THEN 7 ELSE 6 END, rank = at + item.wish,
            retrying = false, worker = me, started_at = coalesce(h.started_at, at - item.ago)
        WHERE h.job = item.job;
        IF m.phase <= 5 THEN
            PERFORM {hold_again_1}(m);
        END IF;
        IF m.hooks & 512 <> 0 THEN
            RETURN QUERY SELECT 'x', item.n::integer, CASE WHEN m.attention & 4 <> 0 THEN 'force' END,
                NULL::text, NULL::bigint, NULL::float8;
        END IF;
        IF m.started_at IS NULL AND item.ago IS NULL AND m.expires_at <= at THEN
            RETURN QUERY SELECT 'e', item.n::integer, NULL::text, NULL::text, NULL::bigint, NULL::float8;
        END IF;
    END LOOP;
    RETURN QUERY SELECT * FROM {look_1}(me, names, at);
END $taskmq$;

CREATE FUNCTION {reclaim_1}(me text, numbers bigint[], tokens text[]) RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    at float8 := {now}();
    m {messages};
    total integer := 0;
BEGIN
    -- Of what is leased at all: rare, and no index for it alone.
    FOR m IN
        SELECT * FROM {messages} h WHERE h.phase = 6 AND h.phase BETWEEN 6 AND 8 AND h.worker = me
            AND NOT EXISTS (SELECT 1 FROM unnest(numbers, tokens) AS k (job, token)
                WHERE k.job = h.job AND k.token = h.token)
        ORDER BY h.job FOR UPDATE
    LOOP
        IF m.hooks & 512 <> 0 THEN
            PERFORM {end_1}(m, 'REVOKED', at, {error_1}('revoked', 'it was revoked'), false);
            PERFORM {follow_1}(ARRAY[m.job], at);
        ELSE
            PERFORM {requeue_1}(m, at, NULL, false, m.deliveries - 1, false);
        END IF;
        total := total + 1;
    END LOOP;
    RETURN total;
END $taskmq$;

CREATE FUNCTION {revoke_1}(ids text[], by_force boolean) RETURNS TABLE (n integer, status text, state text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
#variable_conflict use_column
DECLARE
    at float8 := {now}();
    item record;
    m {messages};
    ended bigint[] := ARRAY[]::bigint[];
    final text;
    number bigint;
BEGIN
    FOR item IN SELECT * FROM unnest(ids) WITH ORDINALITY AS t (id, n) LOOP
        number := NULL;
        SELECT j.job INTO number FROM {jobs} j WHERE j.id = item.id;
        SELECT * INTO m FROM {messages} h WHERE h.job = number FOR UPDATE;
        IF NOT FOUND THEN
            SELECT j.state INTO final FROM {jobs} j WHERE j.job = number;
            RETURN QUERY SELECT item.n::integer, CASE WHEN FOUND THEN 'final' ELSE 'unknown' END, final;
        ELSIF m.phase IN (6, 7) THEN
            UPDATE {messages} h SET hooks = h.hooks | 512,
                attention = h.attention | 1 | CASE WHEN by_force THEN 4 ELSE 0 END
            WHERE h.job = m.job;
            PERFORM {call_1}(m.worker);
            RETURN QUERY SELECT item.n::integer, 'cancelling', 'RUNNING';
        ELSE
            PERFORM {end_1}(m, 'REVOKED', at, {error_1}('revoked', 'it was revoked before it ran'), false);
            PERFORM {follow_1}(ARRAY[m.job], at);
            RETURN QUERY SELECT item.n::integer, 'revoked', 'REVOKED';
        END IF;
    END LOOP;
END $taskmq$;

CREATE FUNCTION {update_meta_1}(number bigint, receipt text, new_meta bytea) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    holder {messages};
BEGIN
    SELECT * INTO holder FROM {messages} WHERE job = number FOR UPDATE;
    IF FOUND AND holder.token IS DISTINCT FROM receipt AND NOT (holder.retrying AND receipt = (
        -- A retry took the receipt off: the last one that was spent still counts.
        SELECT s.token FROM {spent} s WHERE s.job = number ORDER BY s.until DESC LIMIT 1
    )) THEN
        RETURN false;
    END IF;
    UPDATE {jobs} SET meta = new_meta
    WHERE job = number AND (holder.job IS NOT NULL OR token = receipt);
    RETURN FOUND;
END $taskmq$;
