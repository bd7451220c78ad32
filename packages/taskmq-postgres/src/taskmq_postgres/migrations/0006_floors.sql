-- Old snapshots. While some transaction keeps one, nothing that was claimed since can be vacuumed, and each look at
-- the front of a queue walks over all of it (half a microsecond a row). So a walk that took long leaves a
-- floor: the place where the ready messages of that queue and band begin. It is a hint for a second, or twenty
-- times what a walk takes; then one caller walks again. What comes back to an earlier place lowers it; only a
-- message that is committed late, or in the very moment, waits until the next walk.

-- Whether what was begun then took long, and because of a walk: a machine without time to spare is slow too.
-- A look at many queues meets some rows of each.
CREATE FUNCTION {is_slow_1}(began timestamptz, queues integer) RETURNS boolean LANGUAGE plpgsql AS $taskmq$
BEGIN
    RETURN clock_timestamp() - began > interval '4 ms'
        AND pg_stat_get_xact_tuples_returned(to_regclass({'messages_ready})) > 4000 + 40 * queues;
END $taskmq$;

CREATE FUNCTION {floor_1}(named text, band integer, at_ bigint, at float8, took float8) RETURNS void
LANGUAGE plpgsql AS $taskmq$
BEGIN
    INSERT INTO {floors} (queue, priority, place, until)
    VALUES (named, band, at_, at + greatest(1, 20 * took)) ON CONFLICT DO NOTHING;
END $taskmq$;

-- Follows the front of a band, without waiting for others that do.
CREATE FUNCTION {move_floor_1}(named text, band integer, at_ bigint) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    UPDATE {floors} SET place = at_ WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {floors} WHERE queue = named AND priority = band FOR UPDATE SKIP LOCKED
    ));
END $taskmq$;

-- The bands that a walk found empty, from one down to another, hold nothing before what is quite new.
CREATE FUNCTION {empty_floors_1}(named text, highest integer, lowest integer, at float8, took float8)
RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    newest bigint;
BEGIN
    SELECT last_value - 500 INTO newest FROM {numbers};
    FOR band IN REVERSE highest .. lowest LOOP
        PERFORM {floor_1}(named, band, newest, at, took);
    END LOOP;
END $taskmq$;

-- After a slow pick from all bands of one queue.
CREATE FUNCTION {raise_floors_1}(
    named text, picked bigint[], complete boolean, top integer, began timestamptz, at float8
) RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    took float8 := date_part('epoch', clock_timestamp() - began);
    found_ record;
    below integer := top;
BEGIN
    FOR found_ IN
        SELECT m.priority, min(m.place) AS place FROM {messages} m WHERE m.job = ANY(picked)
        GROUP BY m.priority ORDER BY m.priority DESC
    LOOP
        PERFORM {empty_floors_1}(named, below, found_.priority + 1, at, took);
        PERFORM {floor_1}(named, found_.priority, found_.place, at, took);
        below := found_.priority - 1;
    END LOOP;
    IF complete THEN
        PERFORM {empty_floors_1}(named, below, -9, at, took);
    END IF;
END $taskmq$;

-- Walks again for one floor whose time is over; others go on with it meanwhile.
CREATE FUNCTION {refresh_floor_1}(names text[], at float8) RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    old {floors};
    newest bigint;
    first_ bigint;
    began timestamptz := clock_timestamp();
    took float8;
BEGIN
    SELECT * INTO old FROM {floors} f WHERE f.queue = ANY(names) AND f.until <= at
    ORDER BY f.until LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT last_value - 500 INTO newest FROM {numbers};
    SELECT m.place INTO first_ FROM {messages} m
    WHERE m.queue = old.queue AND m.phase <= 2 AND m.priority = old.priority ORDER BY m.place LIMIT 1;
    took := date_part('epoch', clock_timestamp() - began);
    IF took < 0.001 THEN
        DELETE FROM {floors} WHERE queue = old.queue AND priority = old.priority;
    ELSE
        UPDATE {floors} SET place = coalesce(first_, newest), until = at + greatest(1, 20 * took)
        WHERE queue = old.queue AND priority = old.priority;
    END IF;
END $taskmq$;

-- For leases the same, by the queue '' and with the time in milliseconds as the place: what was over before has
-- been taken back.
CREATE FUNCTION {is_slow_reap_1}(began timestamptz) RETURNS boolean LANGUAGE plpgsql AS $taskmq$
BEGIN
    RETURN clock_timestamp() - began > interval '20 ms'
        AND pg_stat_get_xact_tuples_returned(to_regclass({'messages_over})) > 20000;
END $taskmq$;

CREATE FUNCTION {lease_floor_1}(at float8) RETURNS float8 LANGUAGE plpgsql AS $taskmq$
BEGIN
    RETURN coalesce((
        SELECT f.place / 1000.0 FROM {floors} f WHERE f.queue = '' AND f.priority = 0 AND f.until > at
    ), '-infinity');
END $taskmq$;

CREATE FUNCTION {raise_lease_floor_1}(began timestamptz, at float8) RETURNS void LANGUAGE plpgsql AS $taskmq$
BEGIN
    INSERT INTO {floors} AS f (queue, priority, place, until)
    VALUES ('', 0, floor((at - 1) * 1000),
        at + greatest(10, 20 * date_part('epoch', clock_timestamp() - began)))
    ON CONFLICT (queue, priority) DO UPDATE SET place = excluded.place, until = excluded.until
    WHERE f.until <= at;
END $taskmq$;

-- Something is ready at an earlier place again.
CREATE FUNCTION {lower_floor_1}(number bigint) RETURNS void LANGUAGE plpgsql AS $taskmq$
DECLARE
    m {messages};
BEGIN
    PERFORM 1 FROM {floors} LIMIT 1;
    IF FOUND THEN
        -- Without waiting: floors that two calls lower crosswise would hold both up.
        SELECT * INTO m FROM {messages} WHERE job = number;
        UPDATE {floors} SET place = m.place WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM {floors}
            WHERE queue = m.queue AND priority = m.priority AND place > m.place FOR UPDATE SKIP LOCKED
        ));
    END IF;
END $taskmq$;

-- The highest priority at which one of the queues has something visible.
CREATE FUNCTION {head_1}(names text[], holds_last boolean, top integer, taken bigint[], slow boolean)
RETURNS integer LANGUAGE plpgsql AS $taskmq$
BEGIN
    IF NOT slow THEN
        RETURN (SELECT max(h.priority) FROM unnest(names) AS q (name) CROSS JOIN LATERAL (
            SELECT priority FROM {messages} m WHERE m.queue = q.name AND m.phase <= 2
                AND (m.phase = 1 OR NOT holds_last) AND m.priority <= top AND m.job <> ALL(taken)
            ORDER BY m.priority DESC LIMIT 1
        ) h);
    END IF;
    FOR band IN REVERSE top .. -9 LOOP
        PERFORM 1 FROM unnest(names) AS q (name)
        CROSS JOIN LATERAL (SELECT coalesce((
            SELECT f.place FROM {floors} f WHERE f.queue = q.name AND f.priority = band
        ), 0) AS place) l
        CROSS JOIN LATERAL (
            SELECT 1 FROM {messages} m WHERE m.queue = q.name AND m.phase <= 2 AND m.priority = band
                AND m.place >= l.place AND (m.phase = 1 OR NOT holds_last) AND m.job <> ALL(taken) LIMIT 1
        ) h LIMIT 1;
        IF FOUND THEN
            RETURN band;
        END IF;
    END LOOP;
    RETURN NULL;
END $taskmq$;
