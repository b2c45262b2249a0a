//! A Redis that is away, full, read-only or forgetful is nobody's fault, and no reason to repeat.

use std::time::{Duration, Instant};

use outbox_diesel::message::SHARDS;
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::publish::{Receipt, Repeat, Stamp};

use crate::contract::Broker;
use crate::events::{contact, epoch, event, events, publish, send, stamp, verdicts};
use crate::server::{RedisServer, free_port};

fn retry(epoch: i64) -> Stamp {
    Stamp { repeat: Repeat::EventId, epochs: [epoch; SHARDS], ..stamp() }
}

fn reason(receipt: &Receipt) -> &str {
    receipt.unavailability().map_or("", |unavailable| &unavailable.0)
}

#[tokio::test]
async fn a_flushed_script_cache_goes_unnoticed() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    for (nth, stamp) in [(1, epoch(1)), (2, epoch(2)), (3, retry(2)), (4, retry(3))] {
        let batch = [event(nth), event(nth + 10).topic("more")];
        let () = server.run(&["SCRIPT", "FLUSH"]).await;
        contact(&mut publisher, &stamp, &batch).await.expect("contact");
        let () = server.run(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(verdicts(&publish(&mut publisher, &stamp, &batch).await), "dd");
    }
    assert_eq!(server.seqs("orders").await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_killed_connection_is_replaced_at_the_next_contact() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    send(&mut publisher, &stamp(), &events([1])).await;
    let _: i64 = server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let receipt = publish(&mut publisher, &stamp(), &events([2])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert!(!reason(&receipt).is_empty());
    let told = contact(&mut publisher, &stamp(), &events([2])).await.expect("contact");
    assert_eq!(told.len(), 1, "a new connection has no contacts");
    assert_eq!(verdicts(&publish(&mut publisher, &stamp(), &events([2])).await), "d");
    assert_eq!(server.seqs("orders").await, [1, 2]);
}

#[tokio::test]
async fn a_full_server_is_unavailable_until_it_has_room() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    send(&mut publisher, &epoch(1), &events([1])).await;
    let () = server.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let receipt = publish(&mut publisher, &epoch(1), &events([2, 3])).await;
    assert_eq!(verdicts(&receipt), "uu");
    assert!(reason(&receipt).starts_with("OOM"), "{receipt:?}");
    let refused = contact(&mut publisher, &epoch(2), &events([2])).await.expect_err("full");
    assert!(refused.0.contains("OOM"), "{refused}");
    let () = server.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(verdicts(&send(&mut publisher, &epoch(2), &events([2, 3])).await), "dd");
    assert_eq!(server.seqs("orders").await, [1, 2, 3]);
}

#[tokio::test]
async fn a_full_server_refuses_retries_for_nobodys_fault() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    contact(&mut publisher, &retry(1), &events([1])).await.expect("contact");
    let () = server.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let receipt = publish(&mut publisher, &retry(1), &events([1])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert!(reason(&receipt).starts_with("OOM"), "{receipt:?}");
    let () = server.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(verdicts(&send(&mut publisher, &retry(2), &events([1])).await), "d");
    assert_eq!(server.seqs("orders").await, [1]);
}

#[tokio::test]
async fn a_replica_is_unavailable() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    contact(&mut publisher, &epoch(1), &events([1])).await.expect("contact");
    let () = server.run(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]).await;
    let receipt = publish(&mut publisher, &epoch(1), &events([1])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert!(reason(&receipt).starts_with("READONLY"), "{receipt:?}");
    let refused = contact(&mut publisher, &epoch(2), &events([1])).await.expect_err("a replica");
    assert!(refused.0.contains("READONLY"), "{refused}");
    let () = server.run(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(verdicts(&send(&mut publisher, &epoch(2), &events([1])).await), "d");
    assert_eq!(server.seqs("orders").await, [1]);
}

#[tokio::test]
async fn a_missing_permission_is_unavailability() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    contact(&mut publisher, &epoch(1), &events([1])).await.expect("contact");
    let () = server.run(&["ACL", "SETUSER", "default", "-xadd"]).await;
    let receipt = publish(&mut publisher, &epoch(1), &events([1])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert!(receipt.unavailability().is_some(), "{receipt:?}");
    let () = server.run(&["ACL", "SETUSER", "default", "+xadd"]).await;
    assert_eq!(verdicts(&send(&mut publisher, &epoch(2), &events([1])).await), "d");
}

#[tokio::test]
async fn a_server_that_is_away_is_told_at_once() {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    let mut publisher = RedisPublisher::connect_lazily(url).expect("a valid url");
    let started = Instant::now();
    contact(&mut publisher, &stamp(), &events([1])).await.expect_err("nobody listens");
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_silent_server_is_unavailable_after_the_timeout() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher().response_timeout(Duration::from_millis(100));
    send(&mut publisher, &epoch(1), &events([1])).await;
    server.stall().await;
    let receipt = publish(&mut publisher, &epoch(1), &events([2])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert_eq!(reason(&receipt), "no answer within the timeout");
    contact(&mut publisher, &epoch(2), &events([2])).await.expect_err("still silent");
    server.resume().await;
    assert_eq!(verdicts(&send(&mut publisher, &epoch(3), &events([2])).await), "d");
    assert_eq!(server.seqs("orders").await, [1, 2]);
}

#[tokio::test]
async fn a_server_that_never_accepts_is_unavailable_after_the_timeout() {
    // Listens, so that the kernel connects, and never says a word.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://:pw@{}/", listener.local_addr().expect("its address"));
    let mut publisher = RedisPublisher::connect_lazily(url)
        .expect("a valid url")
        .connect_timeout(Duration::from_millis(100));
    let started = Instant::now();
    contact(&mut publisher, &stamp(), &events([1])).await.expect_err("no answer");
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_fence_of_another_type_is_named() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    contact(&mut publisher, &epoch(1), &events([1])).await.expect("contact");
    let () = server.run(&["DEL", "outbox:fence:{orders}"]).await;
    let () = server.run(&["SET", "outbox:fence:{orders}", "x"]).await;
    let receipt = publish(&mut publisher, &epoch(1), &events([1])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert!(reason(&receipt).contains("`outbox:fence:{orders}`: WRONGTYPE"), "{receipt:?}");
    let refused = contact(&mut publisher, &epoch(2), &events([1])).await.expect_err("no hash");
    assert!(refused.0.contains("`outbox:fence:{orders}`: WRONGTYPE"), "{refused}");
    assert_eq!(server.entries("orders").await.len(), 0);
}

#[tokio::test]
async fn a_malformed_field_is_named_and_left_alone() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    contact(&mut publisher, &epoch(1), &events([1])).await.expect("contact");
    let field = format!("{}:default:0", stamp().source);
    for malformed in ["", "x", "1:2", "1:2:3:4", "1:2:3:4:5:6", "1::::", "-1"] {
        let () = server.run(&["HSET", "outbox:fence:{orders}", &field, malformed]).await;
        let receipt = publish(&mut publisher, &epoch(1), &events([1])).await;
        assert_eq!(verdicts(&receipt), "u");
        assert!(reason(&receipt).contains(&format!("{field} is malformed")), "{receipt:?}");
        let refused = contact(&mut publisher, &epoch(2), &events([1])).await.expect_err(malformed);
        assert!(refused.0.contains(&format!("{field} is malformed")), "{refused}");
        let stored: String = server.run(&["HGET", "outbox:fence:{orders}", &field]).await;
        assert_eq!(stored, malformed);
        let () = server.run(&["HDEL", "outbox:fence:{orders}", &field]).await;
        contact(&mut publisher, &epoch(1), &events([1])).await.expect("contact");
    }
    assert_eq!(server.entries("orders").await.len(), 0);
}

#[tokio::test]
async fn a_lost_fence_is_written_anew() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    send(&mut publisher, &epoch(3), &events([1])).await;
    let () = server.run(&["FLUSHALL"]).await;
    assert_eq!(verdicts(&publish(&mut publisher, &epoch(3), &events([2])).await), "d");
    let receipt = send(&mut server.publisher(), &epoch(2), &events([3])).await;
    assert_eq!(receipt.fenced_shards(), [0]);
}

#[tokio::test]
async fn a_fence_that_went_back_keeps_its_position() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    contact(&mut publisher, &retry(3), &events([9])).await.expect("contact");
    // What a replica that lagged behind the contact would hold.
    let field = format!("{}:default:0", stamp().source);
    let () = server.run(&["HSET", "outbox:fence:{orders}", &field, "1:1:10:77:5"]).await;
    assert_eq!(verdicts(&publish(&mut publisher, &retry(3), &events([9])).await), "d");
    let stored: String = server.run(&["HGET", "outbox:fence:{orders}", &field]).await;
    assert_eq!(stored, "3:1:10:77:5");
}

#[tokio::test]
async fn streams_without_number_are_forgotten_and_found_again() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    let many: Vec<_> = (1..=5_000).map(|seq| event(seq).topic(&seq.to_string())).collect();
    assert_eq!(verdicts(&send(&mut publisher, &stamp(), &many).await), "d".repeat(5_000));
    let told = contact(&mut publisher, &stamp(), &many[..1]).await.expect("contact");
    assert_eq!(told.len(), 1, "known streams are bounded");
    assert_eq!(verdicts(&publish(&mut publisher, &stamp(), &many[..1]).await), "d");
    assert_eq!(server.seqs("1").await, [1]);
}

#[tokio::test]
async fn numbers_beyond_what_scripts_hold_are_refused() {
    let server = RedisServer::start().await;
    let mut publisher = server.publisher();
    let high = 1 << 53;
    contact(&mut publisher, &epoch(high), &events([1])).await.expect_err("epoch");
    contact(&mut publisher, &epoch(1), &[event(1).tick(high)]).await.expect_err("tick");
    contact(&mut publisher, &epoch(1), &events([1])).await.expect("contact");
    for (stamp, batch) in [
        (epoch(high), events([1])),
        (epoch(-1), events([1])),
        (Stamp { generation: high, ..stamp() }, events([1])),
        (Stamp { repeat: Repeat::Position { mark: high }, ..stamp() }, events([1])),
        (stamp(), events([high])),
        (stamp(), vec![event(1).tick(high)]),
        (stamp(), vec![event(1), event(2).tick(11)]),
    ] {
        let receipt = publish(&mut publisher, &stamp, &batch).await;
        assert_eq!(verdicts(&receipt), "u".repeat(batch.len()));
        assert!(reason(&receipt).contains("2^53") || reason(&receipt).contains("ticks"));
    }
    assert_eq!(server.entries("orders").await.len(), 0);
}
