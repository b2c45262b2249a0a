//! What every publisher with a fence has to do, whatever it publishes to.

use std::time::Duration;

use outbox_diesel::message::SHARDS;
use outbox_diesel::publish::{Publisher, Repeat, Stamp, StoredPosition};
use uuid::Uuid;

use crate::events::{contact, epoch, event, events, id, publish, send, stamp, verdicts};

/// A broker to publish to, and to look into.
pub(crate) trait Broker {
    type Publisher: Publisher;

    /// A connection of its own.
    fn publisher(&self) -> Self::Publisher;

    /// The ids at the topic's destination, in order.
    async fn ids(&self, topic: &str) -> Vec<Uuid>;

    /// From now on every event of the topic is rejected.
    async fn refuse(&self, topic: &str);

    /// Calls hang until [`resume`](Self::resume).
    async fn stall(&self);

    async fn resume(&self);

    async fn seqs(&self, topic: &str) -> Vec<u128> {
        self.ids(topic).await.into_iter().map(|id| id.as_u128()).collect()
    }
}

/// Expands to one test per rule of the contract.
macro_rules! contract {
    ($start:path: $($rule:ident),+ $(,)?) => {
        $(
            #[tokio::test]
            async fn $rule() {
                $crate::contract::$rule(&$start().await).await;
            }
        )+
    };
    ($start:path) => {
        $crate::contract::contract! { $start:
            events_arrive_in_order,
            a_replay_is_skipped,
            an_older_tick_is_skipped,
            a_later_tick_starts_its_own_numbers,
            a_lower_epoch_is_fenced,
            a_fenced_shard_holds_the_whole_call,
            a_higher_generation_repeats_positions,
            a_lower_generation_is_fenced,
            an_unlike_mark_is_neither_skipped_nor_sent,
            numbers_up_to_2_53_are_exact,
            shards_do_not_disturb_each_other,
            subscriptions_do_not_disturb_each_other,
            sources_do_not_disturb_each_other,
            a_retry_by_id_arrives_once,
            a_retry_leaves_the_position_alone,
            a_retry_under_a_lower_epoch_is_fenced,
            a_retry_of_a_new_generation_is_new,
            a_rejection_hits_one_event_and_stops_its_stream,
            a_parked_event_does_not_hold_the_position,
            an_aggregate_stops_in_every_stream,
            contact_tells_what_is_stored,
            contact_is_made_once_per_epoch,
            contact_shuts_out_earlier_epochs,
            contact_under_a_lower_epoch_changes_nothing,
            without_contact_nothing_goes_out,
            a_dropped_call_leaves_a_clean_publisher,
            an_empty_batch_is_nothing,
        }
    };
}
pub(crate) use contract;

pub(crate) async fn events_arrive_in_order<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    let receipt = send(&mut publisher, &stamp(), &events(1..=100)).await;
    assert_eq!(verdicts(&receipt), "d".repeat(100));
    assert_eq!(receipt.unavailability(), None);
    assert_eq!(broker.seqs("orders").await, (1..=100).collect::<Vec<_>>());
}

pub(crate) async fn a_replay_is_skipped<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &stamp(), &events([1, 2])).await;
    let receipt = send(&mut publisher, &stamp(), &events([1, 2, 3])).await;
    assert_eq!(verdicts(&receipt), "ddd");
    let mut successor = broker.publisher();
    send(&mut successor, &epoch(2), &events([2, 3, 4])).await;
    assert_eq!(broker.seqs("orders").await, [1, 2, 3, 4]);
}

pub(crate) async fn an_older_tick_is_skipped<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &stamp(), &[event(1).tick(11)]).await;
    let receipt = send(&mut publisher, &stamp(), &[event(2).tick(10)]).await;
    assert_eq!(verdicts(&receipt), "d");
    assert_eq!(broker.seqs("orders").await, [1]);
}

pub(crate) async fn a_later_tick_starts_its_own_numbers<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &stamp(), &events([9])).await;
    // A straggler: a lower seq that became visible later.
    send(&mut publisher, &stamp(), &[event(5).tick(11)]).await;
    assert_eq!(broker.seqs("orders").await, [9, 5]);
}

pub(crate) async fn a_lower_epoch_is_fenced<B: Broker>(broker: &B) {
    let mut zombie = broker.publisher();
    send(&mut zombie, &epoch(4), &events([1])).await;
    send(&mut broker.publisher(), &epoch(5), &events([1, 2])).await;
    let receipt = publish(&mut zombie, &epoch(4), &events([2, 3])).await;
    assert_eq!(verdicts(&receipt), "uu");
    assert_eq!(receipt.fenced_shards(), [0]);
    assert_eq!(receipt.unavailability(), None);
    assert_eq!(broker.seqs("orders").await, [1, 2]);
}

pub(crate) async fn a_fenced_shard_holds_the_whole_call<B: Broker>(broker: &B) {
    let mut zombie = broker.publisher();
    let both = [event(2), event(3).shard(1)];
    contact(&mut zombie, &epoch(4), &both).await.expect("contact");
    send(&mut broker.publisher(), &epoch(5), &events([1])).await;
    let receipt = publish(&mut zombie, &epoch(4), &both).await;
    assert_eq!(verdicts(&receipt), "uu");
    assert_eq!(receipt.fenced_shards(), [0]);
    let receipt = publish(&mut zombie, &epoch(4), &both[1..]).await;
    assert_eq!(verdicts(&receipt), "d");
    assert_eq!(broker.seqs("orders").await, [1, 3]);
}

pub(crate) async fn a_higher_generation_repeats_positions<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &stamp(), &events([1, 2])).await;
    let rewound = Stamp { generation: 2, ..stamp() };
    send(&mut publisher, &rewound, &[event(1).tick(3)]).await;
    send(&mut publisher, &rewound, &[event(1).tick(3), event(2).tick(3)]).await;
    assert_eq!(broker.seqs("orders").await, [1, 2, 1, 2]);
}

pub(crate) async fn a_lower_generation_is_fenced<B: Broker>(broker: &B) {
    let rewound = Stamp { generation: 2, ..stamp() };
    send(&mut broker.publisher(), &rewound, &events([1])).await;
    let receipt = send(&mut broker.publisher(), &stamp(), &events([2])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert_eq!(receipt.fenced_shards(), [0]);
    assert_eq!(broker.seqs("orders").await, [1]);
}

pub(crate) async fn an_unlike_mark_is_neither_skipped_nor_sent<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &stamp(), &events([1])).await;
    let unlike = Stamp { repeat: Repeat::Position { mark: 78 }, ..stamp() };
    let receipt = send(&mut publisher, &unlike, &events([1, 2])).await;
    assert_eq!(verdicts(&receipt), "uu");
    assert!(receipt.unavailability().is_some());
    assert_eq!(broker.seqs("orders").await, [1]);
}

pub(crate) async fn numbers_up_to_2_53_are_exact<B: Broker>(broker: &B) {
    const LAST: i64 = (1 << 53) - 1;
    let high = Stamp {
        generation: LAST - 1,
        epochs: [LAST - 1; SHARDS],
        repeat: Repeat::Position { mark: LAST },
        ..stamp()
    };
    let last = [event(LAST - 1).tick(LAST), event(LAST).tick(LAST)];
    let mut publisher = broker.publisher();
    send(&mut publisher, &high, &last[..1]).await;
    send(&mut publisher, &high, &last).await;
    let higher = Stamp { epochs: [LAST; SHARDS], ..high.clone() };
    let told = contact(&mut publisher, &higher, &last).await.expect("contact");
    let position = StoredPosition { generation: LAST - 1, tick: LAST, mark: LAST, seq: LAST };
    assert_eq!((told[0].epoch, told[0].position), (LAST - 1, Some(position)));
    let receipt = send(&mut broker.publisher(), &high, &last).await;
    assert_eq!(receipt.fenced_shards(), [0]);
    let ids = broker.ids("orders").await;
    assert_eq!(ids, [id(LAST - 1), id(LAST)]);
}

pub(crate) async fn shards_do_not_disturb_each_other<B: Broker>(broker: &B) {
    let mut ahead = broker.publisher();
    send(&mut ahead, &epoch(9), &[event(50).tick(20).shard(1)]).await;
    let receipt = send(&mut broker.publisher(), &epoch(2), &events([1])).await;
    assert_eq!(verdicts(&receipt), "d");
    assert_eq!(broker.seqs("orders").await, [50, 1]);
}

pub(crate) async fn subscriptions_do_not_disturb_each_other<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &epoch(9), &[event(1).tick(20)]).await;
    let other = Stamp { subscription: "other".to_owned(), ..stamp() };
    let receipt = send(&mut publisher, &other, &events([1])).await;
    assert_eq!(verdicts(&receipt), "d");
    assert_eq!(broker.seqs("orders").await, [1, 1]);
}

pub(crate) async fn sources_do_not_disturb_each_other<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &epoch(9), &[event(1).tick(20)]).await;
    let other = Stamp { source: Uuid::from_u128(2), ..stamp() };
    let receipt = send(&mut publisher, &other, &events([1])).await;
    assert_eq!(verdicts(&receipt), "d");
    assert_eq!(broker.seqs("orders").await, [1, 1]);
}

fn retry() -> Stamp {
    Stamp { repeat: Repeat::EventId, ..stamp() }
}

pub(crate) async fn a_retry_by_id_arrives_once<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &stamp(), &events([9])).await;
    let parked = [event(3).tick(7), event(4).tick(8)];
    assert_eq!(verdicts(&send(&mut publisher, &retry(), &parked[..1]).await), "d");
    assert_eq!(verdicts(&send(&mut publisher, &retry(), &parked).await), "dd");
    let successor = Stamp { epochs: [2; SHARDS], ..retry() };
    assert_eq!(verdicts(&send(&mut broker.publisher(), &successor, &parked).await), "dd");
    assert_eq!(broker.seqs("orders").await, [9, 3, 4]);
}

pub(crate) async fn a_retry_leaves_the_position_alone<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &stamp(), &events([5])).await;
    send(&mut publisher, &retry(), &events([3])).await;
    let told = contact(&mut publisher, &epoch(2), &events([6])).await.expect("contact");
    let position = StoredPosition { generation: 1, tick: 10, mark: 77, seq: 5 };
    assert_eq!((told[0].epoch, told[0].position), (1, Some(position)));
    send(&mut publisher, &epoch(2), &events([4, 5, 6])).await;
    assert_eq!(broker.seqs("orders").await, [5, 3, 6]);
}

pub(crate) async fn a_retry_under_a_lower_epoch_is_fenced<B: Broker>(broker: &B) {
    let mut zombie = broker.publisher();
    contact(&mut zombie, &retry(), &events([3])).await.expect("contact");
    send(&mut broker.publisher(), &epoch(2), &events([5])).await;
    let receipt = publish(&mut zombie, &retry(), &events([3])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert_eq!(receipt.fenced_shards(), [0]);
    assert_eq!(broker.seqs("orders").await, [5]);
}

pub(crate) async fn a_retry_of_a_new_generation_is_new<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &retry(), &events([3])).await;
    let rewound = Stamp { generation: 2, ..retry() };
    send(&mut publisher, &rewound, &events([3])).await;
    send(&mut publisher, &rewound, &events([3])).await;
    assert_eq!(broker.seqs("orders").await, [3, 3]);
}

pub(crate) async fn a_rejection_hits_one_event_and_stops_its_stream<B: Broker>(broker: &B) {
    broker.refuse("poison").await;
    let batch = [
        event(1).aggregate("a"),
        event(2).aggregate("b").topic("poison"),
        event(3).aggregate("c").topic("poison"),
        event(4).aggregate("d"),
    ];
    let receipt = send(&mut broker.publisher(), &stamp(), &batch).await;
    assert_eq!(verdicts(&receipt), "drud");
    assert_eq!(receipt.unavailability(), None);
    assert_eq!(broker.seqs("orders").await, [1, 4]);
}

pub(crate) async fn a_parked_event_does_not_hold_the_position<B: Broker>(broker: &B) {
    broker.refuse("poison").await;
    let mut publisher = broker.publisher();
    send(&mut publisher, &stamp(), &[event(2).topic("poison")]).await;
    let told = contact(&mut publisher, &epoch(2), &[event(2).topic("poison")]).await;
    assert_eq!(told.expect("contact")[0].position, None);
}

pub(crate) async fn an_aggregate_stops_in_every_stream<B: Broker>(broker: &B) {
    broker.refuse("poison").await;
    let batch = [
        event(1).aggregate("b"),
        event(2).aggregate("a").topic("poison"),
        event(3).aggregate("a"),
        event(4).aggregate("a").topic("more"),
    ];
    let receipt = send(&mut broker.publisher(), &stamp(), &batch).await;
    assert_eq!(verdicts(&receipt), "druu");
    assert_eq!(broker.seqs("orders").await, [1]);
    assert_eq!(broker.seqs("more").await, [0; 0]);
}

pub(crate) async fn contact_tells_what_is_stored<B: Broker>(broker: &B) {
    let batch = [event(1), event(2).shard(3), event(3).topic("more")];
    let told = contact(&mut broker.publisher(), &epoch(4), &batch).await.expect("contact");
    let known: Vec<_> = told.iter().map(|told| (told.shard, told.epoch, told.position)).collect();
    assert_eq!(known.len(), 3);
    assert!(known.iter().all(|(_, epoch, position)| *epoch == 0 && position.is_none()));
    send(&mut broker.publisher(), &epoch(5), &batch).await;
    let told = contact(&mut broker.publisher(), &epoch(6), &batch[1..2]).await.expect("contact");
    let position = StoredPosition { generation: 1, tick: 10, mark: 77, seq: 2 };
    assert_eq!((told[0].shard, told[0].epoch), (3, 5));
    assert_eq!(told[0].position, Some(position));
}

pub(crate) async fn contact_is_made_once_per_epoch<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    for (stamp, asked) in [(epoch(1), 1), (epoch(1), 0), (epoch(2), 1), (epoch(2), 0)] {
        let told = contact(&mut publisher, &stamp, &events([1, 2])).await.expect("contact");
        assert_eq!(told.len(), asked);
        publish(&mut publisher, &stamp, &events([1, 2])).await;
    }
    let rewound = Stamp { generation: 2, ..epoch(2) };
    assert_eq!(contact(&mut publisher, &rewound, &events([1])).await.expect("contact").len(), 1);
}

pub(crate) async fn contact_shuts_out_earlier_epochs<B: Broker>(broker: &B) {
    let mut zombie = broker.publisher();
    contact(&mut zombie, &epoch(1), &events([1])).await.expect("contact");
    contact(&mut broker.publisher(), &epoch(2), &events([1])).await.expect("contact");
    let receipt = publish(&mut zombie, &epoch(1), &events([1])).await;
    assert_eq!(receipt.fenced_shards(), [0]);
    assert_eq!(broker.seqs("orders").await, [0; 0]);
}

pub(crate) async fn contact_under_a_lower_epoch_changes_nothing<B: Broker>(broker: &B) {
    let mut owner = broker.publisher();
    send(&mut owner, &epoch(5), &events([1])).await;
    let told = contact(&mut broker.publisher(), &epoch(4), &events([1])).await.expect("contact");
    assert_eq!(told[0].epoch, 5);
    assert_eq!(verdicts(&publish(&mut owner, &epoch(5), &events([2])).await), "d");
    let told = contact(&mut broker.publisher(), &epoch(6), &events([1])).await.expect("contact");
    assert_eq!(told[0].epoch, 5);
}

pub(crate) async fn without_contact_nothing_goes_out<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    let receipt = publish(&mut publisher, &stamp(), &events([1])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert!(receipt.unavailability().is_some());
    for stamp in [epoch(2), Stamp { generation: 2, ..stamp() }] {
        send(&mut publisher, &epoch(1), &events([1])).await;
        let receipt = publish(&mut publisher, &stamp, &events([2])).await;
        assert!(receipt.unavailability().is_some());
    }
    assert_eq!(broker.seqs("orders").await, [1]);
}

pub(crate) async fn a_dropped_call_leaves_a_clean_publisher<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    send(&mut publisher, &epoch(1), &events([1])).await;
    broker.stall().await;
    let batch = events([2, 3]);
    let first = epoch(1);
    let call = publish(&mut publisher, &first, &batch);
    assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
    broker.resume().await;
    let receipt = publish(&mut publisher, &epoch(1), &events([2])).await;
    assert!(receipt.unavailability().is_some(), "its contacts are gone");
    let told = contact(&mut publisher, &epoch(2), &batch).await.expect("contact");
    assert_eq!(told.len(), 1);
    assert_eq!(verdicts(&publish(&mut publisher, &epoch(2), &batch).await), "dd");
    assert_eq!(broker.seqs("orders").await, [1, 2, 3]);
}

pub(crate) async fn an_empty_batch_is_nothing<B: Broker>(broker: &B) {
    let mut publisher = broker.publisher();
    let receipt = send(&mut publisher, &stamp(), &[]).await;
    assert_eq!(receipt.verdicts(), []);
    assert_eq!(receipt.unavailability(), None);
}
