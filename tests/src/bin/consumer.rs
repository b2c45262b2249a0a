//! A consumer on its own: `consumer <database url> <redis url> <stream prefix>`. Books transfers, each
//! with its inbox. Ends in order when its standard input does. `HOSTNAME` is its name in the group.

use std::io::Read as _;
use std::time::Duration;

use diesel::sql_types::{BigInt, Uuid};
use diesel_async::AsyncPgConnection;
use diesel_async::RunQueryDsl as _;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use outbox_diesel::consumer::Consumer;
use outbox_diesel::inbox::Inbox;
use outbox_tests::Transfer;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, redis, prefix] = arguments.as_slice() else {
        panic!("consumer <database url> <redis url> <stream prefix>");
    };
    let name = std::env::var("HOSTNAME").expect("a name");
    let cancelled = CancellationToken::new();
    let at_end = cancelled.clone();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        at_end.cancel();
    });
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(database);
    let pool = bb8::Pool::builder().max_size(8).build_unchecked(manager);
    let client = redis::Client::open(redis.as_str()).expect("a Redis URL");
    Consumer::builder(client, "billing", name)
        .streams([format!("{prefix}account")])
        .concurrency(8)
        .block(Duration::from_millis(100))
        .retry_base(Duration::from_millis(20))
        .inbox(pool, Inbox::new("billing").expect("a good name"))
        .on::<Transfer>(async |transfer, ctx| {
            let id = ctx.delivery().event_id();
            for (account, cents) in transfer.changes() {
                diesel::sql_query("UPDATE bills SET cents = cents + $1 WHERE account = $2")
                    .bind::<BigInt, _>(cents)
                    .bind::<BigInt, _>(account)
                    .execute(ctx)
                    .await?;
            }
            diesel::sql_query("INSERT INTO effects (event_id, account) VALUES ($1, $2)")
                .bind::<Uuid, _>(id)
                .bind::<BigInt, _>(transfer.from)
                .execute(ctx)
                .await?;
            Ok(())
        })
        .run(cancelled)
        .await
        .expect("settings that fit together");
}
