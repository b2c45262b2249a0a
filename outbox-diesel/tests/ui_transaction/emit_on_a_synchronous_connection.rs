use diesel::PgConnection;
use outbox_diesel::{Emit as _, EmitError, OutboxEvent};
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderPaid(i64);

fn pay(conn: &mut PgConnection) -> Result<(), EmitError> {
    conn.emit(&OrderPaid(7))?;
    Ok(())
}

fn main() {}
