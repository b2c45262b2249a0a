-- Wake: relays that sleep are woken by what is emitted. Nothing of it costs a writer anything until
-- a relay with Wake::Listen has installed the triggers.

-- Until when a relay may be asleep, in milliseconds of the server's clock; 1: all are awake. A
-- sequence, since a writer must read what holds now and not what its snapshot shows. That it ends by
-- itself is what stops the notifications when a relay dies asleep.
CREATE SEQUENCE outbox.asleep_until AS bigint INCREMENT BY 1 MINVALUE 1 START WITH 1 CACHE 1 NO CYCLE;
COMMENT ON SEQUENCE outbox.asleep_until IS 'Until when a relay may be asleep, in milliseconds of the server''s clock; 1: all are awake';
SELECT setval('outbox.asleep_until', 1);

-- Shared by the sessions of relays while they sleep; it goes with them. Exclusive: everyone is awake.
CREATE FUNCTION outbox.sleep_lock_key() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 3207164498053178642';

-- The payload is fixed, whatever the event: too long a one would abort the writer's transaction. And
-- so would any, where transactions can be prepared: the setting may have changed since a relay looked.
CREATE FUNCTION outbox.notify_relays(until bigint, payload text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- No relay asks for more than 15 min: what lies further ahead was written before the clock was
    -- set back.
    IF until - (extract(epoch FROM clock_timestamp()) * 1000)::bigint BETWEEN 0 AND 900000
       AND current_setting('max_prepared_transactions') = '0' THEN
        PERFORM pg_notify('outbox_wake', payload);
    END IF;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.notify_relays(bigint, text) FROM PUBLIC;

-- What every emit pays for: it reads the register. Without a search path of its own, which would
-- cost three times as much as the rest, so that it names the schema of all that it uses.
CREATE FUNCTION outbox.wake_relays() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
AS $$
DECLARE
    until pg_catalog.int8 := pg_catalog.pg_sequence_last_value('outbox.asleep_until');
BEGIN
    -- Else nobody sleeps.
    IF until OPERATOR(pg_catalog.<>) 1 THEN
        PERFORM outbox.notify_relays(until, TG_ARGV[0]);
    END IF;
    RETURN NULL;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.wake_relays() FROM PUBLIC;

-- Where it is installed already it takes no lock. Else it waits for transactions that have emitted,
-- and new emits wait behind it: not for long.
CREATE FUNCTION outbox.install_wake() RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
AS $$
BEGIN
    IF current_setting('max_prepared_transactions') <> '0' THEN
        RAISE EXCEPTION 'relays cannot be woken where max_prepared_transactions is not 0: NOTIFY would abort PREPARE TRANSACTION'
            USING HINT = 'Set max_prepared_transactions to 0 and restart the server, or let relays poll (Wake::Poll).';
    END IF;
    IF outbox.wake_is_installed() THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(outbox.sleep_lock_key() + 1);
    IF outbox.wake_is_installed() THEN
        RETURN false;
    END IF;
    CREATE TRIGGER wake_relays AFTER INSERT ON outbox.events
        FOR EACH STATEMENT EXECUTE FUNCTION outbox.wake_relays('event');
    -- What operators do.
    CREATE TRIGGER wake_relays AFTER INSERT OR UPDATE ON outbox.revisions
        FOR EACH STATEMENT EXECUTE FUNCTION outbox.wake_relays('change');
    CREATE TRIGGER wake_relays AFTER UPDATE ON outbox.parked
        FOR EACH STATEMENT EXECUTE FUNCTION outbox.wake_relays('change');
    RETURN true;
END
$$;
COMMENT ON FUNCTION outbox.install_wake() IS 'Installs the triggers that wake sleeping relays; false if they are there. Relays with Wake::Listen call it';
REVOKE EXECUTE ON FUNCTION outbox.install_wake() FROM PUBLIC;

CREATE FUNCTION outbox.wake_is_installed() RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) = 3 FROM pg_trigger t
    WHERE t.tgfoid = 'outbox.wake_relays'::regproc AND t.tgenabled IN ('O', 'A')
      AND t.tgrelid IN ('outbox.events'::regclass, 'outbox.revisions'::regclass, 'outbox.parked'::regclass)
$$;
COMMENT ON FUNCTION outbox.wake_is_installed() IS 'Whether the triggers that wake sleeping relays are there and enabled';

CREATE FUNCTION outbox.remove_wake() RETURNS void
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
AS $$
    DROP TRIGGER IF EXISTS wake_relays ON outbox.events;
    DROP TRIGGER IF EXISTS wake_relays ON outbox.revisions;
    DROP TRIGGER IF EXISTS wake_relays ON outbox.parked;
$$;
COMMENT ON FUNCTION outbox.remove_wake() IS 'Removes the triggers that wake sleeping relays. Relays that are asleep then find events by their own, rare look';
REVOKE EXECUTE ON FUNCTION outbox.remove_wake() FROM PUBLIC;

-- The caller holds the sleep lock, shared, in a session that listens. Transactions that read the
-- register before this one set it do not notify: the caller must wait until they have ended.
CREATE FUNCTION outbox.fall_asleep(
    asleep_for       interval,
    OUT is_installed boolean,
    OUT was_awake    boolean)  -- some transaction may have read that nobody sleeps
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now_ms bigint;
    before bigint;
    until  bigint;
BEGIN
    is_installed := outbox.wake_is_installed();
    -- Two at once: the later moment must stand.
    PERFORM pg_advisory_xact_lock(outbox.sleep_lock_key() + 2);
    now_ms := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    before := pg_sequence_last_value('outbox.asleep_until');
    until := now_ms + (extract(epoch FROM least(asleep_for, interval '15 min')) * 1000)::bigint;
    was_awake := before - now_ms NOT BETWEEN 0 AND 900000;
    IF NOT was_awake THEN
        until := greatest(until, before);
    END IF;
    PERFORM setval('outbox.asleep_until', until);
END
$$;
COMMENT ON FUNCTION outbox.fall_asleep(interval) IS 'Says that a relay may be asleep for this long from now: emits notify';
REVOKE EXECUTE ON FUNCTION outbox.fall_asleep(interval) FROM PUBLIC;

CREATE FUNCTION outbox.wake_up() RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Another relay is asleep, or just falling asleep.
    IF NOT pg_try_advisory_xact_lock(outbox.sleep_lock_key()) THEN
        RETURN false;
    END IF;
    PERFORM setval('outbox.asleep_until', 1);
    RETURN true;
END
$$;
COMMENT ON FUNCTION outbox.wake_up() IS 'Says that no relay is asleep, if that is so: emits notify no longer';
REVOKE EXECUTE ON FUNCTION outbox.wake_up() FROM PUBLIC;

INSERT INTO outbox.migrations (version, name) VALUES ('20261130173812', 'create_wake');
