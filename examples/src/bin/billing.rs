//! A service that bills orders, each once. It has a database of its own, with an inbox in it.
//!
//! ```sh
//! DATABASE_URL=… REDIS_URL=… cargo run --package outbox-examples --bin billing
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result};
use diesel::ExpressionMethods as _;
use diesel::result::QueryResult;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::bb8::Pool;
use diesel_async::{AsyncPgConnection, RunQueryDsl as _};
use outbox_diesel::consumer::{Consumer, Unhandled};
use outbox_diesel::inbox::{self, Inbox};
use outbox_diesel::migrate;
use outbox_examples::OrderPlaced;

use self::schema::bills;

mod schema {
    diesel::table! {
        bills (customer) {
            customer -> Text,
            orders -> BigInt,
            cents -> BigInt,
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(variable("DATABASE_URL")?);
    let pool = Pool::builder().max_size(8).build(manager).await?;
    let mut conn = pool.get().await?;
    migrate::run_async(&mut *conn).await?;
    diesel::sql_query(
        "CREATE TABLE IF NOT EXISTS bills (customer text PRIMARY KEY, orders bigint NOT NULL, cents bigint NOT NULL)",
    )
    .execute(&mut conn)
    .await?;
    drop(conn);

    let prefix = std::env::var("STREAM_PREFIX").unwrap_or_default();
    let redis = redis::Client::open(variable("REDIS_URL")?)?;
    // The same name after a restart: then it goes on at once with what it had in hand.
    let mut consumer = Consumer::builder(redis, "billing", "billing-1")
        .streams([format!("{prefix}orders")])
        // Other events of the stream are other people's business; each type is logged once.
        .unknown(Unhandled::Skip)
        .inbox(pool.clone(), Inbox::new("billing")?)
        .on::<OrderPlaced>(async |order, ctx| {
            // In the transaction that also records that this event was handled.
            diesel::insert_into(bills::table)
                .values((
                    bills::customer.eq(&order.customer),
                    bills::orders.eq(1),
                    bills::cents.eq(order.cents),
                ))
                .on_conflict(bills::customer)
                .do_update()
                .set((
                    bills::orders.eq(bills::orders + 1),
                    bills::cents.eq(bills::cents + order.cents),
                ))
                .execute(ctx)
                .await?;
            Ok(())
        })
        .spawn()?;
    println!("bills orders");

    let mut upkeep = tokio::time::interval(Duration::from_secs(24 * 60 * 60));
    loop {
        tokio::select! {
            _ = upkeep.tick() => {
                if let Err(error) = keep_up(&pool).await {
                    eprintln!("the inbox was not looked after, and grows until it is: {error:#}");
                }
            }
            ended = consumer.stopped() => return Ok(ended?),
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    // Finishes what is being handled and leaves the rest to others at once.
    consumer.shutdown().await?;
    Ok(())
}

/// Once a day: partitions ahead, and those of long ago dropped.
async fn keep_up(pool: &Pool<AsyncPgConnection>) -> Result<()> {
    let mut conn = pool.get().await?;
    let kept: QueryResult<()> = async {
        inbox::keep_partitions_ahead_async(&mut *conn).await?;
        while inbox::drop_partitions_async(&mut *conn, inbox::RETENTION).await? > 0 {}
        Ok(())
    }
    .await;
    Ok(kept?)
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("the variable {name} is not set"))
}
