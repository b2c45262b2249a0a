-- What operators do: what they discarded and replay, and how relays notice.

-- A relay keeps in memory which aggregates are blocked. Comparing that with the table all the time
-- would cost a scan of what is parked; comparing one number costs nothing.
CREATE TABLE outbox.revisions (
    subscription text   NOT NULL,
    revision     bigint NOT NULL DEFAULT 1,
    CONSTRAINT revisions_pkey PRIMARY KEY (subscription),
    CONSTRAINT revisions_belong_to_a_subscription FOREIGN KEY (subscription)
        REFERENCES outbox.subscriptions (name) ON DELETE CASCADE
);
COMMENT ON TABLE outbox.revisions IS 'Raised by operators'' calls, in their transaction: relays then look again at what is parked';

-- Operators name events by id.
CREATE INDEX parked_id_idx ON outbox.parked (id);

-- The whole event, not a reference: its partition may be gone by the time somebody asks, and a
-- discard by mistake can be mended from here.
CREATE TABLE outbox.discarded (
    subscription   text        NOT NULL,
    shard          smallint    NOT NULL,
    tick           bigint      NOT NULL,
    seq            bigint      NOT NULL,
    id             uuid        NOT NULL,
    topic          text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    event_version  smallint    NOT NULL,
    dedup_key      text,
    payload        json        NOT NULL,
    headers        json        NOT NULL,
    created_at     timestamptz NOT NULL,
    attempts       integer     NOT NULL,
    error          text,
    parked_at      timestamptz NOT NULL,
    reason         text        NOT NULL,
    discarded_by   text        NOT NULL DEFAULT session_user,
    discarded_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT discarded_pkey PRIMARY KEY (subscription, seq),
    CONSTRAINT reason_is_not_empty CHECK (reason ~ '\S')
);
COMMENT ON TABLE outbox.discarded IS 'Events that an operator gave up, and why. No foreign key: it outlives the subscription';
COMMENT ON COLUMN outbox.discarded.error IS 'Why the last attempt had failed';
COMMENT ON COLUMN outbox.discarded.discarded_by IS 'The database role, or who the caller said it was';
CREATE INDEX discarded_id_idx ON outbox.discarded (id);
CREATE INDEX discarded_at_idx ON outbox.discarded (discarded_at);

CREATE TABLE outbox.replays (
    id             uuid        NOT NULL DEFAULT gen_random_uuid(),
    subscription   text        NOT NULL,
    generation     bigint      NOT NULL,
    to_seq         bigint      NOT NULL,
    since          timestamptz NOT NULL,
    until          timestamptz NOT NULL,
    topic          text,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    per_second     integer     NOT NULL,
    forgotten_too  boolean     NOT NULL DEFAULT false,
    requested_by   text        NOT NULL DEFAULT session_user,
    requested_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at    timestamptz,
    cancelled      boolean     NOT NULL DEFAULT false,
    CONSTRAINT replays_pkey PRIMARY KEY (id),
    CONSTRAINT replays_belong_to_a_subscription FOREIGN KEY (subscription)
        REFERENCES outbox.subscriptions (name) ON DELETE CASCADE,
    CONSTRAINT per_second_is_positive CHECK (per_second > 0)
);
COMMENT ON TABLE outbox.replays IS 'Delivered events that are sent once more to one subscription, beside its stream';
COMMENT ON COLUMN outbox.replays.generation IS 'Tells the broker the repeats of this replay from those of another';
COMMENT ON COLUMN outbox.replays.to_seq IS 'The last event it may send';
COMMENT ON COLUMN outbox.replays.forgotten_too IS 'Also events whose ids tell no time (no UUIDv7) and that inboxes may have forgotten: those older than 14 days';
COMMENT ON COLUMN outbox.replays.topic IS 'Only of this one; NULL: of all. So for the other parts of an event';
-- One at a time: two operators do not send everything twice, and the rate is the rate.
CREATE UNIQUE INDEX replays_running_idx ON outbox.replays (subscription) WHERE finished_at IS NULL;

CREATE TABLE outbox.replay_cursors (
    replay     uuid     NOT NULL,
    shard      smallint NOT NULL,
    seq        bigint   NOT NULL,
    sent       bigint   NOT NULL DEFAULT 0,
    refused    bigint   NOT NULL DEFAULT 0,
    error      text,
    careful_to bigint   NOT NULL DEFAULT 0,
    tried      bigint,
    tries      smallint NOT NULL DEFAULT 0,
    tried_by   uuid,
    CONSTRAINT replay_cursors_pkey PRIMARY KEY (replay, shard),
    CONSTRAINT replay_cursors_belong_to_a_replay FOREIGN KEY (replay)
        REFERENCES outbox.replays (id) ON DELETE CASCADE
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE outbox.replay_cursors IS 'How far each shard of a replay is: moved by the shard''s owner, under its epoch';
COMMENT ON COLUMN outbox.replay_cursors.careful_to IS 'Written before events are sent: a relay that finds it ahead of seq has a predecessor that ended there, and sends one by one up to it';
COMMENT ON COLUMN outbox.replay_cursors.tried IS 'The seq of the event that is tried alone';
COMMENT ON COLUMN outbox.replay_cursors.tries IS 'How many relays in a row began to try it, and told nothing of it';
COMMENT ON COLUMN outbox.replay_cursors.tried_by IS 'The last one of them: one that merely lost its connection is counted once';

CREATE VIEW outbox.event_status AS
    SELECT s.name AS subscription, e.seq, e.id AS event_id, e.topic, e.aggregate_type, e.aggregate_id,
           e.event_type, e.event_version, e.payload, e.headers, e.created_at,
           CASE
               WHEN p.dead THEN 'dead'
               WHEN p.holds AND EXISTS (
                   SELECT FROM outbox.parked earlier
                   WHERE earlier.subscription = p.subscription AND earlier.shard = p.shard
                     AND earlier.aggregate_type = p.aggregate_type AND earlier.aggregate_id = p.aggregate_id
                     AND earlier.holds AND (earlier.tick, earlier.seq) < (p.tick, p.seq)) THEN 'held'
               WHEN p.seq IS NOT NULL THEN 'retrying'
               WHEN d.seq IS NOT NULL THEN 'discarded'
               WHEN e.seq <= m.seq_floor OR pg_visible_in_snapshot(e.xid, t.snapshot) THEN 'published'
               ELSE 'pending'
           END AS status,
           coalesce(p.attempts, 0) AS attempts, p.next_attempt_at, p.error,
           -- To the tick: the first one that sees the event.
           (SELECT k.ticked_at FROM outbox.ticks k
            WHERE k.xid > e.xid AND pg_visible_in_snapshot(e.xid, k.snapshot)
            ORDER BY k.xid LIMIT 1) AS visible_since
    FROM outbox.subscriptions s
    CROSS JOIN outbox.meta m
    CROSS JOIN outbox.events e
    JOIN outbox.cursors c ON c.subscription = s.name AND c.shard = e.shard
    JOIN outbox.ticks t ON t.tick = c.tick
    LEFT JOIN outbox.parked p ON p.subscription = s.name AND p.seq = e.seq
    LEFT JOIN outbox.discarded d ON d.subscription = s.name AND d.seq = e.seq;
COMMENT ON VIEW outbox.event_status IS 'One row per event and subscription: pending, published, retrying, held, dead or discarded. Events of a diff under way count as pending';

INSERT INTO outbox.migrations (version, name) VALUES ('20261130140533', 'create_operations');
