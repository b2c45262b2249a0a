-- Nobody makes partitions then; events go into the default one.
ALTER TABLE outbox.events_default DROP CONSTRAINT IF EXISTS rows_lie_outside_the_next_ranges;
DROP FUNCTION outbox.keep_partitions_ahead();
DROP FUNCTION outbox.end_exclusion();
DROP FUNCTION outbox.plan_partitions();
DROP VIEW outbox.leaves;
DROP TABLE outbox.upkeep;
DELETE FROM outbox.migrations WHERE version = '20261130140211';
