-- What has been kept long enough.

-- Turns dead letters into mere records, which are pruned in their time; how many.
CREATE FUNCTION {drop_dead_1}(numbers bigint[], at float8) RETURNS integer LANGUAGE plpgsql AS $taskmq$
DECLARE
    dropped bigint[];
BEGIN
    WITH gone AS (DELETE FROM {dead} WHERE job = ANY(numbers) RETURNING job)
    SELECT array_agg(job) INTO dropped FROM gone;
    IF dropped IS NOT NULL THEN
        INSERT INTO {endings} (at, jobs) VALUES (at, dropped);
    END IF;
    RETURN coalesce(array_length(dropped, 1), 0);
END $taskmq$;

CREATE FUNCTION {prune_dead_1}(at float8, most integer, ttl float8, max_ bigint) RETURNS integer
LANGUAGE plpgsql AS $taskmq$
DECLARE
    dropped integer := 0;
    excess bigint;
BEGIN
    IF ttl IS NOT NULL THEN
        dropped := {drop_dead_1}(ARRAY(
            SELECT job FROM {dead} WHERE died_at <= at - ttl ORDER BY died_at, job
            LIMIT most FOR UPDATE SKIP LOCKED
        ), at);
    END IF;
    -- No row takes less than 48 bytes: a small table needs no count.
    IF pg_relation_size({'dead}::regclass) > max_ * 48 THEN
        SELECT count(*) - max_ INTO excess FROM (SELECT 1 FROM {dead} LIMIT max_ + most) d;
        IF excess > 0 THEN
            dropped := dropped + {drop_dead_1}(ARRAY(
                SELECT job FROM {dead} ORDER BY died_at, job LIMIT least(excess, most)
                FOR UPDATE SKIP LOCKED
            ), at);
        END IF;
    END IF;
    RETURN dropped;
END $taskmq$;

-- Looks at the records whose time has come and drops those that are really over; how many.
CREATE FUNCTION {prune_jobs_1}(at_ float8, most integer, finished_max bigint) RETURNS integer
LANGUAGE plpgsql AS $taskmq$
DECLARE
    excess bigint := 0;
    looked integer := 0;
    dropped integer := 0;
    entry record;
    doomed bigint[];
BEGIN
    IF finished_max IS NOT NULL THEN
        SELECT coalesce(sum(array_length(jobs, 1)), 0) - finished_max INTO excess FROM {endings};
    END IF;
    WHILE looked < most LOOP
        SELECT ctid, at, jobs INTO entry FROM {endings}
        WHERE at <= CASE WHEN dropped < excess THEN 'infinity' ELSE at_ END
        ORDER BY at LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        DELETE FROM {endings} WHERE ctid = entry.ctid;
        IF array_length(entry.jobs, 1) > most - looked THEN
            INSERT INTO {endings} (at, jobs) VALUES (entry.at, entry.jobs[most - looked + 1:]);
            entry.jobs := entry.jobs[1:most - looked];
        END IF;
        looked := looked + array_length(entry.jobs, 1);
        dropped := dropped + {prune_entry_1}(entry.jobs, at_, excess - dropped);
    END LOOP;
    RETURN dropped;
END $taskmq$;

-- Drops what is over among these, and keeps the others in mind. A step's record stays while its run lives,
-- and then as long as the run's.
CREATE FUNCTION {prune_entry_1}(numbers bigint[], at_ float8, excess bigint) RETURNS integer
LANGUAGE plpgsql AS $taskmq$
DECLARE
    doomed bigint[];
BEGIN
    WITH found AS MATERIALIZED (
        SELECT j.job, t.n, j.run, coalesce(
            CASE WHEN j.run IS NOT NULL THEN (
                SELECT CASE WHEN r.state IS NULL OR EXISTS (SELECT 1 FROM {dead} d WHERE d.job = r.job)
                    THEN at_ + greatest(j.job_ttl, 30) ELSE r.finished_at + r.job_ttl END
                FROM {jobs} r WHERE r.id = j.run
            ) END, j.finished_at + j.job_ttl) AS until
        FROM unnest(numbers) WITH ORDINALITY AS t (job, n)
        JOIN {jobs} j ON j.job = t.job AND j.job = ANY(numbers)
        WHERE j.state IS NOT NULL
            AND j.job <> ALL(ARRAY(SELECT d.job FROM {dead} d WHERE d.job = ANY(numbers)))
    ), judged AS (
        SELECT f.job, f.until,
            f.until <= at_ OR (f.run IS NULL AND row_number() OVER (ORDER BY f.n) <= excess) AS over
        FROM found f
    ), kept AS (
        INSERT INTO {endings} (at, jobs)
        SELECT g.until, array_agg(g.job) FROM judged g WHERE NOT g.over GROUP BY g.until
    )
    SELECT array_agg(g.job) INTO doomed FROM judged g WHERE g.over;
    IF doomed IS NULL THEN
        RETURN 0;
    END IF;
    WITH gone AS (DELETE FROM {jobs} WHERE job = ANY(doomed) AND state IS NOT NULL RETURNING job)
    SELECT array_agg(job) INTO doomed FROM gone;
    DELETE FROM {arrivals} WHERE target = ANY(doomed);
    DELETE FROM {barriers} WHERE job = ANY(doomed);
    DELETE FROM {completions} WHERE job = ANY(doomed);
    RETURN coalesce(array_length(doomed, 1), 0);
END $taskmq$;

CREATE FUNCTION {prune_rest_1}(at float8, most integer, worker_ttl float8, rate_kept float8) RETURNS bigint
LANGUAGE plpgsql AS $taskmq$
DECLARE
    total bigint := 0;
    part bigint;
BEGIN
    -- A key outlives its time while its job lives: looked at again later.
    UPDATE {keys} SET look_at = at + 60 WHERE key = ANY(ARRAY(
        SELECT k.key FROM {keys} k WHERE k.look_at <= at
            AND (SELECT true FROM {messages} m WHERE m.job = k.job)
        LIMIT most FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM {keys} WHERE key = ANY(ARRAY(
        SELECT k.key FROM {keys} k WHERE k.look_at <= at LIMIT most FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS part = ROW_COUNT;
    total := total + part;
    DELETE FROM {slots} WHERE key = ANY(ARRAY(
        SELECT key FROM {slots} WHERE used = 0 ORDER BY key LIMIT most FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM {spent} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {spent} WHERE until <= at ORDER BY until LIMIT most FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS part = ROW_COUNT;
    total := total + part;
    DELETE FROM {workers} WHERE heartbeat_at <= at - worker_ttl;
    GET DIAGNOSTICS part = ROW_COUNT;
    total := total + part;
    DELETE FROM {leases} WHERE until <= at - 86400;
    GET DIAGNOSTICS part = ROW_COUNT;
    total := total + part;
    DELETE FROM {rates} WHERE name = ANY(ARRAY(
        SELECT name FROM {rates} WHERE greatest(free_at, promised_until) <= at - rate_kept
        LIMIT most FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS part = ROW_COUNT;
    DELETE FROM {sleepers} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {sleepers} WHERE until <= at - 60 ORDER BY until LIMIT most FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM {watches} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {watches} WHERE until <= at - 60 ORDER BY until LIMIT most FOR UPDATE SKIP LOCKED
    ));
    RETURN total + part;
END $taskmq$;
