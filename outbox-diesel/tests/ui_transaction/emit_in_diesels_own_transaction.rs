use diesel_async::{AsyncConnection, AsyncPgConnection};
use outbox_diesel::{AsyncEmit, EmitError};
use outbox_diesel::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderPaid(i64);

async fn pay(conn: &mut AsyncPgConnection) -> Result<(), EmitError> {
    conn.transaction::<_, EmitError, _>(async |conn| {
        conn.emit(&OrderPaid(7)).await?;
        Ok(())
    })
    .await
}

fn main() {}
