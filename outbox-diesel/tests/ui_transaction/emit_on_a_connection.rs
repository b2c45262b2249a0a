use diesel_async::AsyncPgConnection;
use outbox_diesel::{AsyncEmit, EmitError};
use outbox_diesel::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderPaid(i64);

async fn pay(conn: &mut AsyncPgConnection) -> Result<(), EmitError> {
    conn.emit(&OrderPaid(7)).await?;
    Ok(())
}

fn main() {}
