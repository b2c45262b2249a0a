//! A web service that takes orders and tells the world of them. Its relay is embedded.
//!
//! ```sh
//! DATABASE_URL=… REDIS_URL=… LISTEN=127.0.0.1:3000 cargo run --package outbox-examples --bin orders
//! curl -X PUT -H 'content-type: application/json' -d '{"customer":"Ada","cents":1999}' \
//!     http://127.0.0.1:3000/orders/01a22cb9-f099-75c8-8b5b-92ae72d4ef9f
//! ```

use anyhow::{Context as _, Result};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use diesel::ExpressionMethods as _;
use diesel::result::QueryResult;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::bb8::Pool;
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::{AsyncEmit as _, Relay, migrate};
use outbox_examples::OrderPlaced;
use serde::Deserialize;
use uuid::Uuid;

use self::schema::orders;

mod schema {
    diesel::table! {
        orders (id) {
            id -> Uuid,
            customer -> Text,
            cents -> BigInt,
        }
    }
}

#[derive(Deserialize)]
struct NewOrder {
    customer: String,
    cents: i64,
}

/// The client chooses the id: whoever got no answer asks again, and has ordered once.
async fn place_order(
    State(pool): State<Pool<AsyncPgConnection>>,
    Path(id): Path<Uuid>,
    Json(order): Json<NewOrder>,
) -> Result<StatusCode, (StatusCode, String)> {
    let mut conn = pool.get().await.map_err(unavailable)?;
    let event = OrderPlaced { id, customer: order.customer, cents: order.cents };
    insert_and_emit(&mut conn, &event).await.map_err(unavailable)
}

/// The business code: one transaction, and no broker in sight.
async fn insert_and_emit(
    conn: &mut AsyncPgConnection,
    event: &OrderPlaced,
) -> QueryResult<StatusCode> {
    conn.transaction(async |conn| {
        let row = (
            orders::id.eq(event.id),
            orders::customer.eq(&event.customer),
            orders::cents.eq(event.cents),
        );
        let new = diesel::insert_into(orders::table)
            .values(row)
            .on_conflict_do_nothing()
            .execute(conn)
            .await?;
        if new == 0 {
            return Ok(StatusCode::OK);
        }
        conn.emit(event).await?;
        Ok(StatusCode::CREATED)
    })
    .await
}

fn unavailable(error: impl std::fmt::Display) -> (StatusCode, String) {
    eprintln!("an order failed: {error}");
    (StatusCode::SERVICE_UNAVAILABLE, "try again".to_owned())
}

#[tokio::main]
async fn main() -> Result<()> {
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(variable("DATABASE_URL")?);
    let pool = Pool::builder().max_size(8).build(manager).await?;
    let mut conn = pool.get().await?;
    // Safe when many instances start at once.
    migrate::run_async(&mut *conn).await?;
    diesel::sql_query(
        "CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL)",
    )
    .execute(&mut conn)
    .await?;
    drop(conn);

    // In every instance: they share the work.
    let publisher = RedisPublisher::connect_lazily(variable("REDIS_URL")?)?
        .stream_prefix(std::env::var("STREAM_PREFIX").unwrap_or_default());
    let relay = Relay::builder(pool.clone()).publisher(publisher).spawn()?;

    let app = Router::new()
        .route("/orders/{id}", put(place_order))
        .route("/health", get(async || StatusCode::NO_CONTENT))
        .with_state(pool);
    let listener = tokio::net::TcpListener::bind(variable("LISTEN")?).await?;
    println!("takes orders at http://{}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(interrupted()).await?;
    // After the last request, so that its event goes out at once and not after a lease.
    relay.shutdown().await;
    Ok(())
}

async fn interrupted() {
    // Without a handler for it there is nothing to wait for: the process just ends.
    tokio::signal::ctrl_c().await.ok();
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("the variable {name} is not set"))
}
