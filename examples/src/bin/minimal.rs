//! The least that emits: diesel's synchronous connection, one transaction, one event.
//!
//! ```sh
//! DATABASE_URL=… cargo run --package outbox-examples --bin minimal
//! ```
//!
//! A relay, in another process perhaps, carries it on.

use diesel::prelude::*;
use outbox_diesel::{Emit as _, OutboxEvent, migrate};

use self::schema::customers;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "customer")]
struct CustomerRenamed {
    #[outbox(aggregate_id)]
    id: i64,
    name: String,
}

mod schema {
    diesel::table! {
        customers (id) {
            id -> BigInt,
            name -> Text,
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut conn = PgConnection::establish(&std::env::var("DATABASE_URL")?)?;
    migrate::run(&mut conn)?;
    diesel::sql_query(
        "CREATE TABLE IF NOT EXISTS customers (id bigint PRIMARY KEY, name text NOT NULL)",
    )
    .execute(&mut conn)?;

    let event = CustomerRenamed { id: 7, name: "Ada".to_owned() };
    let emitted = conn.transaction(|conn| {
        // The write locks the customer; events emitted behind it are in order.
        diesel::insert_into(customers::table)
            .values((customers::id.eq(event.id), customers::name.eq(&event.name)))
            .on_conflict(customers::id)
            .do_update()
            .set(customers::name.eq(&event.name))
            .execute(conn)?;
        conn.emit(&event)
    })?;
    println!("committed with event {}", emitted.id());
    Ok(())
}
