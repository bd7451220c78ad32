-- Several queues: band by band, each band shared by weight. A queue's next turn is 1/weight later than its
-- last; its credit is how far that is ahead of now, in turns of the whole.

CREATE FUNCTION {share_1}(
    names text[], weights float8[], old_credits float8[], INOUT room integer, INOUT holds_last boolean,
    top integer, at float8, slow boolean, OUT taken bigint[], OUT more boolean, OUT credits float8[]
) LANGUAGE plpgsql AS $taskmq$
DECLARE
    band integer := top;
    done integer[];
    share record;
    picked bigint[];
    passed bigint[] := ARRAY[]::bigint[];
    missed bigint[];
    got integer;
    odd boolean;
    vain integer := 0;
    begun float8 := 0;      -- the virtual time: when the last turn began
    whose bigint[];
    turns integer[];
    best integer;
    mark timestamptz;
    edge bigint;
    old bigint;
    order_ float8[] := ARRAY[]::float8[];
BEGIN
    taken := ARRAY[]::bigint[];
    more := false;
    credits := old_credits;
    WHILE room > 0 LOOP
        mark := clock_timestamp();
        best := {head_1}(names, holds_last, band, taken || passed, slow);
        IF NOT holds_last AND {is_slow_1}(mark, array_length(names, 1)) THEN
            PERFORM {empty_floors_1}(q.name, band, coalesce(best + 1, -9), at,
                date_part('epoch', clock_timestamp() - mark)) FROM unnest(names) AS q (name);
        END IF;
        band := best;
        EXIT WHEN band IS NULL;
        done := ARRAY[]::integer[];
        LOOP
            -- Without locks: whose turns the next `room` would be.
            IF array_length(names, 1) = 1 THEN
                whose := CASE WHEN 1 <> ALL(done) THEN ARRAY[1] END;
                turns := ARRAY[room];
            ELSE
                SELECT array_agg(r.n), array_agg(r.turns) INTO whose, turns FROM (
                    SELECT x.n, count(*)::integer AS turns FROM (
                        SELECT q.n, greatest(begun, credits[q.n]) + (c.nth - 1) / weights[q.n] AS starts,
                            c.nth / weights[q.n] AS ends
                        FROM unnest(names) WITH ORDINALITY AS q (name, n) CROSS JOIN LATERAL (
                            SELECT coalesce((SELECT f.place FROM {floors} f
                                WHERE slow AND f.queue = q.name AND f.priority = band), 0) AS place
                        ) l CROSS JOIN LATERAL (
                            SELECT row_number() OVER () AS nth FROM (
                                SELECT 1 FROM {messages} m WHERE m.queue = q.name AND m.phase <= 2
                                    AND (m.phase = 1 OR NOT holds_last) AND m.priority = band
                                    AND m.place >= l.place AND m.job <> ALL(taken || passed)
                                LIMIT room
                            ) f
                        ) c
                        WHERE q.n <> ALL(done) ORDER BY starts, ends, q.n LIMIT room
                    ) x GROUP BY x.n
                ) r;
            END IF;
            EXIT WHEN whose IS NULL;
            FOR share IN
                SELECT t.n, t.turns, names[t.n] AS name FROM unnest(whose, turns) AS t (n, turns)
                ORDER BY t.n
            LOOP
                edge := 0;
                IF slow THEN
                    SELECT coalesce(max(f.place), 0) INTO edge FROM {floors} f
                    WHERE f.queue = share.name AND f.priority = band;
                END IF;
                old := edge;
                mark := clock_timestamp();
                SELECT array_agg(x.job), bool_or(x.odd), min(x.place) INTO picked, odd, edge FROM (
                    SELECT m.job, m.place, (m.phase = 2 OR m.hooks & 394 <> 0 OR m.expires_at <= at) AS odd
                    FROM {messages} m
                    WHERE m.queue = share.name AND m.phase <= 2 AND (m.phase = 1 OR NOT holds_last)
                        AND m.priority = band AND m.place >= edge AND m.job <> ALL(taken || passed)
                    ORDER BY m.place LIMIT share.turns FOR UPDATE SKIP LOCKED
                ) x;
                -- Who may have no other last chance does not see all that is ready.
                IF edge IS NULL OR holds_last THEN
                    NULL;
                ELSIF {is_slow_1}(mark, array_length(names, 1)) THEN
                    PERFORM {floor_1}(share.name, band, edge, at,
                        date_part('epoch', clock_timestamp() - mark));
                ELSIF old > 0 AND edge > old + 1000 THEN
                    PERFORM {move_floor_1}(share.name, band, edge);
                END IF;
                got := coalesce(array_length(picked, 1), 0);
                IF got < share.turns THEN
                    -- The rest is being taken by others.
                    done := done || share.n::integer;
                END IF;
                CONTINUE WHEN got = 0;
                IF odd THEN
                    vain := vain + got;
                    SELECT a.admitted, a.last, a.passed INTO picked, holds_last, missed
                    FROM {admit_1}(picked, holds_last, at) a;
                    passed := passed || missed;
                    got := coalesce(array_length(picked, 1), 0);
                    vain := vain - got;
                    CONTINUE WHEN got = 0;
                END IF;
                order_ := order_ || ARRAY(
                    SELECT greatest(begun, credits[share.n]) + (n - 1) / weights[share.n]
                        - 1e9 * band + 1e-6 * n / weights[share.n]
                    FROM generate_series(1, got) n
                );
                credits[share.n] := greatest(begun, credits[share.n]) + got / weights[share.n];
                taken := taken || picked;
                room := room - got;
            END LOOP;
            IF vain >= 500 THEN
                more := room > 0;
                EXIT;
            END IF;
            EXIT WHEN room <= 0;
        END LOOP;
        EXIT WHEN more;
        band := band - 1;
    END LOOP;
    more := more OR (room > 0 AND passed <> ARRAY[]::bigint[]);
    IF taken <> ARRAY[]::bigint[] THEN
        taken := ARRAY(
            SELECT t.job FROM unnest(taken, order_) WITH ORDINALITY AS t (job, starts, n)
            ORDER BY t.starts, t.n
        );
        -- Now is where the queue that is least ahead of those that had turns stands.
        begun := coalesce((
            SELECT max(c.value - 1 / weights[c.n]) FROM unnest(credits) WITH ORDINALITY AS c (value, n)
            WHERE c.value IS DISTINCT FROM old_credits[c.n]
        ), 0);
        credits := ARRAY(
            SELECT greatest(0, c.value - greatest(0, begun))
            FROM unnest(credits) WITH ORDINALITY AS c (value, n) ORDER BY c.n
        );
    END IF;
END $taskmq$;
