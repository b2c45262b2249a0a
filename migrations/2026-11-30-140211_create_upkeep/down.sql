-- Nobody looks after partitions then; the events stay.
ALTER TABLE outbox.events_default DROP CONSTRAINT IF EXISTS rows_lie_outside_the_next_ranges;
DROP VIEW outbox.partitions;
DROP FUNCTION outbox.delete_ticks(interval);
DROP FUNCTION outbox.delete_dedup_keys(interval);
DROP FUNCTION outbox.purge_default_partition(interval);
DROP FUNCTION outbox.purge_events(interval);
DROP FUNCTION outbox.drop_retired_partition();
DROP FUNCTION outbox.retire_partition(interval);
DROP FUNCTION outbox.passed_seq(interval);
DROP FUNCTION outbox.keep_partitions_ahead();
DROP FUNCTION outbox.end_exclusion();
DROP FUNCTION outbox.plan_partitions();
DROP VIEW outbox.leaves;
DROP INDEX outbox.dedup_keys_created_at_idx;
DROP TABLE outbox.retired_partitions;
DROP TABLE outbox.upkeep;
DELETE FROM outbox.migrations WHERE version = '20261130140211';
