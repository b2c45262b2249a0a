-- Delivery: who has read how far, who may move it, and what failed.

CREATE TABLE outbox.subscriptions (
    name       text        NOT NULL,
    generation bigint      NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT subscriptions_pkey PRIMARY KEY (name),
    CONSTRAINT name_has_1_to_255_bytes CHECK (octet_length(name) BETWEEN 1 AND 255),
    -- The broker's fence separates source, subscription and shard by colons.
    CONSTRAINT name_has_no_colon CHECK (strpos(name, ':') = 0)
);
COMMENT ON TABLE outbox.subscriptions IS 'Named groups of relays: each has its own cursors and failures';
COMMENT ON COLUMN outbox.subscriptions.generation IS 'First part of a position: raised whenever positions may repeat';

CREATE TABLE outbox.topic_filters (
    subscription text   NOT NULL,
    from_tick    bigint NOT NULL,
    topics       text[],
    CONSTRAINT topic_filters_pkey PRIMARY KEY (subscription, from_tick),
    CONSTRAINT topic_filters_belong_to_a_subscription FOREIGN KEY (subscription)
        REFERENCES outbox.subscriptions (name) ON DELETE CASCADE,
    CONSTRAINT topics_are_not_empty CHECK (cardinality(topics) > 0)
);
COMMENT ON TABLE outbox.topic_filters IS 'Which topics a subscription gets, from a tick on: of what became visible after it';
COMMENT ON COLUMN outbox.topic_filters.topics IS 'NULL: all of them';

CREATE TABLE outbox.cursors (
    subscription text        NOT NULL,
    shard        smallint    NOT NULL,
    tick         bigint      NOT NULL,
    target       bigint,
    seq          bigint      NOT NULL DEFAULT 0,
    owner        uuid,
    epoch        bigint      NOT NULL DEFAULT 0,
    leased_until timestamptz NOT NULL DEFAULT '-infinity',
    crashes      smallint    NOT NULL DEFAULT 0,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT cursors_pkey PRIMARY KEY (subscription, shard),
    CONSTRAINT cursors_belong_to_a_subscription FOREIGN KEY (subscription)
        REFERENCES outbox.subscriptions (name) ON DELETE CASCADE,
    CONSTRAINT shard_is_0_to_15 CHECK (shard BETWEEN 0 AND 15),
    CONSTRAINT target_lies_above_tick CHECK (target > tick)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox.cursors IS 'How far each shard of each subscription was delivered, and who may move it';
COMMENT ON COLUMN outbox.cursors.tick IS 'All that is visible in this tick was delivered or parked';
COMMENT ON COLUMN outbox.cursors.target IS 'The tick up to which the current diff reaches, where it steps over ticks; NULL: the next tick';
COMMENT ON COLUMN outbox.cursors.seq IS 'Within the current diff, delivered or parked up to here';
COMMENT ON COLUMN outbox.cursors.owner IS 'The relay that leases the shard';
COMMENT ON COLUMN outbox.cursors.epoch IS 'Raised at every change of hands and after every unknown outcome: older calls are refused';
COMMENT ON COLUMN outbox.cursors.leased_until IS 'By this server''s clock';
COMMENT ON COLUMN outbox.cursors.crashes IS 'How many owners in a row ended here without giving it back. From 2 on events go out one by one, at 3 the next one is parked first. 0 again once that went well';

CREATE TABLE outbox.relays (
    id           uuid        NOT NULL,
    subscription text        NOT NULL,
    host         text        NOT NULL,
    version      text        NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    state        text        NOT NULL DEFAULT 'starting',
    state_since  timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason       text,
    role         text        NOT NULL DEFAULT current_user,
    sleepless    text,
    delivered_per_second double precision,
    CONSTRAINT relays_pkey PRIMARY KEY (id),
    CONSTRAINT relays_belong_to_a_subscription FOREIGN KEY (subscription)
        REFERENCES outbox.subscriptions (name) ON DELETE CASCADE
) WITH (fillfactor = 50);
COMMENT ON TABLE outbox.relays IS 'Live relay instances, for the fair share of shards';
COMMENT ON COLUMN outbox.relays.state IS 'What it says of itself: starting, running, broker_unavailable, interrupted, stopping';
COMMENT ON COLUMN outbox.relays.state_since IS 'Since when, to the heartbeat';
COMMENT ON COLUMN outbox.relays.role IS 'The database role that it works as';
COMMENT ON COLUMN outbox.relays.reason IS 'Why it does not deliver: what the publisher or the database says';
COMMENT ON COLUMN outbox.relays.sleepless IS 'Why it polls although it is to sleep until it is woken; NULL: nothing keeps it awake';
COMMENT ON COLUMN outbox.relays.delivered_per_second IS 'Over about the last minute, to the heartbeat; NULL: not known yet';

CREATE TABLE outbox.parked (
    subscription    text        NOT NULL,
    shard           smallint    NOT NULL,
    tick            bigint      NOT NULL,
    seq             bigint      NOT NULL,
    id              uuid        NOT NULL,
    topic           text        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    event_version   smallint    NOT NULL,
    dedup_key       text,
    payload         json        NOT NULL,
    headers         json        NOT NULL,
    created_at      timestamptz NOT NULL,
    attempts        integer     NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    error           text,
    dead            boolean     NOT NULL DEFAULT false,
    holds           boolean     NOT NULL DEFAULT true,
    alone           boolean     NOT NULL DEFAULT false,
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT parked_pkey PRIMARY KEY (subscription, seq),
    CONSTRAINT parked_events_belong_to_a_subscription FOREIGN KEY (subscription)
        REFERENCES outbox.subscriptions (name) ON DELETE CASCADE,
    CONSTRAINT dead_events_are_not_due CHECK (NOT dead OR next_attempt_at IS NULL)
) WITH (autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE outbox.parked IS 'Events that failed, and those that wait behind them; all else of a subscription was delivered up to its cursors';
COMMENT ON COLUMN outbox.parked.next_attempt_at IS 'When it is due. NULL while it waits behind an earlier event of its aggregate (held), and when dead';
COMMENT ON COLUMN outbox.parked.dead IS 'Out of attempts: waits for an operator';
COMMENT ON COLUMN outbox.parked.holds IS 'Later events of its aggregate wait for it, and it for earlier ones. False for an unordered event, and for a dead one that the others were to pass';
COMMENT ON COLUMN outbox.parked.alone IS 'Tried alone, each attempt counted before it is made: relays ended when they tried it, or may have';
CREATE INDEX parked_by_aggregate_idx ON outbox.parked (subscription, shard, aggregate_type, aggregate_id, tick, seq);
CREATE INDEX parked_due_idx ON outbox.parked (subscription, shard, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX parked_dead_idx ON outbox.parked (subscription, seq) WHERE dead;

CREATE VIEW outbox.dead_letters AS
    SELECT subscription, id AS event_id, topic, aggregate_type, aggregate_id, event_type, event_version,
           payload, headers, created_at, attempts, error, parked_at, updated_at AS died_at, seq
    FROM outbox.parked
    WHERE dead
    ORDER BY created_at, seq;
COMMENT ON VIEW outbox.dead_letters IS 'Events that ran out of attempts';

INSERT INTO outbox.subscriptions (name) VALUES ('default');
INSERT INTO outbox.topic_filters (subscription, from_tick, topics) VALUES ('default', 0, NULL);
INSERT INTO outbox.cursors (subscription, shard, tick)
SELECT 'default', shard, 0 FROM generate_series(0, 15) shard;

INSERT INTO outbox.migrations (version, name) VALUES ('20261130131341', 'create_delivery');
