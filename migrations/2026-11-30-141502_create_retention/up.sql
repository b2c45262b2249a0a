-- Retention: what every subscription has passed, and is old enough, goes. Each function does some of
-- it in the caller's transaction, with its owner's rights: a relay may execute them, and need not own
-- a table. row_security = off: a policy must be an error, never a cursor that is not seen.

CREATE TABLE outbox.retired_partitions (
    leaf       text        NOT NULL,
    retired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT retired_partitions_pkey PRIMARY KEY (leaf)
);
COMMENT ON TABLE outbox.retired_partitions IS 'Partitions that were emptied and wait to be dropped, which needs a moment without any emit';

-- For deleting old keys. It grows at its right edge only: an emit with a key takes about 2 µs and
-- 70 bytes of WAL more; without it every deletion would read the whole table.
CREATE INDEX dedup_keys_created_at_idx ON outbox.dedup_keys (created_at);

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

-- What operators did, once nobody can ask about it any more: a discarded event that is still in the
-- log would count as published, and be replayed.
CREATE FUNCTION outbox.delete_records(retention interval) RETURNS integer
LANGUAGE plpgsql STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
SET row_security = off
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    discarded integer;
    replays   integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT d.subscription, d.seq FROM outbox.discarded d
        WHERE d.discarded_at < clock_timestamp() - retention
          AND NOT EXISTS (SELECT FROM outbox.events e WHERE e.seq = d.seq)
        ORDER BY d.discarded_at LIMIT 2000 FOR UPDATE SKIP LOCKED
    )
    DELETE FROM outbox.discarded d USING old WHERE d.subscription = old.subscription AND d.seq = old.seq;
    GET DIAGNOSTICS discarded = ROW_COUNT;
    WITH old AS MATERIALIZED (
        SELECT r.id FROM outbox.replays r
        WHERE r.finished_at < clock_timestamp() - retention
        ORDER BY r.finished_at LIMIT 2000 FOR UPDATE SKIP LOCKED
    )
    DELETE FROM outbox.replays r USING old WHERE r.id = old.id;
    GET DIAGNOSTICS replays = ROW_COUNT;
    RETURN discarded + replays;
END
$$;
COMMENT ON FUNCTION outbox.delete_records(interval) IS 'Deletes some records of discarded events that have left the log, and of replays, older than this; returns their number';
REVOKE EXECUTE ON FUNCTION outbox.delete_records(interval) FROM PUBLIC;

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

INSERT INTO outbox.migrations (version, name) VALUES ('20261130141502', 'create_retention');
