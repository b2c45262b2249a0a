-- Upkeep: partitions ahead of the sequence, retention behind the cursors. Each function does one
-- step in the caller's transaction, with its owner's rights: a relay may execute them, and need not
-- own a table. row_security = off: a policy must be an error, never a cursor that is not seen.

CREATE TABLE outbox.upkeep (
    singleton      boolean     NOT NULL DEFAULT true,
    failed         integer     NOT NULL DEFAULT 0,
    next_try_at    timestamptz NOT NULL DEFAULT '-infinity',
    excluded_from  bigint,
    excluded_to    bigint,
    excluded_width bigint,
    excluded_until timestamptz,
    CONSTRAINT upkeep_pkey PRIMARY KEY (singleton),
    CONSTRAINT upkeep_has_one_row CHECK (singleton),
    CONSTRAINT a_range_is_excluded_as_a_whole CHECK (
        num_nulls(excluded_from, excluded_to, excluded_width, excluded_until) IN (0, 4))
);
COMMENT ON TABLE outbox.upkeep IS 'One row about the making of partitions, shared by all relays';
COMMENT ON COLUMN outbox.upkeep.failed IS 'How many tries failed in a row';
COMMENT ON COLUMN outbox.upkeep.next_try_at IS 'No sooner than this: a try can make emits into the default partition wait';
COMMENT ON COLUMN outbox.upkeep.excluded_from IS 'First seq of the ranges that a CHECK keeps out of the default partition while they are being attached; NULL: none';
COMMENT ON COLUMN outbox.upkeep.excluded_to IS 'First seq above them';
COMMENT ON COLUMN outbox.upkeep.excluded_width IS 'How many events each of them holds';
COMMENT ON COLUMN outbox.upkeep.excluded_until IS 'Then whoever made the CHECK has crashed, and it goes';
INSERT INTO outbox.upkeep DEFAULT VALUES;

CREATE TABLE outbox.retired_partitions (
    leaf       text        NOT NULL,
    retired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT retired_partitions_pkey PRIMARY KEY (leaf)
);
COMMENT ON TABLE outbox.retired_partitions IS 'Partitions that were emptied and wait to be dropped, which needs a moment without any emit';

-- For deleting old keys. It grows at its right edge only: an emit with a key takes about 2 µs and
-- 70 bytes of WAL more; without it every deletion would read the whole table.
CREATE INDEX dedup_keys_created_at_idx ON outbox.dedup_keys (created_at);

CREATE VIEW outbox.leaves AS
    SELECT c.oid::regclass AS oid, c.relname::text AS leaf,
           substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM \(''(-?\d+)''\)')::bigint AS from_seq,
           substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \(''(-?\d+)''\)')::bigint AS to_seq
    FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'outbox.events'::regclass;
COMMENT ON VIEW outbox.leaves IS 'The log''s partitions and their bounds; the default partition has none';

-- What partitions the next two days need: two ranges of about a day each, 100 thousand to 20 million
-- events by the rate of the last day.
CREATE FUNCTION outbox.plan_partitions(
    OUT next_seq   bigint,
    OUT is_overrun boolean,  -- events go into the default partition
    OUT start_seq  bigint,
    OUT width      bigint,
    OUT gap        bigint,   -- so much further the sequence does not get soon
    OUT missing    integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET row_security = off
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    per_day bigint;
    ends    bigint;
    ahead   bigint;
    strays  bigint;
BEGIN
    next_seq := pg_sequence_last_value('outbox.event_seq') + 1;
    -- Bounded: a sequence that was set forward is no traffic.
    SELECT least(greatest((newest.seq_after - oldest.seq_after)
                          / greatest(extract(epoch FROM newest.ticked_at - oldest.ticked_at), 3600) * 86400, 0), 1e12)::bigint
    INTO per_day
    FROM (SELECT t.seq_after, t.ticked_at FROM outbox.ticks t ORDER BY t.tick DESC LIMIT 1) newest,
         (SELECT t.seq_after, t.ticked_at FROM outbox.ticks t
          WHERE t.tick >= ((extract(epoch FROM clock_timestamp()) - 86400) * 1000000)::bigint
          ORDER BY t.tick LIMIT 1) oldest;
    per_day := coalesce(per_day, 0);
    width := least(greatest(per_day, 100000), 20000000);
    gap := greatest(per_day, 5000000);
    SELECT max(l.to_seq), coalesce(sum(l.to_seq - greatest(l.from_seq, next_seq)), 0),
           coalesce(bool_and(l.from_seq > next_seq), true)
    INTO ends, ahead, is_overrun
    FROM outbox.leaves l WHERE l.to_seq > next_seq;
    -- A row of the default partition in the new range would make every ATTACH fail.
    SELECT max(e.seq) + 1 INTO strays FROM outbox.events_default e;
    start_seq := CASE WHEN ends IS NULL THEN greatest(next_seq, strays) + gap ELSE greatest(ends, strays) END;
    missing := greatest(ceil((least(greatest(width, per_day) * 2, width * 64) - ahead)::numeric / width), 0);
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.plan_partitions() FROM PUBLIC;

CREATE FUNCTION outbox.keep_partitions_ahead(OUT made integer, OUT again boolean, OUT problem text)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET row_security = off
AS $$
DECLARE
    plan        record;
    state       outbox.upkeep%ROWTYPE;
    is_checked  boolean;  -- NULL: there is no CHECK
    is_near     boolean;
BEGIN
    made := 0;
    again := false;
    -- Any relay does it, one at a time.
    IF NOT pg_try_advisory_xact_lock(7810764919218962545) THEN
        RETURN;
    END IF;
    SELECT * INTO STRICT plan FROM outbox.plan_partitions();
    SELECT * INTO STRICT state FROM outbox.upkeep;
    SELECT c.convalidated INTO is_checked FROM pg_constraint c
    WHERE c.conrelid = 'outbox.events_default'::regclass AND c.conname = 'rows_lie_outside_the_next_ranges';

    IF is_checked IS NULL THEN
        IF plan.missing = 0 OR clock_timestamp() < state.next_try_at THEN
            RETURN;
        END IF;
        BEGIN
            -- ATTACH reads the default partition under its exclusive lock, unless a CHECK tells that
            -- no row of it belongs into the new range. Only far above the sequence, so that the
            -- CHECK can't refuse an event.
            IF plan.start_seq - plan.next_seq >= plan.gap
               AND pg_relation_size('outbox.events_default') > 16 * 1024 * 1024 THEN
                plan.missing := least(plan.missing, 4);  -- all attached under one lock
                EXECUTE format(
                    'ALTER TABLE outbox.events_default ADD CONSTRAINT rows_lie_outside_the_next_ranges CHECK (seq < %s OR seq >= %s) NOT VALID',
                    plan.start_seq, plan.start_seq + plan.missing * plan.width);
                UPDATE outbox.upkeep
                SET excluded_from = plan.start_seq, excluded_to = plan.start_seq + plan.missing * plan.width,
                    excluded_width = plan.width, excluded_until = clock_timestamp() + interval '1 min';
                again := true;
            ELSE
                PERFORM outbox.create_partition(plan.start_seq, plan.start_seq + plan.width);
                made := 1;
                again := plan.missing > 1;
                UPDATE outbox.upkeep SET failed = 0, next_try_at = '-infinity' WHERE upkeep.failed > 0;
            END IF;
            RETURN;
        EXCEPTION WHEN query_canceled OR OTHERS THEN
            problem := SQLERRM;
        END;
    ELSE
        is_near := coalesce(plan.next_seq + plan.gap / 2 > state.excluded_from, true);
        BEGIN
            IF is_near OR clock_timestamp() >= state.excluded_until THEN
                problem := 'the ranges were not attached in time';
            ELSIF NOT is_checked THEN
                -- Reads the default partition, but locks neither reads nor inserts.
                ALTER TABLE outbox.events_default VALIDATE CONSTRAINT rows_lie_outside_the_next_ranges;
                again := true;
                RETURN;
            ELSE
                WHILE state.excluded_from < state.excluded_to LOOP
                    PERFORM outbox.create_partition(state.excluded_from, state.excluded_from + state.excluded_width);
                    state.excluded_from := state.excluded_from + state.excluded_width;
                    made := made + 1;
                END LOOP;
                PERFORM outbox.end_exclusion();
                UPDATE outbox.upkeep SET failed = 0, next_try_at = '-infinity';
                RETURN;
            END IF;
        EXCEPTION WHEN query_canceled OR OTHERS THEN
            made := 0;
            problem := SQLERRM;
        END;
        -- The CHECK must be gone before the sequence comes: by all means when it is near, and else
        -- as rarely as everything that makes emits wait.
        IF is_near OR clock_timestamp() >= state.next_try_at THEN
            BEGIN
                IF is_near THEN
                    PERFORM set_config('lock_timeout', '3s', true);
                END IF;
                PERFORM outbox.end_exclusion();
            EXCEPTION WHEN query_canceled OR OTHERS THEN
                problem := problem || '; constraint rows_lie_outside_the_next_ranges of outbox.events_default could not be dropped yet: ' || SQLERRM;
                UPDATE outbox.upkeep SET excluded_until = '-infinity' WHERE upkeep.excluded_until IS NOT NULL;
            END;
        ELSE
            RETURN;
        END IF;
    END IF;
    UPDATE outbox.upkeep
    SET failed = upkeep.failed + 1,
        next_try_at = clock_timestamp() + CASE WHEN plan.is_overrun
            THEN least(interval '30 s' * 2 ^ least(upkeep.failed, 10), interval '30 min')
            ELSE least(interval '5 s' * 2 ^ least(upkeep.failed, 10), interval '5 min') END;
END
$$;
COMMENT ON FUNCTION outbox.keep_partitions_ahead() IS 'One step towards the partitions that the next two days need: how many it made, whether the next step is due at once, and what went wrong';
REVOKE EXECUTE ON FUNCTION outbox.keep_partitions_ahead() FROM PUBLIC;

CREATE FUNCTION outbox.end_exclusion() RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    ALTER TABLE outbox.events_default DROP CONSTRAINT IF EXISTS rows_lie_outside_the_next_ranges;
    UPDATE outbox.upkeep
    SET excluded_from = NULL, excluded_to = NULL, excluded_width = NULL, excluded_until = NULL;
$$;
REVOKE EXECUTE ON FUNCTION outbox.end_exclusion() FROM PUBLIC;

-- All events up to this seq were passed by every subscription, and the tick that closed them is
-- older. Be K that tick: a transaction that drew one of them did so before K read the sequence, so
-- its id lies below K's. Where the snapshot at a cursor has no older transaction in progress, all
-- of those had ended: what they committed was delivered or parked, and no more can come.
-- A cursor that is missing, lost its tick or comes from before a rebase holds everything; so does
-- having no subscription.
CREATE FUNCTION outbox.passed_seq(older_than interval) RETURNS bigint
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
SET row_security = off
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT least(passed.seq_before, old.seq_before)
    FROM (
        SELECT coalesce(CASE WHEN t.seq_before >= m.seq_floor THEN pg_snapshot_xmin(t.snapshot) END, '0'::xid8) AS xmin,
               m.seq_floor
        FROM outbox.meta m
        CROSS JOIN outbox.subscriptions s
        CROSS JOIN generate_series(0, 15) AS each (shard)
        LEFT JOIN outbox.cursors c ON c.subscription = s.name AND c.shard = each.shard
        LEFT JOIN outbox.ticks t ON t.tick = c.tick
        ORDER BY 1 LIMIT 1
    ) slowest
    CROSS JOIN LATERAL (
        SELECT k.seq_before FROM outbox.ticks k
        WHERE k.xid <= slowest.xmin AND k.seq_before >= slowest.seq_floor
        ORDER BY k.xid DESC LIMIT 1
    ) passed
    CROSS JOIN LATERAL (
        SELECT k.seq_before FROM outbox.ticks k
        WHERE k.tick <= ((extract(epoch FROM clock_timestamp()) - extract(epoch FROM older_than)) * 1000000)::bigint
        ORDER BY k.tick DESC LIMIT 1
    ) old
    UNION ALL SELECT 0
    ORDER BY 1 DESC LIMIT 1
$$;
COMMENT ON FUNCTION outbox.passed_seq(interval) IS 'The seq up to which every subscription has passed all events, if they are older than this';
REVOKE EXECUTE ON FUNCTION outbox.passed_seq(interval) FROM PUBLIC;

-- Empties the oldest partition that retention lets go, and returns its name.
CREATE FUNCTION outbox.retire_partition(retention interval) RETURNS text
LANGUAGE plpgsql STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET row_security = off
AS $$
DECLARE
    passed bigint;
    oldest record;
BEGIN
    -- An older snapshot would not see the subscription that was created while we waited.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'retention needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;
    IF NOT pg_try_advisory_xact_lock(7810764919218962546) THEN
        RETURN NULL;
    END IF;
    passed := outbox.passed_seq(retention);
    SELECT l.leaf, l.to_seq INTO oldest FROM outbox.leaves l
    WHERE l.to_seq - 1 <= passed
      AND NOT EXISTS (SELECT FROM outbox.retired_partitions r WHERE r.leaf = l.leaf)
    ORDER BY l.to_seq LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- The leaf before the tick lock: whoever waits for the leaf must not hold up ticks. Then nobody
    -- can tick, or create or rewind a subscription, and only then the answer counts.
    EXECUTE format('LOCK TABLE ONLY outbox.%I IN ACCESS EXCLUSIVE MODE', oldest.leaf);
    PERFORM pg_advisory_xact_lock(outbox.tick_lock_key());
    IF oldest.to_seq - 1 > outbox.passed_seq(retention) THEN
        RETURN NULL;
    END IF;
    EXECUTE format('TRUNCATE TABLE ONLY outbox.%I', oldest.leaf);
    INSERT INTO outbox.retired_partitions (leaf) VALUES (oldest.leaf);
    RETURN oldest.leaf;
END
$$;
COMMENT ON FUNCTION outbox.retire_partition(interval) IS 'Empties the oldest partition that all subscriptions have passed and that is older than this; returns its name';
REVOKE EXECUTE ON FUNCTION outbox.retire_partition(interval) FROM PUBLIC;

-- Drops a partition that was emptied. That takes the whole log exclusively: only if it is free this
-- very moment, so that no emit ever waits for it.
CREATE FUNCTION outbox.drop_retired_partition() RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET row_security = off
AS $$
DECLARE
    oldest   text;
    has_rows boolean;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7810764919218962546) THEN
        RETURN NULL;
    END IF;
    -- Dropped or detached by hand.
    DELETE FROM outbox.retired_partitions r
    WHERE NOT EXISTS (SELECT FROM outbox.leaves l WHERE l.leaf = r.leaf);
    SELECT l.leaf INTO oldest FROM outbox.retired_partitions r JOIN outbox.leaves l ON l.leaf = r.leaf
    ORDER BY l.to_seq LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    BEGIN
        -- The parent first, as everybody else does.
        LOCK TABLE ONLY outbox.events IN ACCESS EXCLUSIVE MODE NOWAIT;
        EXECUTE format('LOCK TABLE ONLY outbox.%I IN ACCESS EXCLUSIVE MODE NOWAIT', oldest);
        EXECUTE format('SELECT EXISTS (SELECT FROM ONLY outbox.%I)', oldest) INTO has_rows;
        IF has_rows THEN
            RAISE EXCEPTION 'partition outbox.% was emptied by retention and has rows again', oldest
                USING HINT = 'Somebody gave them a seq. Move them, or delete its row from outbox.retired_partitions.';
        END IF;
        EXECUTE format('DROP TABLE outbox.%I', oldest);
    EXCEPTION WHEN lock_not_available THEN
        RETURN NULL;
    END;
    DELETE FROM outbox.retired_partitions r WHERE r.leaf = oldest;
    RETURN oldest;
END
$$;
COMMENT ON FUNCTION outbox.drop_retired_partition() IS 'Drops a partition that retention has emptied, if nobody uses the log this very moment; returns its name';
REVOKE EXECUTE ON FUNCTION outbox.drop_retired_partition() FROM PUBLIC;

-- The lowest rows of the log that all subscriptions have passed and that are older than this, 2000
-- at a time. Under the tick lock, as retention is: a subscription that starts with the earliest
-- event must find the same ones whenever it reads.
CREATE FUNCTION outbox.purge_events(older_than interval) RETURNS integer
LANGUAGE plpgsql STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET row_security = off
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    passed  bigint;
    lowest  bigint;
    upto    bigint;
    deleted integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'retention needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;
    passed := outbox.passed_seq(older_than);
    SELECT min(b.seq), max(b.seq) INTO lowest, upto FROM (
        SELECT e.seq FROM outbox.events e WHERE e.seq <= passed ORDER BY e.seq LIMIT 2000) b;
    IF lowest IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(outbox.tick_lock_key());
    upto := least(upto, outbox.passed_seq(older_than));
    DELETE FROM outbox.events e WHERE e.seq >= lowest AND e.seq <= upto;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION outbox.purge_events(interval) IS 'Deletes some events that all subscriptions have passed and that are older than this; returns their number';
REVOKE EXECUTE ON FUNCTION outbox.purge_events(interval) FROM PUBLIC;

-- The same for the default partition, which is never dropped.
CREATE FUNCTION outbox.purge_default_partition(retention interval) RETURNS integer
LANGUAGE plpgsql STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET row_security = off
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    passed  bigint;
    upto    bigint;
    deleted integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'retention needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;
    passed := outbox.passed_seq(retention);
    SELECT max(b.seq) INTO upto FROM (
        SELECT e.seq FROM outbox.events_default e WHERE e.seq <= passed ORDER BY e.seq LIMIT 2000) b;
    IF upto IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(outbox.tick_lock_key());
    upto := least(upto, outbox.passed_seq(retention));
    DELETE FROM outbox.events_default e WHERE e.seq <= upto;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION outbox.purge_default_partition(interval) IS 'Deletes some events of the default partition that all subscriptions have passed and that are older than this; returns their number';
REVOKE EXECUTE ON FUNCTION outbox.purge_default_partition(interval) FROM PUBLIC;

CREATE FUNCTION outbox.delete_dedup_keys(retention interval) RETURNS integer
LANGUAGE plpgsql STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET row_security = off
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    deleted integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT d.dedup_key FROM outbox.dedup_keys d
        WHERE d.created_at < clock_timestamp() - retention
        ORDER BY d.created_at LIMIT 2000 FOR UPDATE SKIP LOCKED
    )
    DELETE FROM outbox.dedup_keys d USING old WHERE d.dedup_key = old.dedup_key;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION outbox.delete_dedup_keys(interval) IS 'Deletes some dedup keys older than this; returns their number';
REVOKE EXECUTE ON FUNCTION outbox.delete_dedup_keys(interval) FROM PUBLIC;

-- Ticks below every cursor, but for one in ten minutes: they tell how much traffic there was, and
-- which events are older than the retention. Genesis stays, and so does the newest one beyond the
-- retention.
CREATE FUNCTION outbox.delete_ticks(retention interval) RETURNS integer
LANGUAGE plpgsql STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET row_security = off
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    day     CONSTANT bigint := 86400000000;
    slot    CONSTANT bigint := 600000000;
    now     CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    kept    CONSTANT bigint := (extract(epoch FROM retention) * 1000000)::bigint;
    surplus bigint[];
    deleted integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'retention needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;
    surplus := ARRAY(
        SELECT k.tick FROM outbox.ticks k
        WHERE k.tick > 0
          AND k.tick < (SELECT min(c.tick) FROM outbox.cursors c)
          AND k.tick < now - slot
          AND k.tick IS DISTINCT FROM (SELECT max(h.tick) FROM outbox.ticks h WHERE h.tick <= now - kept)
          AND (k.tick < now - greatest(kept, day) - day
               OR EXISTS (SELECT FROM outbox.ticks earlier
                          WHERE earlier.tick >= k.tick - k.tick % slot AND earlier.tick < k.tick))
        ORDER BY k.tick LIMIT 2000);
    IF cardinality(surplus) = 0 THEN
        RETURN 0;
    END IF;
    -- A subscription that was created at an old tick while we waited must be seen.
    PERFORM pg_advisory_xact_lock(outbox.tick_lock_key());
    DELETE FROM outbox.ticks t
    WHERE t.tick = ANY (surplus) AND t.tick < (SELECT min(c.tick) FROM outbox.cursors c);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION outbox.delete_ticks(interval) IS 'Deletes some ticks that no cursor, no rate and no retention needs; returns their number';
REVOKE EXECUTE ON FUNCTION outbox.delete_ticks(interval) FROM PUBLIC;

CREATE VIEW outbox.partitions AS
    SELECT l.leaf, l.from_seq, l.to_seq,
           greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0) AS rows,
           pg_total_relation_size(c.oid) AS bytes,
           CASE
               WHEN pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT' THEN 'default'
               WHEN EXISTS (SELECT FROM outbox.retired_partitions r WHERE r.leaf = l.leaf) THEN 'retired'
               WHEN l.from_seq > reached.seq THEN 'ahead'
               WHEN l.to_seq <= passed.seq + 1 THEN 'delivered'
               ELSE 'current'
           END AS state
    FROM outbox.leaves l
    JOIN pg_catalog.pg_class c ON c.oid = l.oid
    CROSS JOIN (SELECT pg_sequence_last_value('outbox.event_seq') AS seq) reached
    CROSS JOIN (SELECT outbox.passed_seq('0') AS seq) passed
    ORDER BY l.from_seq;
COMMENT ON VIEW outbox.partitions IS 'The log''s partitions: ahead of the sequence, current (being written, or not yet passed by all subscriptions), delivered, retired (empty, waiting to be dropped), default';
COMMENT ON COLUMN outbox.partitions.rows IS 'Estimated';
COMMENT ON COLUMN outbox.partitions.bytes IS 'With indexes';

INSERT INTO outbox.migrations (version, name) VALUES ('20261130140211', 'create_upkeep');
