//! Without scripts: at least once, in order, and nothing but transactions.

use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::publish::{Receipt, Repeat, Stamp};
use uuid::Uuid;

use crate::contract::{Broker, contract};
use crate::events::{Event, contact, epoch, event, events, publish, send, stamp, verdicts};
use crate::server::{RedisServer, free_port};

/// A server that runs no scripts.
struct Scriptless(RedisServer);

impl Scriptless {
    async fn start() -> Self {
        let without = |command| ["--rename-command", command, ""];
        let arguments = ["EVAL", "EVALSHA", "SCRIPT"].map(without).concat();
        Self(RedisServer::start_with(&arguments).await)
    }
}

impl Broker for Scriptless {
    type Publisher = RedisPublisher;

    fn publisher(&self) -> RedisPublisher {
        self.0.publisher().without_scripts()
    }

    async fn ids(&self, topic: &str) -> Vec<Uuid> {
        self.0.ids(topic).await
    }

    async fn refuse(&self, topic: &str) {
        self.0.refuse(topic).await;
    }

    async fn stall(&self) {
        self.0.stall().await;
    }

    async fn resume(&self) {
        self.0.resume().await;
    }
}

// What of the contract needs no fence.
contract! { Scriptless::start:
    events_arrive_in_order,
    a_later_tick_starts_its_own_numbers,
    shards_do_not_disturb_each_other,
    subscriptions_do_not_disturb_each_other,
    sources_do_not_disturb_each_other,
    a_rejection_hits_one_event_and_stops_its_stream,
    an_aggregate_stops_in_every_stream,
    an_empty_batch_is_nothing,
}

fn reason(receipt: &Receipt) -> &str {
    receipt.unavailability().map_or("", |unavailable| &unavailable.0)
}

#[tokio::test]
async fn what_is_sent_again_arrives_again_behind_what_was_there() {
    let server = Scriptless::start().await;
    let mut publisher = server.publisher();
    send(&mut publisher, &epoch(1), &events([1, 2])).await;
    send(&mut publisher, &epoch(2), &events([2, 3])).await;
    // Nor is there anything that shuts an earlier owner out.
    send(&mut server.publisher(), &epoch(1), &events([3])).await;
    let retry = Stamp { repeat: Repeat::EventId, ..stamp() };
    send(&mut publisher, &retry, &events([3])).await;
    assert_eq!(server.seqs("orders").await, [1, 2, 2, 3, 3, 3]);
    let keys: Vec<String> = server.0.run(&["KEYS", "*"]).await;
    assert_eq!(keys, ["orders"], "it writes nothing beside the streams");
}

#[tokio::test]
async fn a_server_that_runs_no_scripts_is_told_with_the_way_around_it() {
    let server = Scriptless::start().await;
    let refused = contact(&mut server.0.publisher(), &stamp(), &events([1])).await;
    let refused = refused.expect_err("it knows no EVALSHA").0;
    assert!(refused.contains("runs no scripts (ERR unknown command"), "{refused}");
    assert!(refused.contains("`without_scripts`"), "{refused}");
}

#[tokio::test]
async fn a_user_who_may_run_no_scripts_is_told_the_way_around_it() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    contact(&mut publisher, &epoch(1), &events([1])).await.expect("contact");
    let () = server.run(&["ACL", "SETUSER", "default", "-@scripting"]).await;
    let receipt = publish(&mut publisher, &epoch(1), &events([1])).await;
    let refused = contact(&mut publisher, &epoch(2), &events([1])).await.expect_err("denied").0;
    for reason in [reason(&receipt), &refused] {
        assert!(reason.contains("runs no scripts (NOPERM"), "{reason}");
        assert!(reason.contains("`without_scripts`"), "{reason}");
    }
    let mut publisher = server.publisher().without_scripts();
    assert_eq!(verdicts(&send(&mut publisher, &epoch(2), &events([1])).await), "d");
    assert_eq!(server.seqs("orders").await, [1]);
}

#[tokio::test]
async fn a_server_without_transactions_is_told_before_anything_is_sent() {
    let server = RedisServer::start_with(&["--rename-command", "MULTI", ""]).await;
    let mut publisher = server.publisher().without_scripts();
    let refused = contact(&mut publisher, &stamp(), &events([1])).await.expect_err("no MULTI").0;
    assert!(refused.contains("takes no transactions"), "{refused}");
    let receipt = publish(&mut publisher, &stamp(), &events([1])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert_eq!(server.entries("orders").await.len(), 0);
}

#[tokio::test]
async fn of_a_batch_that_does_not_fit_nothing_is_there() {
    let server = Scriptless::start().await;
    let mut publisher = server.publisher();
    let batch: Vec<Event> =
        (1..=100).map(|seq| event(seq).payload(format!("\"{}\"", "x".repeat(8 * 1024)))).collect();
    contact(&mut publisher, &stamp(), &batch).await.expect("contact");
    let memory: String = server.0.run(&["INFO", "memory"]).await;
    let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.and_then(|used| used.trim().parse().ok()).expect("bytes");
    let room = (used + 400 * 1024).to_string();
    let () = server.0.run(&["CONFIG", "SET", "maxmemory", &room]).await;
    let receipt = publish(&mut publisher, &stamp(), &batch).await;
    assert_eq!(verdicts(&receipt), "u".repeat(100));
    assert!(reason(&receipt).starts_with("OOM"), "{receipt:?}");
    assert_eq!(server.seqs("orders").await, [0; 0], "the rest would come behind it");
    let () = server.0.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(verdicts(&send(&mut publisher, &stamp(), &batch).await), "d".repeat(100));
    assert_eq!(server.seqs("orders").await, (1..=100).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_went_through_is_acknowledged_though_another_stream_is_refused() {
    let server = Scriptless::start().await;
    let () = server.0.run(&["ACL", "SETUSER", "default", "resetkeys", "~orders"]).await;
    let batch = [
        event(1).aggregate("a"),
        event(2).aggregate("b").topic("more"),
        event(3).aggregate("c"),
        event(4).aggregate("b"),
    ];
    let mut publisher = server.publisher();
    let receipt = send(&mut publisher, &stamp(), &batch).await;
    assert_eq!(verdicts(&receipt), "dudu");
    assert!(reason(&receipt).starts_with("NOPERM"), "{receipt:?}");
    let () = server.0.run(&["ACL", "SETUSER", "default", "allkeys"]).await;
    let rest = [batch[1].clone(), batch[3].clone()];
    assert_eq!(verdicts(&send(&mut publisher, &stamp(), &rest).await), "dd");
    assert_eq!(server.seqs("orders").await, [1, 3, 4]);
    assert_eq!(server.seqs("more").await, [2]);
}

#[tokio::test]
async fn a_replica_is_unavailable_and_gets_nothing() {
    let server = Scriptless::start().await;
    let mut publisher = server.publisher();
    contact(&mut publisher, &stamp(), &events([1])).await.expect("contact");
    let () = server.0.run(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]).await;
    let receipt = publish(&mut publisher, &stamp(), &events([1, 2])).await;
    assert_eq!(verdicts(&receipt), "uu");
    assert!(reason(&receipt).starts_with("READONLY"), "{receipt:?}");
    let () = server.0.run(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(verdicts(&send(&mut publisher, &stamp(), &events([1, 2])).await), "dd");
    assert_eq!(server.seqs("orders").await, [1, 2]);
}

#[tokio::test]
async fn a_killed_connection_is_replaced_at_the_next_contact() {
    let server = Scriptless::start().await;
    let mut publisher = server.publisher();
    send(&mut publisher, &stamp(), &events([1])).await;
    let _: i64 = server.0.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let receipt = publish(&mut publisher, &stamp(), &events([2])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert!(!reason(&receipt).is_empty());
    assert_eq!(verdicts(&send(&mut publisher, &stamp(), &events([2])).await), "d");
    assert_eq!(server.seqs("orders").await, [1, 2]);
}

#[tokio::test]
async fn an_entry_is_the_same_with_and_without_scripts() {
    let server = RedisServer::start().await;
    let batch = [
        Event { dedup_key: Some("once".to_owned()), ..event(1) },
        Event { headers: "{\"tenant\": \"t1\"}".to_owned(), ..event(2).shard(3) },
        event(3).payload("\"caf\u{e9} \\u0000 \u{1f980}\"").aggregate("\u{1f980} %s {} \r\n"),
    ];
    send(&mut server.publisher().stream_prefix("with:"), &stamp(), &batch).await;
    let mut without = server.publisher().stream_prefix("without:").without_scripts();
    send(&mut without, &stamp(), &batch).await;
    let mut entries = Vec::new();
    for stream in ["with:orders", "without:orders"] {
        let told: Vec<(String, Vec<String>)> = server.run(&["XRANGE", stream, "-", "+"]).await;
        entries.push(told.into_iter().map(|(_, fields)| fields).collect::<Vec<_>>());
    }
    assert_eq!(entries[0].len(), 3);
    assert_eq!(entries[0], entries[1]);
}
