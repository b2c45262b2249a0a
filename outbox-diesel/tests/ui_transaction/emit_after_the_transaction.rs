use diesel_async::AsyncPgConnection;
use outbox_diesel::{AsyncOutboxTransaction, EmitError};
use outbox_diesel::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderPaid(i64);

async fn pay(conn: &mut AsyncPgConnection) -> Result<(), EmitError> {
    let mut kept = None;
    conn.outbox_transaction::<_, EmitError, _>(async |tx| {
        kept = Some(tx);
        Ok(())
    })
    .await?;
    kept.unwrap().emit(&OrderPaid(7)).await?;
    Ok(())
}

fn main() {}
