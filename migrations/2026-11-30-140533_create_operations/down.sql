-- Forgets what operators discarded and why, and ends replays.
DROP VIEW outbox.event_status;
DROP TABLE outbox.replay_cursors;
DROP TABLE outbox.replays;
DROP TABLE outbox.discarded;
DROP INDEX outbox.parked_id_idx;
DROP TABLE outbox.revisions;
DELETE FROM outbox.migrations WHERE version = '20261130140533';
