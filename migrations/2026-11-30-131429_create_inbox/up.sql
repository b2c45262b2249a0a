-- The inbox: what each consumer has handled, so that a repeat has no effect.

-- The smallest UUIDv7 of a moment. Ids from it on were made then or later, by their maker's clock.
CREATE FUNCTION outbox.first_id_at(moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (pg_catalog.lpad(pg_catalog.to_hex(greatest(pg_catalog.floor(extract(epoch FROM moment) * 1000), 0)::bigint), 12, '0')
            || '00000000000000000000')::uuid
$$;

-- Partitioned by event id: UUIDv7 is time-ordered, so that old ones can be dropped. The id alone
-- says which partition it belongs to, so two copies of an event always meet in one index, and the
-- key is unique across partitions whatever kind of id it is. The id comes first in the key: new
-- ones go to the index's right end, and a range of ids is found without a scan.
-- No source in the key: event ids are UUIDs and unique across producers, and a broker's entries
-- name no source. Where a producer's ids may collide with another's, give each an inbox name.
CREATE TABLE outbox.inbox (
    consumer   text        NOT NULL,
    event_id   uuid        NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT inbox_pkey PRIMARY KEY (event_id, consumer),
    CONSTRAINT consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255)
) PARTITION BY RANGE (event_id);
COMMENT ON TABLE outbox.inbox IS 'Events that a consumer has handled, recorded in the transaction that handled them';
COMMENT ON COLUMN outbox.inbox.consumer IS 'Who handled it: each consumer sees each event';
COMMENT ON COLUMN outbox.inbox.event_id IS 'The event''s id';
COMMENT ON COLUMN outbox.inbox.handled_at IS 'When, by this server''s clock: what retention goes by';
-- Retention asks for old rows, and they lie together.
CREATE INDEX inbox_handled_at_idx ON outbox.inbox USING brin (handled_at);

CREATE TABLE outbox.inbox_default PARTITION OF outbox.inbox DEFAULT;
COMMENT ON TABLE outbox.inbox_default IS 'Ids for which no partition was ready';

-- UUIDv7 of the year 2109 and later: 98 % of all ids that are not time-ordered. Kept apart from
-- inbox_default, which is scanned under lock whenever a partition is attached.
CREATE TABLE outbox.inbox_other PARTITION OF outbox.inbox
    FOR VALUES FROM ('04000000-0000-0000-0000-000000000000') TO (MAXVALUE);
COMMENT ON TABLE outbox.inbox_other IS 'Ids that are not time-ordered, such as UUIDv4';

-- What was forgotten can't be told from what is new. So a repeat from that time is refused instead.
CREATE TABLE outbox.inbox_forgotten (
    consumer text NOT NULL,
    below    uuid NOT NULL,
    CONSTRAINT inbox_forgotten_pkey PRIMARY KEY (consumer)
);
COMMENT ON TABLE outbox.inbox_forgotten IS 'How far retention has deleted what a consumer has handled';
COMMENT ON COLUMN outbox.inbox_forgotten.consumer IS 'Whose rows';
COMMENT ON COLUMN outbox.inbox_forgotten.below IS 'Time-ordered ids from here on are all remembered';

-- Keeps this week and the next four and returns how many partitions it made. CREATE and ATTACH
-- instead of PARTITION OF, which would lock the whole inbox exclusively.
CREATE FUNCTION outbox.keep_inbox_partitions_ahead() RETURNS integer
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog
SET lock_timeout = '200ms'
AS $$
DECLARE
    this_week bigint := floor(extract(epoch FROM clock_timestamp()) / 604800)::bigint;
    starts    timestamptz;
    leaf      text;
    lower     uuid;
    upper     uuid;
    made      integer := 0;
BEGIN
    -- One at a time.
    IF NOT pg_try_advisory_xact_lock(7810764919218962546) THEN
        RETURN 0;
    END IF;
    FOR week IN this_week .. this_week + 4 LOOP
        starts := to_timestamp(week * 604800);
        leaf := 'inbox_w' || to_char(starts AT TIME ZONE 'UTC', 'YYYYMMDD');
        CONTINUE WHEN to_regclass('outbox.' || leaf) IS NOT NULL;
        lower := outbox.first_id_at(starts);
        upper := outbox.first_id_at(starts + interval '168 hours');
        -- A few strays (random ids, a producer whose clock is ahead) are moved. After an overrun
        -- the week stays in the default partition, where retention finds it too.
        CONTINUE WHEN 10000 < (
            SELECT count(*) FROM (
                SELECT FROM outbox.inbox_default d
                WHERE d.event_id >= lower AND d.event_id < upper LIMIT 10001) strays);
        LOCK TABLE outbox.inbox_default IN ACCESS EXCLUSIVE MODE;
        EXECUTE format(
            'CREATE TABLE outbox.%I (LIKE outbox.inbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)',
            leaf);
        EXECUTE format(
            'WITH moved AS (DELETE FROM outbox.inbox_default WHERE event_id >= %L AND event_id < %L RETURNING consumer, event_id, handled_at)
             INSERT INTO outbox.%I (consumer, event_id, handled_at) SELECT consumer, event_id, handled_at FROM moved',
            lower, upper, leaf);
        EXECUTE format(
            'ALTER TABLE outbox.inbox ATTACH PARTITION outbox.%I FOR VALUES FROM (%L) TO (%L)',
            leaf, lower, upper);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION outbox.keep_inbox_partitions_ahead() IS 'Creates the inbox partitions of this week and the next four that are missing; returns their number';
REVOKE EXECUTE ON FUNCTION outbox.keep_inbox_partitions_ahead() FROM PUBLIC;

-- Forgets what was handled longer ago, whole weeks by truncating their partition, other rows some
-- at a time, and returns how many rows went. Never a row that was handled since, however old its id.
-- An id that tells no time and was forgotten cannot be refused when it comes again: such ids are
-- kept for 30 days at least, and no outbox sends an event with such an id again after 14.
CREATE FUNCTION outbox.drop_inbox_partitions(older_than interval) RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog
SET lock_timeout = '200ms'
AS $$
DECLARE
    cutoff   timestamptz := clock_timestamp() - older_than;
    timeless timestamptz := least(cutoff, clock_timestamp() - interval '30 days');
    boundary uuid := outbox.first_id_at(cutoff);
    leaf     record;
    gone     bigint := 0;
    empty    regclass[] := '{}';
BEGIN
    IF older_than IS NULL OR older_than < interval '1 day' THEN
        RAISE EXCEPTION 'the inbox must remember for at least a day, not %', older_than;
    END IF;
    -- Each statement below must see what was committed while it waited for its lock.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'retention needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;
    IF NOT pg_try_advisory_xact_lock(7810764919218962546) THEN
        RETURN 0;
    END IF;

    WITH old AS MATERIALIZED (
        SELECT i.ctid FROM outbox.inbox_default i
        WHERE CASE WHEN substr(i.event_id::text, 15, 1) = '7'
              THEN i.handled_at < cutoff AND i.event_id < boundary
              ELSE i.handled_at < timeless END
        LIMIT 10000
    ), forgotten AS (
        DELETE FROM outbox.inbox_default i USING old WHERE i.ctid = old.ctid RETURNING i.consumer
    ), known AS (
        INSERT INTO outbox.inbox_forgotten AS f (consumer, below)
        SELECT DISTINCT g.consumer, boundary FROM forgotten g
        ON CONFLICT (consumer) DO UPDATE SET below = greatest(f.below, excluded.below)
    )
    SELECT count(*) INTO gone FROM forgotten;
    -- There is no telling a forgotten id from a new one here, so nothing to note.
    WITH old AS MATERIALIZED (
        SELECT i.ctid FROM outbox.inbox_other i WHERE i.handled_at < timeless LIMIT 10000
    ), forgotten AS (
        DELETE FROM outbox.inbox_other i USING old WHERE i.ctid = old.ctid RETURNING 1
    )
    SELECT gone + count(*) INTO gone FROM forgotten;

    FOR leaf IN
        SELECT c.oid::regclass AS name,
               (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([-0-9a-f]+)''\)'))[1]::uuid AS upper
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'outbox.inbox'::regclass AND c.relname LIKE 'inbox\_w%'
        ORDER BY c.relname
    LOOP
        EXIT WHEN leaf.upper > boundary;
        DECLARE
            held  bigint;
            young boolean;
        BEGIN
            EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE handled_at >= $1)', leaf.name)
                INTO young USING cutoff;
            CONTINUE WHEN young;
            -- Nobody handles events of that week but in a replay: the lock disturbs none else.
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', leaf.name);
            EXECUTE format('SELECT count(*), coalesce(max(handled_at) >= $1, false) FROM %s', leaf.name)
                INTO held, young USING cutoff;
            IF young THEN
                -- Gives the lock back at once.
                RAISE EXCEPTION USING ERRCODE = 'lock_not_available';
            END IF;
            EXECUTE format(
                'INSERT INTO outbox.inbox_forgotten AS f (consumer, below)
                 SELECT DISTINCT consumer, $1 FROM %s
                 ON CONFLICT (consumer) DO UPDATE SET below = greatest(f.below, excluded.below)', leaf.name)
                USING boundary;
            EXECUTE format('TRUNCATE %s', leaf.name);
            gone := gone + held;
            empty := empty || leaf.name;
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
    END LOOP;

    -- The space is free already. Dropping needs the whole inbox for itself, so only if nobody uses
    -- it just now: no handler ever waits behind it.
    IF empty <> '{}' THEN
        BEGIN
            LOCK TABLE ONLY outbox.inbox IN ACCESS EXCLUSIVE MODE NOWAIT;
            LOCK TABLE outbox.inbox_default IN ACCESS EXCLUSIVE MODE NOWAIT;
            FOR leaf IN SELECT unnest(empty) AS name LOOP
                EXECUTE format('DROP TABLE %s', leaf.name);
            END LOOP;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END IF;
    RETURN gone;
END
$$;
COMMENT ON FUNCTION outbox.drop_inbox_partitions(interval) IS 'Forgets what consumers handled longer ago than this; returns how many rows went. Call again while it returns any';
REVOKE EXECUTE ON FUNCTION outbox.drop_inbox_partitions(interval) FROM PUBLIC;

SELECT outbox.keep_inbox_partitions_ahead();

INSERT INTO outbox.migrations (version, name) VALUES ('20261130131429', 'create_inbox');
