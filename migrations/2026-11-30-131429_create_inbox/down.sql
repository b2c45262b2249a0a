DROP TABLE outbox.inbox;
DELETE FROM outbox.migrations WHERE version = '20261130131429';
