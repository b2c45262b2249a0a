-- Nothing goes any more; what is gone stays gone.
DROP VIEW outbox.partitions;
DROP FUNCTION outbox.delete_records(interval);
DROP FUNCTION outbox.delete_ticks(interval);
DROP FUNCTION outbox.delete_dedup_keys(interval);
DROP FUNCTION outbox.purge_default_partition(interval);
DROP FUNCTION outbox.purge_events(interval);
DROP FUNCTION outbox.drop_retired_partition();
DROP FUNCTION outbox.retire_partition(interval);
DROP FUNCTION outbox.passed_seq(interval);
DROP INDEX outbox.dedup_keys_created_at_idx;
DROP TABLE outbox.retired_partitions;
DELETE FROM outbox.migrations WHERE version = '20261130141502';
