-- Forgets what operators discarded and why, and ends replays.
CREATE OR REPLACE VIEW outbox.event_status AS
    SELECT s.name AS subscription, e.seq, e.id AS event_id, e.topic, e.aggregate_type, e.aggregate_id,
           e.event_type, e.event_version, e.payload, e.headers, e.created_at,
           CASE
               WHEN p.dead THEN 'dead'
               WHEN p.holds AND EXISTS (
                   SELECT FROM outbox.parked earlier
                   WHERE earlier.subscription = p.subscription AND earlier.shard = p.shard
                     AND earlier.aggregate_type = p.aggregate_type AND earlier.aggregate_id = p.aggregate_id
                     AND earlier.holds AND (earlier.tick, earlier.seq) < (p.tick, p.seq)) THEN 'held'
               WHEN p.seq IS NOT NULL THEN 'retrying'
               WHEN e.seq <= m.seq_floor OR pg_visible_in_snapshot(e.xid, t.snapshot) THEN 'published'
               ELSE 'pending'
           END AS status,
           coalesce(p.attempts, 0) AS attempts, p.next_attempt_at, p.error,
           -- To the tick: the first one that sees the event.
           (SELECT k.ticked_at FROM outbox.ticks k
            WHERE k.xid > e.xid AND pg_visible_in_snapshot(e.xid, k.snapshot)
            ORDER BY k.xid LIMIT 1) AS visible_since
    FROM outbox.subscriptions s
    CROSS JOIN outbox.meta m
    CROSS JOIN outbox.events e
    JOIN outbox.cursors c ON c.subscription = s.name AND c.shard = e.shard
    JOIN outbox.ticks t ON t.tick = c.tick
    LEFT JOIN outbox.parked p ON p.subscription = s.name AND p.seq = e.seq;
COMMENT ON VIEW outbox.event_status IS 'One row per event and subscription: pending, published, retrying, held or dead. Events of a diff under way count as pending';
DROP TABLE outbox.replay_cursors;
DROP TABLE outbox.replays;
DROP TABLE outbox.discarded;
DROP INDEX outbox.parked_id_idx;
DROP TABLE outbox.revisions;
DELETE FROM outbox.migrations WHERE version = '20261130140533';
