//! What consumers and operators see in Redis. It is a contract.

use std::collections::HashMap;
use std::time::Duration;

use outbox_diesel::publish::redis::{RedisPublisher, StreamNaming, Trim};
use outbox_diesel::publish::{Repeat, Stamp, Verdict};
use uuid::Uuid;

use crate::contract::Broker;
use crate::events::{Event, epoch, event, events, send, stamp, verdicts};
use crate::server::RedisServer;

/// With scripts and without.
const BOTH: [fn(&RedisServer) -> RedisPublisher; 2] =
    [RedisServer::publisher, |server| server.publisher().without_scripts()];

#[tokio::test]
async fn an_entry_has_these_fields() {
    let server = RedisServer::start().await;
    let keyed = Event { dedup_key: Some("once".to_owned()), ..event(2) };
    let traced = Event { headers: "{\"tenant\": \"t1\"}".to_owned(), ..event(1).shard(3) };
    send(&mut server.publisher(), &stamp(), &[traced, keyed]).await;
    let entries: Vec<(String, Vec<String>)> = server.run(&["XRANGE", "orders", "-", "+"]).await;
    let fields = |id: &str, dedup_key: &str, payload: &str, headers: &str| {
        let fields = [
            ("event_id", id),
            ("topic", "orders"),
            ("aggregate_type", "order"),
            ("aggregate_id", "a"),
            ("event_type", "order.created"),
            ("event_version", "1"),
            ("dedup_key", dedup_key),
            ("payload", payload),
            ("headers", headers),
            ("created_at", "2023-11-14T22:13:20.123456Z"),
        ];
        fields.iter().flat_map(|(key, value)| [*key, *value]).map(String::from).collect::<Vec<_>>()
    };
    let traced =
        fields("00000000-0000-0000-0000-000000000001", "", "{\"n\":1}", "{\"tenant\": \"t1\"}");
    assert_eq!(entries[0].1, traced);
    let keyed = fields("00000000-0000-0000-0000-000000000002", "once", "{\"n\":2}", "{}");
    assert_eq!(entries[1].1, keyed);
}

#[tokio::test]
async fn texts_arrive_byte_for_byte() {
    let server = RedisServer::start().await;
    let long = format!("{{\"text\":\"{}\"}}", "ä".repeat(512 * 1024));
    let payloads = [
        "{ \"spaces\" :  [1.0, 1e3, -0] }",
        "\"caf\u{e9} \u{65e5}\u{672c} \u{1f980} \u{2028}\"",
        "\"\\u0000 \\ud83e\\udd80 \\n\"",
        "null",
        &long,
    ];
    let batch: Vec<Event> = (1..)
        .zip(payloads)
        .map(|(seq, payload)| event(seq).payload(payload).aggregate("\u{1f980} %s {} \r\n"))
        .collect();
    let receipt = send(&mut server.publisher(), &stamp(), &batch).await;
    assert_eq!(verdicts(&receipt), "ddddd");
    let entries = server.entries("orders").await;
    for (entry, payload) in entries.iter().zip(payloads) {
        assert!(entry["payload"] == payload);
        assert_eq!(entry["aggregate_id"], "\u{1f980} %s {} \r\n");
    }
}

#[tokio::test]
async fn streams_are_named_as_chosen() {
    for publisher in BOTH {
        let server = RedisServer::start().await;
        let batch = [event(1), event(2).topic("more").shard(5), event(3).shard(4).aggregate("b")];
        let topics = publisher(&server).stream_prefix("app:");
        let one = publisher(&server).streams(StreamNaming::Single("all".to_owned()));
        let sharded = publisher(&server).streams(StreamNaming::PerShard { per_topic: 4 });
        for mut publisher in [topics, one, sharded] {
            assert_eq!(verdicts(&send(&mut publisher, &stamp(), &batch).await), "ddd");
        }
        assert_eq!(server.seqs("app:orders").await, [1, 3]);
        assert_eq!(server.seqs("app:more").await, [2]);
        assert_eq!(server.seqs("all").await, [1, 2, 3]);
        assert_eq!(server.seqs("orders:0").await, [1, 3]);
        assert_eq!(server.seqs("more:1").await, [2]);
    }
}

#[tokio::test]
async fn the_fence_is_readable() {
    let server = RedisServer::start().await;
    send(&mut server.publisher(), &epoch(4), &events([1, 5])).await;
    let fence: HashMap<String, String> = server.run(&["HGETALL", "outbox:fence:{orders}"]).await;
    let field = "00000000-0000-0000-0000-000000000001:default:0".to_owned();
    assert_eq!(fence, HashMap::from([(field, "4:1:10:77:5".to_owned())]));
}

#[tokio::test]
async fn a_retried_event_is_remembered_for_a_week() {
    let server = RedisServer::start().await;
    let retry = Stamp { repeat: Repeat::EventId, ..stamp() };
    send(&mut server.publisher(), &retry, &events([1])).await;
    let key =
        format!("outbox:parked:{{orders}}:{}:default:1:{}", stamp().source, Uuid::from_u128(1));
    let seconds: i64 = server.run(&["TTL", &key]).await;
    assert!((604_000..=604_800).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn streams_are_trimmed_only_on_demand() {
    for publisher in BOTH {
        let server = RedisServer::start().await;
        send(&mut publisher(&server), &stamp(), &events(1..=1_000)).await;
        assert_eq!(server.entries("orders").await.len(), 1_000);
        let mut bounded = publisher(&server).trim(Trim::MaxLen(100));
        send(&mut bounded, &stamp(), &events(1_001..=1_002)).await;
        let kept = server.seqs("orders").await;
        assert!((100..=300).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept.last(), Some(&1_002));
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut aged = publisher(&server).trim(Trim::MaxAge(Duration::from_millis(1)));
        let retry = Stamp { repeat: Repeat::EventId, ..stamp() };
        send(&mut aged, &retry, &events([1_003])).await;
        assert!(server.entries("orders").await.len() < 120);
        let mut lasting = publisher(&server).trim(Trim::MaxAge(Duration::MAX));
        send(&mut lasting, &stamp(), &events([1_004])).await;
        assert_eq!(server.seqs("orders").await.last(), Some(&1_004));
    }
}

#[tokio::test]
async fn an_older_event_that_comes_after_a_newer_one_gets_an_id_above_it() {
    let server = RedisServer::start().await;
    send(&mut server.publisher(), &stamp(), &[event(7).tick(20)]).await;
    // Of another shard, by another relay that is behind.
    let behind = send(&mut server.publisher(), &stamp(), &[event(5).tick(10).shard(1)]).await;
    let retry = Stamp { repeat: Repeat::EventId, ..stamp() };
    let retried = send(&mut server.publisher(), &retry, &[event(3).tick(10)]).await;
    assert_eq!([verdicts(&behind), verdicts(&retried)], ["d", "d"]);
    // In the order of their ids, which are those that Redis chose.
    assert_eq!(server.seqs("orders").await, [7, 5, 3]);
    let entries: Vec<(String, Vec<String>)> = server.run(&["XRANGE", "orders", "-", "+"]).await;
    let (time, _) = entries[0].0.split_once('-').expect("an id has two parts");
    let now: (String, String) = server.run(&["TIME"]).await;
    let age = now.0.parse::<u64>().expect("seconds") - time.parse::<u64>().expect("ms") / 1_000;
    assert!(age < 3_600, "{age}");
}

#[tokio::test]
async fn every_key_of_a_call_lies_in_the_slot_of_its_stream() {
    let topics = ["orders", "a:b", "{x}", "x", "a{b}c", "{}x", "x}", "}{", "a}b{c}d", "{{x}}"];
    let batch: Vec<Event> =
        (1..).zip(topics).map(|(seq, topic)| event(seq).topic(topic).aggregate(topic)).collect();
    let retry = Stamp { repeat: Repeat::EventId, ..stamp() };
    let sharded = StreamNaming::PerShard { per_topic: 16 };
    for publisher in BOTH {
        let server = RedisServer::start_cluster().await;
        for naming in [StreamNaming::PerTopic, sharded.clone()] {
            let mut publisher = publisher(&server).streams(naming);
            for stamp in [stamp(), retry.clone()] {
                let receipt = send(&mut publisher, &stamp, &batch).await;
                assert_eq!(receipt.unavailability(), None);
                assert_eq!(verdicts(&receipt), "dddddddddd");
            }
        }
        for (seq, topic) in (1..).zip(topics) {
            assert_eq!(server.seqs(topic).await, [seq, seq], "{topic}");
            assert_eq!(server.seqs(&format!("{topic}:0")).await, [seq, seq], "{topic}");
        }
    }
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % sides
    }
}

#[tokio::test]
async fn nothing_overtakes_a_failure() {
    let server = RedisServer::start().await;
    let mut dice = Dice(7);
    for round in 0..60 {
        let publisher = BOTH[usize::from(round % 2 == 1)];
        let mut publisher = publisher(&server).stream_prefix(format!("{round}:"));
        let key = format!("{round}:t3");
        let () = server.run(&["SET", &key, "no stream"]).await;
        let batch: Vec<Event> = (1..=40)
            .map(|seq| {
                let aggregate = dice.roll(6);
                // One in a dozen goes where it is rejected.
                let topic = if dice.roll(12) == 0 { 3 } else { dice.roll(3) };
                event(seq)
                    .aggregate(&aggregate.to_string())
                    .shard(u8::try_from(aggregate % 2).expect("small"))
                    .topic(&format!("t{topic}"))
            })
            .collect();
        let receipt = send(&mut publisher, &stamp(), &batch).await;
        assert_eq!(receipt.unavailability(), None);
        let verdicts = receipt.verdicts();
        for (nth, event) in
            batch.iter().enumerate().filter(|(nth, _)| verdicts[*nth] == Verdict::Delivered)
        {
            for (before, earlier) in batch[..nth].iter().enumerate() {
                let same_place = (&earlier.topic, earlier.shard) == (&event.topic, event.shard);
                if earlier.aggregate == event.aggregate || same_place {
                    assert_eq!(
                        verdicts[before],
                        Verdict::Delivered,
                        "{earlier:?} before {event:?}"
                    );
                }
            }
        }
        check_arrivals(&server, round, &batch, verdicts).await;
    }
}

/// Each stream holds exactly what was said to be delivered, in order.
async fn check_arrivals(server: &RedisServer, round: u64, batch: &[Event], verdicts: &[Verdict]) {
    for topic in ["t0", "t1", "t2"] {
        let told: Vec<u128> = batch
            .iter()
            .zip(verdicts)
            .filter(|(event, verdict)| event.topic == topic && **verdict == Verdict::Delivered)
            .map(|(event, _)| crate::events::id(event.seq).as_u128())
            .collect();
        assert_eq!(server.seqs(&format!("{round}:{topic}")).await, told);
    }
}

#[tokio::test]
async fn a_batch_that_goes_through_takes_few_flights() {
    let server = RedisServer::start().await;
    // Every aggregate emits to both topics: two flights, not forty.
    let batch: Vec<Event> = (1..=40)
        .map(|seq| {
            let topic = if seq % 2 == 0 { "invoices" } else { "orders" };
            event(seq).aggregate(&(seq / 2).to_string()).topic(topic)
        })
        .collect();
    let mut publisher = server.publisher();
    send(&mut publisher, &stamp(), &batch).await;
    let () = server.run(&["CONFIG", "RESETSTAT"]).await;
    let again: Vec<Event> = batch.into_iter().map(|event| event.tick(11)).collect();
    assert_eq!(verdicts(&send(&mut publisher, &stamp(), &again).await), "d".repeat(40));
    let stats: String = server.run(&["INFO", "commandstats"]).await;
    let calls = stats.lines().find(|line| line.starts_with("cmdstat_evalsha")).expect("calls");
    assert!(calls.contains("calls=4,") || calls.contains("calls=3,"), "{calls}");
}

#[tokio::test]
async fn secrets_stay_out_of_texts() {
    let server = RedisServer::start_with_password("correct-horse").await;
    let wrong = server.url().replace("correct-horse", "hunter2");
    let mut publisher = RedisPublisher::connect_lazily(wrong).expect("a valid url");
    let told = crate::events::contact(&mut publisher, &stamp(), &events([1])).await;
    let unparsable = RedisPublisher::connect_lazily("redis://me:hunter2@host:port/");
    let unparsable = unparsable.expect_err("no port");
    let right = server.publisher();
    for text in [
        format!("{told:?} {}", told.clone().expect_err("the wrong password")),
        format!("{publisher:#?} {right:#?}"),
        format!("{unparsable:?} {unparsable}"),
        format!("{:?}", std::error::Error::source(&unparsable)),
    ] {
        assert!(!text.contains("hunter2") && !text.contains("correct-horse"), "{text}");
    }
    assert_eq!(verdicts(&send(&mut server.publisher(), &stamp(), &events([1])).await), "d");
}

#[tokio::test]
async fn tls_to_a_server_without_it_is_unavailability() {
    let server = RedisServer::start().await;
    let url = server.url().replace("redis://", "rediss://");
    let mut publisher = RedisPublisher::connect_lazily(url)
        .expect("a valid url")
        .connect_timeout(Duration::from_millis(500));
    crate::events::contact(&mut publisher, &stamp(), &events([1])).await.expect_err("no TLS");
}
