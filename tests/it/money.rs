//! Money: transfers go from a ledger to bills, while everything on the way is killed.

use std::time::{Duration, Instant};

use diesel::prelude::*;
use diesel::result::Error;
use outbox_diesel::Emit as _;
use outbox_tests::{RelayProcess, TestDatabase, TestRedis, TestStream, Transfer, eventually};
use xtask::redis::{Options, Persistence, Redis};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");
const CONSUMER: &str = env!("CARGO_BIN_EXE_consumer");
const ACCOUNTS: i64 = 50;
const WRITERS: usize = 4;
/// For progress between two kills, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const TABLES: &str = "\
CREATE TABLE ledger (account bigint PRIMARY KEY, cents bigint NOT NULL);
INSERT INTO ledger SELECT n, 1000 FROM generate_series(1, 50) n;
CREATE TABLE bills AS TABLE ledger;
ALTER TABLE bills ADD PRIMARY KEY (account);
CREATE TABLE effects (nth bigserial, event_id uuid NOT NULL, account bigint NOT NULL);";

#[tokio::test(flavor = "multi_thread")]
async fn balances_are_exact_though_relay_consumer_and_redis_are_killed_again_and_again() {
    transfer(2_000).await;
}

/// `cargo xtask test -- -p outbox-tests --test it balances_of_twenty -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn balances_of_twenty_thousand_transfers_are_exact() {
    transfer(20_000).await;
}

/// One transaction: both balances, and the event that tells of it. Every tenth is rolled back.
fn pay(conn: &mut PgConnection, nth: usize) {
    let (from, to) = loop {
        let pair = (fastrand::i64(1..=ACCOUNTS), fastrand::i64(1..=ACCOUNTS));
        if pair.0 != pair.1 {
            break pair;
        }
    };
    let transfer = Transfer { from, to, cents: fastrand::i64(1..500) };
    let paid = conn.transaction(|conn| {
        for (account, cents) in transfer.changes() {
            diesel::sql_query("UPDATE ledger SET cents = cents + $1 WHERE account = $2")
                .bind::<diesel::sql_types::BigInt, _>(cents)
                .bind::<diesel::sql_types::BigInt, _>(account)
                .execute(conn)?;
        }
        conn.emit(&transfer)?;
        if nth.is_multiple_of(10) { Err(Error::RollbackTransaction) } else { Ok(()) }
    });
    assert!(matches!(paid, Ok(()) | Err(Error::RollbackTransaction)), "{paid:?}");
}

async fn transfer(transfers: usize) {
    let mut server = Redis::start(Options::default().persistence(Persistence::Always))
        .expect("a private Redis starts");
    let (database, redis) = (TestDatabase::new(), TestRedis::on(&server.url()));
    database.sql(TABLES);
    let began = Instant::now();
    let start = |program, name| RelayProcess::start(program, name, &database, &redis, &[]);
    let mut relay = start(RELAY, "relay");
    let mut billing = start(CONSUMER, "billing-1");
    // Every tenth is rolled back.
    let tries = transfers * 10 / 9;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let mut conn = database.sync();
            let own = (writer..tries).step_by(WRITERS);
            std::thread::spawn(move || own.for_each(|nth| pay(&mut conn, nth)))
        })
        .collect();

    let effects = || database.value::<i64>("SELECT count(*) FROM effects");
    let mut kills = [0; 3];
    let step = i64::try_from(transfers / 30).expect("a count");
    let last = i64::try_from(transfers * 9 / 10).expect("a count");
    let mut done = 0;
    while done < last {
        let next = (done + fastrand::i64(1..=2 * step)).min(last);
        done = eventually(PATIENCE, async || Some(effects()).filter(|done| *done >= next)).await;
        let victim = fastrand::usize(0..3);
        kills[victim] += 1;
        match victim {
            0 => {
                relay.kill();
                relay = start(RELAY, "relay");
            }
            1 => {
                billing.kill();
                billing = start(CONSUMER, "billing-1");
            }
            _ => server.restart().expect("it is killed and starts again"),
        }
    }
    for writer in writers {
        writer.join().expect("every transfer succeeds");
    }
    let committed: i64 = database.value("SELECT count(*) FROM outbox.events");
    let all =
        eventually(PATIENCE, async || Some(effects()).filter(|done| *done >= committed)).await;
    let stream = TestStream::new(&redis.url(), format!("{}account", redis.prefix())).await;
    let settled = async || (stream.pending("billing").await == 0).then_some(());
    eventually(PATIENCE, settled).await;
    let took = began.elapsed();
    relay.stop();
    billing.stop();

    let [relays, consumers, redises] = kills;
    println!(
        "money: {committed} transfers, {all} effects in {took:.1?}; killed: relay {relays}, consumer {consumers}, redis {redises}"
    );
    assert_eq!(effects(), committed, "each transfer has its effect once");
    for (what, query) in [
        (
            "a transfer without its effect, or with two",
            "SELECT count(*) FROM outbox.events v LEFT JOIN effects f ON f.event_id = v.id GROUP BY v.id HAVING count(f.event_id) <> 1",
        ),
        (
            "an effect of what was never committed",
            "SELECT 1 FROM effects f LEFT JOIN outbox.events v ON v.id = f.event_id WHERE v.id IS NULL",
        ),
        (
            "a balance that differs",
            "SELECT 1 FROM ledger l FULL JOIN bills b USING (account) WHERE l.cents IS DISTINCT FROM b.cents",
        ),
        (
            "an effect out of order",
            "SELECT 1 FROM (SELECT v.seq, lag(v.seq) OVER (PARTITION BY f.account ORDER BY f.nth) AS before FROM effects f JOIN outbox.events v ON v.id = f.event_id) o WHERE o.before > o.seq",
        ),
        ("money made or lost", "SELECT 1 FROM bills HAVING sum(cents) <> 50 * 1000"),
        ("a parked event", "SELECT 1 FROM outbox.parked"),
    ] {
        let found: i64 = database.value(&format!("SELECT count(*) FROM ({query}) found"));
        assert_eq!(found, 0, "{what}");
    }
    assert_eq!(stream.dead().await.len(), 0, "no dead letters");
}
