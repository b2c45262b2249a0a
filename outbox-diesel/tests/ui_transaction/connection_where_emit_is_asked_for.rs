use diesel_async::AsyncPgConnection;
use outbox_diesel::AsyncEmit;
use outbox_diesel::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderPaid(i64);

async fn pay(conn: &mut impl AsyncEmit) {
    let _ = conn.emit(&OrderPaid(7)).await;
}

async fn outside(conn: &mut AsyncPgConnection) {
    pay(conn).await;
}

fn main() {}
