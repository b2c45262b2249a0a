-- Three roles with as few rights as their work needs. Not a migration: roles belong to the whole
-- server, and making them is an administrator's business.
--
--     psql --set ON_ERROR_STOP=1 --file ops/roles.sql "$DATABASE_URL"
--
-- Run it as the owner of the schema outbox (whoever ran the migrations; on a managed server the
-- role you were given), after every migration, as often as you like: it only ever adds what is
-- missing. To make a role the owner needs CREATEROLE; where it lacks that, let somebody else run
--
--     CREATE ROLE outbox_emitter; CREATE ROLE outbox_relay; CREATE ROLE outbox_operator;
--
-- and the rest works without. Then, for the roles that your services log in as:
--
--     GRANT outbox_emitter TO my_service;        -- emits
--     GRANT outbox_relay TO my_relay;            -- runs the relay; a service that does both has both
--     GRANT outbox_operator TO me;               -- looks, retries, discards, creates subscriptions
--
-- What only the owner can do: migrations, and `rebase`, which locks the log and sets its sequence.

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['outbox_emitter', 'outbox_relay', 'outbox_operator'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- somebody was faster
            END;
        END IF;
    END LOOP;
END
$$;

GRANT USAGE ON SCHEMA outbox TO outbox_emitter, outbox_relay, outbox_operator;

-- outbox_emitter: inserts events, and reads none.
-- By column, so that seq, xid and shard are always drawn by the server: an event with another seq
-- or xid would be in no diff, and lost.
GRANT INSERT (id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers)
    ON outbox.events TO outbox_emitter;
GRANT USAGE ON SEQUENCE outbox.event_seq TO outbox_emitter;
-- Reads which event has a key that is taken.
GRANT SELECT, INSERT (dedup_key, event_id) ON outbox.dedup_keys TO outbox_emitter;

-- outbox_relay: reads events, moves cursors, parks. It changes no event and no table; partitions are
-- made and dropped by functions that run with their owner's rights.
GRANT SELECT ON outbox.migrations, outbox.meta, outbox.events, outbox.ticks, outbox.subscriptions,
    outbox.topic_filters, outbox.cursors, outbox.relays, outbox.parked, outbox.revisions, outbox.discarded,
    outbox.replays, outbox.replay_cursors TO outbox_relay;
GRANT SELECT ON SEQUENCE outbox.event_seq TO outbox_relay;  -- its value; it draws none
GRANT INSERT ON outbox.ticks TO outbox_relay;
GRANT UPDATE ON outbox.cursors TO outbox_relay;
GRANT UPDATE (generation) ON outbox.subscriptions TO outbox_relay;
GRANT INSERT, UPDATE, DELETE ON outbox.relays, outbox.parked TO outbox_relay;
GRANT UPDATE ON outbox.replay_cursors TO outbox_relay;
GRANT UPDATE (finished_at) ON outbox.replays TO outbox_relay;

-- outbox_operator: sees everything, settles what failed, creates, rewinds and deletes subscriptions.
GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO outbox_operator;
GRANT SELECT ON SEQUENCE outbox.event_seq TO outbox_operator;
GRANT INSERT ON outbox.ticks TO outbox_operator;
GRANT INSERT, UPDATE, DELETE ON outbox.subscriptions, outbox.topic_filters, outbox.cursors, outbox.parked,
    outbox.revisions, outbox.discarded, outbox.replays, outbox.replay_cursors TO outbox_operator;

-- Upkeep. Without these a relay delivers all the same, and says which one it lacks.
GRANT EXECUTE ON FUNCTION
    outbox.keep_partitions_ahead(), outbox.retire_partition(interval), outbox.drop_retired_partition(),
    outbox.purge_events(interval), outbox.purge_default_partition(interval),
    outbox.delete_dedup_keys(interval), outbox.delete_records(interval), outbox.delete_ticks(interval),
    outbox.passed_seq(interval)
    TO outbox_relay, outbox_operator;
GRANT SELECT ON outbox.leaves TO outbox_relay;

-- Wake::Listen: without these a relay polls. The triggers are made by a function with its owner's rights.
GRANT EXECUTE ON FUNCTION outbox.install_wake(), outbox.fall_asleep(interval), outbox.wake_up() TO outbox_relay;
GRANT EXECUTE ON FUNCTION outbox.remove_wake() TO outbox_operator;

-- What the metrics tell of the default partition. How long another role's transaction has been open,
-- and what holds back VACUUM, they tell only to members of pg_read_all_stats.
GRANT SELECT ON outbox.events_default TO outbox_relay;
