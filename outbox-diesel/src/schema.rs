// @generated automatically by Diesel CLI.

pub mod outbox {
    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// How far each shard of each subscription was delivered, and who may move it
        outbox.cursors (subscription, shard) {
            subscription -> Text,
            shard -> Int2,
            /// All that is visible in this tick was delivered or parked
            tick -> Int8,
            /// The tick up to which the current diff reaches, where it steps over ticks; NULL: the next tick
            target -> Nullable<Int8>,
            /// Within the current diff, delivered or parked up to here
            seq -> Int8,
            /// The relay that leases the shard
            owner -> Nullable<Uuid>,
            /// Raised at every change of hands and after every unknown outcome: older calls are refused
            epoch -> Int8,
            /// By this server's clock
            leased_until -> Timestamptz,
            /// How many owners in a row ended here without giving it back. From 2 on events go out one by one, at 3 the next one is parked first. 0 again once that went well
            crashes -> Int2,
            updated_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Dedup keys of emitted events: unique across partitions, kept as long as the events
        outbox.dedup_keys (dedup_key) {
            dedup_key -> Text,
            event_id -> Uuid,
            created_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Events that an operator gave up, and why. No foreign key: it outlives the subscription
        outbox.discarded (subscription, seq) {
            subscription -> Text,
            shard -> Int2,
            tick -> Int8,
            seq -> Int8,
            id -> Uuid,
            topic -> Text,
            aggregate_type -> Text,
            aggregate_id -> Text,
            event_type -> Text,
            event_version -> Int2,
            dedup_key -> Nullable<Text>,
            payload -> Json,
            headers -> Json,
            created_at -> Timestamptz,
            attempts -> Int4,
            /// Why the last attempt had failed
            error -> Nullable<Text>,
            parked_at -> Timestamptz,
            reason -> Text,
            /// The database role, or who the caller said it was
            discarded_by -> Text,
            discarded_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// The log: committed events in the order they were emitted. Never updated; space comes back by dropping partitions
        outbox.events (seq) {
            /// Order of emit; position within a tick
            seq -> Int8,
            /// The emitting transaction: with a tick's snapshot it tells when the event became visible
            xid -> Xid8,
            /// Hash of the aggregate, 0 to 15: what one relay leases. The hash functions are those of hash partitioning and stay the same across versions
            shard -> Int2,
            /// The event's id, the consumers' dedup key
            id -> Uuid,
            /// Where it is published
            topic -> Text,
            /// What kind of thing it happened to
            aggregate_type -> Text,
            /// Which one: events of one aggregate keep their order
            aggregate_id -> Text,
            /// What happened
            event_type -> Text,
            /// Version of the payload's shape
            event_version -> Int2,
            /// The producer's dedup key, unique in outbox.dedup_keys
            dedup_key -> Nullable<Text>,
            /// The body, byte for byte as the producer wrote it
            payload -> Json,
            /// Names and values: traceparent, tenant, …
            headers -> Json,
            /// When it was emitted. Information: nothing but a replay goes by it
            created_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Events that a consumer has handled, recorded in the transaction that handled them
        outbox.inbox (event_id, consumer) {
            /// Who handled it: each consumer sees each event
            consumer -> Text,
            /// The event's id
            event_id -> Uuid,
            /// When, by this server's clock: what retention goes by
            handled_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// How far retention has deleted what a consumer has handled
        outbox.inbox_forgotten (consumer) {
            /// Whose rows
            consumer -> Text,
            /// Time-ordered ids from here on are all remembered
            below -> Uuid,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// One row about this outbox
        outbox.meta (singleton) {
            singleton -> Bool,
            /// Random id of this outbox: several may feed one broker
            source_id -> Uuid,
            /// The server that the ticks belong to, NULL where the server does not tell
            system_identifier -> Nullable<Int8>,
            /// The database that the ticks belong to
            database_oid -> Nullable<Int8>,
            /// Events at or below carry transaction ids of another server (after a rebase)
            seq_floor -> Int8,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Migrations of the schema outbox that ran, whoever ran them
        outbox.migrations (version) {
            version -> Text,
            name -> Text,
            ran_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Events that failed, and those that wait behind them; all else of a subscription was delivered up to its cursors
        outbox.parked (subscription, seq) {
            subscription -> Text,
            shard -> Int2,
            tick -> Int8,
            seq -> Int8,
            id -> Uuid,
            topic -> Text,
            aggregate_type -> Text,
            aggregate_id -> Text,
            event_type -> Text,
            event_version -> Int2,
            dedup_key -> Nullable<Text>,
            payload -> Json,
            headers -> Json,
            created_at -> Timestamptz,
            attempts -> Int4,
            /// When it is due. NULL while it waits behind an earlier event of its aggregate (held), and when dead
            next_attempt_at -> Nullable<Timestamptz>,
            error -> Nullable<Text>,
            /// Out of attempts: waits for an operator
            dead -> Bool,
            /// Later events of its aggregate wait for it, and it for earlier ones. False for an unordered event, and for a dead one that the others were to pass
            holds -> Bool,
            /// Tried alone, each attempt counted before it is made: relays ended when they tried it, or may have
            alone -> Bool,
            parked_at -> Timestamptz,
            updated_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Live relay instances, for the fair share of shards
        outbox.relays (id) {
            id -> Uuid,
            subscription -> Text,
            host -> Text,
            version -> Text,
            started_at -> Timestamptz,
            seen_at -> Timestamptz,
            /// What it says of itself: starting, running, broker_unavailable, interrupted, stopping
            state -> Text,
            /// Since when, to the heartbeat
            state_since -> Timestamptz,
            /// Why it does not deliver: what the publisher or the database says
            reason -> Nullable<Text>,
            /// The database role that it works as
            role -> Text,
            /// Why it polls although it is to sleep until it is woken; NULL: nothing keeps it awake
            sleepless -> Nullable<Text>,
            /// Over about the last minute, to the heartbeat; NULL: not known yet
            delivered_per_second -> Nullable<Float8>,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// How far each shard of a replay is: moved by the shard's owner, under its epoch
        outbox.replay_cursors (replay, shard) {
            replay -> Uuid,
            shard -> Int2,
            seq -> Int8,
            sent -> Int8,
            refused -> Int8,
            error -> Nullable<Text>,
            /// Written before events are sent: a relay that finds it ahead of seq has a predecessor that ended there, and sends one by one up to it
            careful_to -> Int8,
            /// The seq of the event that is tried alone
            tried -> Nullable<Int8>,
            /// How many relays in a row began to try it, and told nothing of it
            tries -> Int2,
            /// The last one of them: one that merely lost its connection is counted once
            tried_by -> Nullable<Uuid>,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Delivered events that are sent once more to one subscription, beside its stream
        outbox.replays (id) {
            id -> Uuid,
            subscription -> Text,
            /// Tells the broker the repeats of this replay from those of another
            generation -> Int8,
            /// The last event it may send
            to_seq -> Int8,
            since -> Timestamptz,
            until -> Timestamptz,
            /// Only of this one; NULL: of all. So for the other parts of an event
            topic -> Nullable<Text>,
            aggregate_type -> Nullable<Text>,
            aggregate_id -> Nullable<Text>,
            event_type -> Nullable<Text>,
            per_second -> Int4,
            /// Also events whose ids tell no time (no UUIDv7) and that inboxes may have forgotten: those older than 14 days
            forgotten_too -> Bool,
            requested_by -> Text,
            requested_at -> Timestamptz,
            finished_at -> Nullable<Timestamptz>,
            cancelled -> Bool,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Partitions that were emptied and wait to be dropped, which needs a moment without any emit
        outbox.retired_partitions (leaf) {
            leaf -> Text,
            retired_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Raised by operators' calls, in their transaction: relays then look again at what is parked
        outbox.revisions (subscription) {
            subscription -> Text,
            revision -> Int8,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Named groups of relays: each has its own cursors and failures
        outbox.subscriptions (name) {
            name -> Text,
            /// First part of a position: raised whenever positions may repeat
            generation -> Int8,
            created_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// The timeline: what became visible between two ticks is a diff, the same for everyone who reads it
        outbox.ticks (tick) {
            /// Clock in microseconds when it was taken, but always above the tick before
            tick -> Int8,
            /// Random: tells it from another tick of this id after the database went back in time
            mark -> Int8,
            /// The tick's own transaction: in-flight ones that its snapshot does not list lie below
            xid -> Xid8,
            /// Which transactions had committed
            snapshot -> PgSnapshot,
            /// Sequence value before xid was assigned: later transactions draw above it
            seq_before -> Int8,
            /// Sequence value after the snapshot: what the snapshot sees lies at or below
            seq_after -> Int8,
            ticked_at -> Timestamptz,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// Which topics a subscription gets, from a tick on: of what became visible after it
        outbox.topic_filters (subscription, from_tick) {
            subscription -> Text,
            from_tick -> Int8,
            /// NULL: all of them
            topics -> Nullable<Array<Nullable<Text>>>,
        }
    }

    diesel::table! {
        use diesel::sql_types::*;
        use crate::snapshot::sql_types::*;

        /// One row about the making of partitions, shared by all relays
        outbox.upkeep (singleton) {
            singleton -> Bool,
            /// How many tries failed in a row
            failed -> Int4,
            /// No sooner than this: a try can make emits into the default partition wait
            next_try_at -> Timestamptz,
            /// First seq of the ranges that a CHECK keeps out of the default partition while they are being attached; NULL: none
            excluded_from -> Nullable<Int8>,
            /// First seq above them
            excluded_to -> Nullable<Int8>,
            /// How many events each of them holds
            excluded_width -> Nullable<Int8>,
            /// Then whoever made the CHECK has crashed, and it goes
            excluded_until -> Nullable<Timestamptz>,
        }
    }

    diesel::joinable!(cursors -> subscriptions (subscription));
    diesel::joinable!(parked -> subscriptions (subscription));
    diesel::joinable!(relays -> subscriptions (subscription));
    diesel::joinable!(replay_cursors -> replays (replay));
    diesel::joinable!(replays -> subscriptions (subscription));
    diesel::joinable!(revisions -> subscriptions (subscription));
    diesel::joinable!(topic_filters -> subscriptions (subscription));

    diesel::allow_tables_to_appear_in_same_query!(
        cursors,
        dedup_keys,
        discarded,
        events,
        inbox,
        inbox_forgotten,
        meta,
        migrations,
        parked,
        relays,
        replay_cursors,
        replays,
        retired_partitions,
        revisions,
        subscriptions,
        ticks,
        topic_filters,
        upkeep,
    );
}
