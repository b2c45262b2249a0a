DROP FUNCTION outbox.drop_inbox_partitions(interval);
DROP FUNCTION outbox.keep_inbox_partitions_ahead();
DROP TABLE outbox.inbox_forgotten;
DROP TABLE outbox.inbox;
DROP FUNCTION outbox.first_id_at(timestamptz);
DELETE FROM outbox.migrations WHERE version = '20261130131429';
