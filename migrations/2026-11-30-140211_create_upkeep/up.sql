-- Upkeep: partitions ahead of the sequence. The function does one step in the caller's transaction,
-- with its owner's rights: a relay may execute it, and need not own a table.

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

INSERT INTO outbox.migrations (version, name) VALUES ('20261130140211', 'create_upkeep');
