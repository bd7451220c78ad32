-- Named leases, rates and workers.

CREATE FUNCTION {acquire_1}(wanted text, me text, ttl float8) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    at float8 := {now}();
    given bigint;
BEGIN
    -- One counter for all names: it goes on rising when a lease's row is pruned.
    INSERT INTO {leases} AS l (name, owner, token, until)
    VALUES (wanted, me, nextval({'fences}), at + ttl)
    ON CONFLICT (name) DO UPDATE SET owner = me, until = at + ttl,
        token = CASE WHEN l.owner = me AND l.until > at THEN l.token ELSE excluded.token END
    WHERE l.owner IS NULL OR l.owner = me OR l.until <= at
    RETURNING token INTO given;
    RETURN given;
END $taskmq$;

CREATE FUNCTION {renew_1}(wanted text, given bigint, ttl float8) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    UPDATE {leases} SET until = {now}() + ttl
    WHERE name = wanted AND token = given AND owner IS NOT NULL AND until > {now}();
    RETURN FOUND;
END $taskmq$;

CREATE FUNCTION {release_1}(wanted text, given bigint) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    UPDATE {leases} SET owner = NULL, until = {now}()
    WHERE name = wanted AND token = given AND owner IS NOT NULL AND until > {now}();
    RETURN FOUND;
END $taskmq$;

-- Turns under rates, in order, as `taskmq.transport.rates.take`. Rows are locked by name first.
CREATE FUNCTION {take_tokens_1}(names text[], intervals float8[], dues float8[], tolerances float8[])
RETURNS SETOF float8 LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
DECLARE
    at float8 := {now}();
    rate {rates};
    n integer;
    may boolean;
    turn float8;
BEGIN
    INSERT INTO {rates} (name, free_at, promised_until)
    SELECT DISTINCT t.name, 0, 0 FROM unnest(names) AS t (name) ORDER BY 1 ON CONFLICT DO NOTHING;
    PERFORM 1 FROM {rates} r WHERE r.name = ANY(names) ORDER BY r.name FOR UPDATE;
    FOR n IN 1 .. coalesce(array_length(names, 1), 0) LOOP
        SELECT * INTO rate FROM {rates} r WHERE r.name = names[n];
        IF dues[n] > 0 AND dues[n] <= at + tolerances[n] THEN
            -- Timers are not exact: what had this turn may come a little before the one in front of it.
            may := rate.free_at - at <= tolerances[n];
        ELSE
            may := greatest(rate.free_at, rate.promised_until) <= at;
        END IF;
        IF may THEN
            rate.free_at := greatest(at, rate.free_at) + intervals[n];
            rate.promised_until := greatest(rate.promised_until, rate.free_at);
            RETURN NEXT 0.0;
        ELSE
            turn := greatest(at, rate.free_at, rate.promised_until);
            rate.promised_until := turn + intervals[n];
            RETURN NEXT greatest(turn - at, 0.001);
        END IF;
        UPDATE {rates} r SET free_at = rate.free_at, promised_until = rate.promised_until
        WHERE r.name = names[n];
    END LOOP;
END $taskmq$;

-- The elected one stays while it beats.
CREATE FUNCTION {heartbeat_1}(me text, missed float8, said bytea, OUT at float8, OUT maintain boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    at := {now}();
    INSERT INTO {workers} (id, heartbeat_at, stale_at, info) VALUES (me, at, at + missed, said)
    ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, stale_at = excluded.stale_at,
        info = excluded.info;
    IF NOT EXISTS (
        SELECT 1 FROM {facts} f JOIN {workers} w ON w.id = f.value
        WHERE f.name = 'maintainer' AND w.stale_at > at
    ) THEN
        -- Looked at again under the lock: of several at once one is elected.
        INSERT INTO {facts} (name, value) VALUES ('maintainer', '') ON CONFLICT DO NOTHING;
        PERFORM 1 FROM {facts} f WHERE f.name = 'maintainer' FOR UPDATE;
        UPDATE {facts} f SET value = me WHERE f.name = 'maintainer'
            AND NOT EXISTS (SELECT 1 FROM {workers} w WHERE w.id = f.value AND w.stale_at > at);
    END IF;
    maintain := EXISTS (SELECT 1 FROM {facts} f WHERE f.name = 'maintainer' AND f.value = me);
END $taskmq$;

CREATE FUNCTION {deregister_1}(me text) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $taskmq$
BEGIN
    DELETE FROM {workers} WHERE id = me;
    DELETE FROM {facts} WHERE name = 'maintainer' AND value = me;
    PERFORM {awake_1}(me);
END $taskmq$;
