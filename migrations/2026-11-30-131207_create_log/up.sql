-- The log: events are inserted, never updated; ticks are its timeline.

CREATE SCHEMA outbox;
COMMENT ON SCHEMA outbox IS 'Transactional outbox: events are emitted in the business transaction and relayed to a broker';

-- Which migrations ran. Each migration writes its own row, so that it does not matter who ran it:
-- the library's runner, or a copy in the host's own migration directory.
CREATE TABLE outbox.migrations (
    version text        NOT NULL,
    name    text        NOT NULL,
    ran_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT migrations_pkey PRIMARY KEY (version)
);
COMMENT ON TABLE outbox.migrations IS 'Migrations of the schema outbox that ran, whoever ran them';

-- Snapshots and transaction ids mean something only in the database that made them.
-- A server may keep its identity from us; NULL then, and no check.
CREATE FUNCTION outbox.system_identifier() RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT c.system_identifier FROM pg_catalog.pg_control_system() c);
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;

CREATE FUNCTION outbox.database_oid() RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT d.oid::bigint FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
$$;

CREATE TABLE outbox.meta (
    singleton         boolean NOT NULL DEFAULT true,
    source_id         uuid    NOT NULL DEFAULT gen_random_uuid(),
    system_identifier bigint  DEFAULT outbox.system_identifier(),
    database_oid      bigint  DEFAULT outbox.database_oid(),
    seq_floor         bigint  NOT NULL DEFAULT 0,
    CONSTRAINT meta_pkey PRIMARY KEY (singleton),
    CONSTRAINT meta_has_one_row CHECK (singleton)
);
COMMENT ON TABLE outbox.meta IS 'One row about this outbox';
COMMENT ON COLUMN outbox.meta.source_id IS 'Random id of this outbox: several may feed one broker';
COMMENT ON COLUMN outbox.meta.system_identifier IS 'The server that the ticks belong to, NULL where the server does not tell';
COMMENT ON COLUMN outbox.meta.database_oid IS 'The database that the ticks belong to';
COMMENT ON COLUMN outbox.meta.seq_floor IS 'Events at or below carry transaction ids of another server (after a rebase)';
INSERT INTO outbox.meta DEFAULT VALUES;

-- CACHE 1, NO CYCLE, increment 1: draw order must be insert order. A relay checks it at its start.
CREATE SEQUENCE outbox.event_seq AS bigint INCREMENT BY 1 MINVALUE 1 START WITH 1 CACHE 1 NO CYCLE;
-- Burn one, so that the first event lies above the seq_before of every tick.
SELECT nextval('outbox.event_seq');

-- Domains, because PostgreSQL parses and plans a table's CHECK constraints in every statement that
-- inserts, and those of a domain once per session: seven checks were two fifths of what an emit costs.
CREATE DOMAIN outbox.topic AS text CONSTRAINT topic_has_1_to_255_bytes CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN outbox.aggregate_type AS text CONSTRAINT aggregate_type_has_1_to_255_bytes CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN outbox.aggregate_id AS text CONSTRAINT aggregate_id_has_1_to_255_bytes CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN outbox.event_type AS text CONSTRAINT event_type_has_1_to_255_bytes CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN outbox.event_version AS smallint CONSTRAINT event_version_is_positive CHECK (VALUE > 0);
CREATE DOMAIN outbox.dedup_key AS text CONSTRAINT dedup_key_has_1_to_255_bytes CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN outbox.headers AS json CONSTRAINT headers_are_an_object CHECK (json_typeof(VALUE) = 'object');

CREATE TABLE outbox.events (
    -- The CASE assigns the transaction id before seq is drawn, whatever the form of INSERT or COPY.
    seq            bigint                NOT NULL
        DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('outbox.event_seq') END,
    xid            xid8                  NOT NULL DEFAULT pg_current_xact_id(),
    shard          smallint              NOT NULL GENERATED ALWAYS AS
        ((hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & 15)::smallint) STORED,
    id             uuid                  NOT NULL DEFAULT gen_random_uuid(),
    topic          outbox.topic          NOT NULL,
    aggregate_type outbox.aggregate_type NOT NULL,
    aggregate_id   outbox.aggregate_id   NOT NULL,
    event_type     outbox.event_type     NOT NULL,
    event_version  outbox.event_version  NOT NULL DEFAULT 1,
    dedup_key      outbox.dedup_key,
    payload        json                  NOT NULL,
    headers        outbox.headers        NOT NULL DEFAULT '{}',
    created_at     timestamptz           NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT events_pkey PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);
COMMENT ON TABLE outbox.events IS 'The log: committed events in the order they were emitted. Never updated; space comes back by dropping partitions';
COMMENT ON COLUMN outbox.events.seq IS 'Order of emit; position within a tick';
COMMENT ON COLUMN outbox.events.xid IS 'The emitting transaction: with a tick''s snapshot it tells when the event became visible';
COMMENT ON COLUMN outbox.events.shard IS 'Hash of the aggregate, 0 to 15: what one relay leases. The hash functions are those of hash partitioning and stay the same across versions';
COMMENT ON COLUMN outbox.events.id IS 'The event''s id, the consumers'' dedup key';
COMMENT ON COLUMN outbox.events.topic IS 'Where it is published';
COMMENT ON COLUMN outbox.events.aggregate_type IS 'What kind of thing it happened to';
COMMENT ON COLUMN outbox.events.aggregate_id IS 'Which one: events of one aggregate keep their order';
COMMENT ON COLUMN outbox.events.event_type IS 'What happened';
COMMENT ON COLUMN outbox.events.event_version IS 'Version of the payload''s shape';
COMMENT ON COLUMN outbox.events.dedup_key IS 'The producer''s dedup key, unique in outbox.dedup_keys';
COMMENT ON COLUMN outbox.events.payload IS 'The body, byte for byte as the producer wrote it';
COMMENT ON COLUMN outbox.events.headers IS 'Names and values: traceparent, tenant, …';
COMMENT ON COLUMN outbox.events.created_at IS 'When it was emitted. Information: nothing but a replay goes by it';
-- Events whose transaction was still in flight at a tick are found by their transaction.
CREATE INDEX events_xid_seq_idx ON outbox.events (xid, seq);
-- Find and replay by time.
CREATE INDEX events_created_at_idx ON outbox.events USING brin (created_at);

CREATE TABLE outbox.dedup_keys (
    dedup_key  text        NOT NULL,
    event_id   uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT dedup_keys_pkey PRIMARY KEY (dedup_key)
);
COMMENT ON TABLE outbox.dedup_keys IS 'Dedup keys of emitted events: unique across partitions, kept as long as the events';

CREATE TABLE outbox.ticks (
    tick       bigint      NOT NULL,
    mark       bigint      NOT NULL,
    xid        xid8        NOT NULL,
    snapshot   pg_snapshot NOT NULL,
    seq_before bigint      NOT NULL,
    seq_after  bigint      NOT NULL,
    ticked_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ticks_pkey PRIMARY KEY (tick)
);
COMMENT ON TABLE outbox.ticks IS 'The timeline: what became visible between two ticks is a diff, the same for everyone who reads it';
COMMENT ON COLUMN outbox.ticks.tick IS 'Clock in microseconds when it was taken, but always above the tick before';
COMMENT ON COLUMN outbox.ticks.mark IS 'Random: tells it from another tick of this id after the database went back in time';
COMMENT ON COLUMN outbox.ticks.xid IS 'The tick''s own transaction: in-flight ones that its snapshot does not list lie below';
COMMENT ON COLUMN outbox.ticks.snapshot IS 'Which transactions had committed';
COMMENT ON COLUMN outbox.ticks.seq_before IS 'Sequence value before xid was assigned: later transactions draw above it';
COMMENT ON COLUMN outbox.ticks.seq_after IS 'Sequence value after the snapshot: what the snapshot sees lies at or below';
-- The newest tick below a transaction bounds where its events can lie.
CREATE INDEX ticks_xid_idx ON outbox.ticks (xid);
-- Genesis sees nothing and is never deleted.
INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after) VALUES (0, 0, '3', '3:3:', 0, 0);

-- Holders of this lock: a tick, and everything that must not run beside one (deleting ticks,
-- creating and rewinding subscriptions, retention).
CREATE FUNCTION outbox.tick_lock_key() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 7810764919218962544';

-- Takes a tick and returns its id, or NULL if another session is just taking one.
-- The order of the steps is the whole point: see ARCHITECTURE.md.
CREATE FUNCTION outbox.take_tick() RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    newest    outbox.ticks%ROWTYPE;
    before    bigint;
    own_xid   xid8;
    seen      pg_snapshot;
    after     bigint;
    taken     bigint;
BEGIN
    -- Under REPEATABLE READ a tick that waited would have an older snapshot than its predecessor.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a tick needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;
    -- An event emitted in the tick's own transaction would be in no diff.
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'a tick needs a transaction of its own';
    END IF;
    IF NOT pg_try_advisory_xact_lock(outbox.tick_lock_key()) THEN
        RETURN NULL;
    END IF;

    SELECT * INTO STRICT newest FROM outbox.ticks t ORDER BY t.tick DESC LIMIT 1;
    -- Never SELECT last_value FROM the sequence: that read takes no buffer lock and can see a
    -- value up to 32 too high while another session is inside nextval.
    before := pg_sequence_last_value('outbox.event_seq');
    IF before IS NULL THEN
        RAISE EXCEPTION 'the value of sequence outbox.event_seq cannot be read'
            USING HINT = 'GRANT USAGE ON SEQUENCE outbox.event_seq to this role';
    END IF;
    IF before < newest.seq_after THEN
        RAISE EXCEPTION 'sequence outbox.event_seq was set back: it is at %, and tick % saw it at %',
            before, newest.tick, newest.seq_after
            USING HINT = 'Never call setval on it. Run "outbox rebase".';
    END IF;
    own_xid := pg_current_xact_id();
    SELECT pg_current_snapshot() INTO seen;  -- a statement of its own: taken after the xid
    after := pg_sequence_last_value('outbox.event_seq');
    -- Microseconds of the clock: not used again even after the database went back in time.
    taken := greatest(newest.tick + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after)
    VALUES (taken, hashtextextended(gen_random_uuid()::text, 0) & 9007199254740991, own_xid, seen, before, after);
    RETURN taken;
END
$$;
COMMENT ON FUNCTION outbox.take_tick() IS 'Saves a snapshot as a tick; NULL if another session is at it. In a READ COMMITTED transaction of its own';

-- Makes one leaf of the log. CREATE and ATTACH instead of PARTITION OF, which would lock the whole
-- log exclusively; with its indexes, so that ATTACH holds its lock on the default partition for as
-- short as can be. The caller sets lock_timeout.
CREATE FUNCTION outbox.create_partition(from_seq bigint, to_seq bigint) RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    leaf     text := format('events_s%s', from_seq);
    has_rows boolean;
BEGIN
    -- Detached, or left behind: nobody misses it if it is empty.
    IF EXISTS (SELECT FROM pg_class c WHERE c.relname = leaf AND c.relkind = 'r' AND NOT c.relispartition
                 AND c.relnamespace = 'outbox'::regnamespace) THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM outbox.%I)', leaf) INTO has_rows;
        IF has_rows THEN
            RAISE EXCEPTION 'table outbox.% is no partition of the log, has the name of the next one, and holds rows', leaf
                USING HINT = 'Rename it, or move it to another schema.';
        END IF;
        EXECUTE format('DROP TABLE outbox.%I', leaf);
    END IF;
    EXECUTE format(
        'CREATE TABLE outbox.%I (LIKE outbox.events INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING STORAGE INCLUDING COMPRESSION)',
        leaf);
    -- Insert-only: freeze early and by inserts, so that no anti-wraparound vacuum comes later.
    EXECUTE format(
        'ALTER TABLE outbox.%I SET (autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_freeze_min_age = 0, autovacuum_analyze_threshold = 50000)',
        leaf);
    EXECUTE format(
        'ALTER TABLE outbox.events ATTACH PARTITION outbox.%I FOR VALUES FROM (%s) TO (%s)',
        leaf, from_seq, to_seq);
    RETURN leaf;
END
$$;
COMMENT ON FUNCTION outbox.create_partition(bigint, bigint) IS 'Creates and attaches the partition for from_seq up to below to_seq';
REVOKE EXECUTE ON FUNCTION outbox.create_partition(bigint, bigint) FROM PUBLIC;

-- A business transaction never fails for want of a partition.
CREATE TABLE outbox.events_default PARTITION OF outbox.events DEFAULT;
COMMENT ON TABLE outbox.events_default IS 'Events for which no partition was ready. Delivered like any other, never moved';

SELECT outbox.create_partition(1, 1000000);
SELECT outbox.create_partition(1000000, 2000000);
SELECT outbox.create_partition(2000000, 3000000);

INSERT INTO outbox.migrations (version, name) VALUES ('20261130131207', 'create_log');
