-- Relays poll then.
DROP TRIGGER IF EXISTS wake_relays ON outbox.events;
DROP TRIGGER IF EXISTS wake_relays ON outbox.revisions;
DROP TRIGGER IF EXISTS wake_relays ON outbox.parked;
DROP FUNCTION outbox.wake_up();
DROP FUNCTION outbox.fall_asleep(interval);
DROP FUNCTION outbox.remove_wake();
DROP FUNCTION outbox.wake_is_installed();
DROP FUNCTION outbox.install_wake();
DROP FUNCTION outbox.wake_relays();
DROP FUNCTION outbox.notify_relays(bigint, text);
DROP FUNCTION outbox.sleep_lock_key();
DROP SEQUENCE outbox.asleep_until;
DELETE FROM outbox.migrations WHERE version = '20261130173812';
