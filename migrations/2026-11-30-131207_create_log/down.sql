-- Drops every event, delivered or not.
DROP SCHEMA outbox CASCADE;
