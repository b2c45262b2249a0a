use diesel::connection::LoadConnection;
use diesel::pg::Pg;
use outbox_diesel::{Emit, EmitError};
use outbox_diesel::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderPaid(i64);

fn pay(conn: &mut impl LoadConnection<Backend = Pg>) -> Result<(), EmitError> {
    conn.emit(&OrderPaid(7))?;
    Ok(())
}

fn main() {}
