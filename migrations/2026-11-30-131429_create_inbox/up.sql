-- The inbox: what each consumer has handled, so that a repeat has no effect.

-- Partitioned by event id: UUIDv7 is time-ordered, so that the key is unique across partitions and
-- old ones can be dropped.
CREATE TABLE outbox.inbox (
    consumer   text        NOT NULL,
    event_id   uuid        NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT inbox_pkey PRIMARY KEY (consumer, event_id),
    CONSTRAINT consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255)
) PARTITION BY RANGE (event_id);
COMMENT ON TABLE outbox.inbox IS 'Events that a consumer has handled, recorded in the transaction that handled them';
COMMENT ON COLUMN outbox.inbox.consumer IS 'Who handled it: each consumer sees each event';
COMMENT ON COLUMN outbox.inbox.event_id IS 'The event''s id';

CREATE TABLE outbox.inbox_default PARTITION OF outbox.inbox DEFAULT;
COMMENT ON TABLE outbox.inbox_default IS 'Ids for which no partition was ready, and ids that are not time-ordered';

INSERT INTO outbox.migrations (version, name) VALUES ('20261130131429', 'create_inbox');
