-- Forgets what was delivered and what failed; the events stay.
DROP VIEW outbox.dead_letters;
DROP TABLE outbox.parked;
DROP TABLE outbox.relays;
DROP TABLE outbox.cursors;
DROP TABLE outbox.topic_filters;
DROP TABLE outbox.subscriptions;
-- Positions start anew, and a broker must not take them for repeats.
UPDATE outbox.meta SET source_id = gen_random_uuid();
DELETE FROM outbox.migrations WHERE version = '20261130131341';
