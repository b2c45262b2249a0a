//! A publisher of one's own: each event is posted to a URL.
//!
//! ```sh
//! DATABASE_URL=… cargo run --package outbox-examples --bin webhook
//! ```
//!
//! Posts one event to a receiver that it starts itself, and ends.

use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::bb8::Pool;
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use outbox_diesel::publish::{OwnedMessage, PublishError, publisher_fn};
use outbox_diesel::{AsyncEmit as _, EmitError, Relay, migrate};
use outbox_examples::OrderPlaced;
use tokio::sync::mpsc;
use uuid::Uuid;

/// What a status means for the event, for the relay and for those behind it.
async fn deliver(
    client: &reqwest::Client,
    url: &str,
    event: OwnedMessage,
) -> Result<(), PublishError> {
    let response = client
        .post(url)
        .header("content-type", "application/json")
        // A post may be repeated: its receiver tells by the id.
        .header("idempotency-key", event.id().to_string())
        .header("event-type", event.event_type())
        .body(event.payload().to_owned())
        .send()
        // Nobody there, or no answer: nothing is wrong with the event.
        .await?;
    match response.status().as_u16() {
        200..=299 => Ok(()),
        // Overloaded, or not now: everything waits, and no try is counted.
        status @ (408 | 429 | 500..) => {
            Err(PublishError::Unavailable(format!("{url} answers {status}")))
        }
        // This event is not wanted: it is tried again, then a dead letter; others go on.
        status => Err(PublishError::Rejected(format!("{url} answers {status}"))),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let (url, mut received) = receiver().await?;
    let manager =
        AsyncDieselConnectionManager::<AsyncPgConnection>::new(std::env::var("DATABASE_URL")?);
    let pool = Pool::builder().build(manager).await?;
    migrate::run_async(&mut *pool.get().await?).await?;

    // Below the relay's own limit for a publish, so that the reason is the better one.
    let client = reqwest::Client::builder().timeout(Duration::from_secs(3)).build()?;
    let publisher = publisher_fn(move |event: OwnedMessage| {
        let (client, url) = (client.clone(), url.clone());
        async move { deliver(&client, &url, event).await }
    });
    let relay = Relay::builder(pool.clone()).publisher(publisher).spawn()?;

    let event = OrderPlaced { id: Uuid::now_v7(), customer: "Ada".to_owned(), cents: 1999 };
    let mut conn = pool.get().await?;
    let emitted = conn.transaction::<_, EmitError, _>(async |conn| conn.emit(&event).await).await?;
    let arrived = async {
        while let Some((id, body)) = received.recv().await {
            println!("received {id}: {body}");
            if id == emitted.id().to_string() {
                return Ok(());
            }
        }
        anyhow::bail!("the receiver has ended")
    };
    tokio::time::timeout(Duration::from_secs(60), arrived).await.context("nothing came")??;
    relay.shutdown().await;
    Ok(())
}

/// The other side: tells the id and the body of each post.
async fn receiver() -> Result<(String, mpsc::UnboundedReceiver<(String, String)>)> {
    let (send, receive) = mpsc::unbounded_channel();
    let app = Router::new().route(
        "/events",
        post(async move |headers: HeaderMap, body: String| {
            let id = headers.get("idempotency-key").and_then(|id| id.to_str().ok());
            match id.map(|id| send.send((id.to_owned(), body))) {
                Some(Ok(())) => StatusCode::NO_CONTENT,
                _ => StatusCode::BAD_REQUEST,
            }
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/events", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((url, receive))
}
