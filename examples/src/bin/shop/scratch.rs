//! Databases and a stream of the demo's own, removed at the end; and what is in them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use diesel::connection::SimpleConnection as _;
use diesel::sql_types::BigInt;
use diesel::{Connection as _, PgConnection, QueryableByName, RunQueryDsl as _};
use redis::Commands as _;
use url::Url;
use uuid::Uuid;

/// Dropping the value removes all.
pub(crate) struct Scratch {
    server: Url,
    redis: redis::Client,
    name: String,
}

/// What both services have written down.
pub(crate) struct Books {
    pub(crate) ordered: i64,
    pub(crate) billed: i64,
    pub(crate) lost: i64,
    pub(crate) twice: i64,
    pub(crate) cents_ordered: i64,
    pub(crate) cents_billed: i64,
}

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = diesel::sql_types::Text)]
    customer: String,
    #[diesel(sql_type = BigInt)]
    orders: i64,
    #[diesel(sql_type = BigInt)]
    cents: i64,
}

const ORDERED: &str = "\
SELECT customer, count(*) AS orders, sum(cents)::bigint AS cents FROM orders GROUP BY customer ORDER BY customer";
const BILLED: &str = "SELECT customer, orders, cents FROM bills ORDER BY customer";

impl Scratch {
    pub(crate) fn create(server: &Url, redis_url: &str) -> Result<Self> {
        let redis = redis::Client::open(redis_url)?;
        let name = format!("outbox_shop_{}", Uuid::now_v7().simple());
        let scratch = Self { server: server.clone(), redis, name };
        let mut conn = PgConnection::establish(server.as_str())?;
        for database in scratch.databases() {
            conn.batch_execute(&format!("CREATE DATABASE {database} TEMPLATE template0"))
                .context("the demo works in databases of its own, which could not be created")?;
        }
        // Asked for before the services have made it.
        let mut conn = PgConnection::establish(&scratch.billing_url())?;
        conn.batch_execute(
            "CREATE TABLE bills (customer text PRIMARY KEY, orders bigint NOT NULL, cents bigint NOT NULL)",
        )?;
        Ok(scratch)
    }

    fn databases(&self) -> [String; 2] {
        [format!("{}_orders", self.name), format!("{}_billing", self.name)]
    }

    pub(crate) fn orders_url(&self) -> String {
        self.url(0)
    }

    pub(crate) fn billing_url(&self) -> String {
        self.url(1)
    }

    fn url(&self, database: usize) -> String {
        let mut url = self.server.clone();
        url.set_path(&self.databases()[database]);
        url.into()
    }

    pub(crate) fn stream_prefix(&self) -> String {
        format!("{}:", self.name)
    }

    fn stream(&self) -> String {
        format!("{}orders", self.stream_prefix())
    }

    /// Waits until at least so many orders were billed.
    pub(crate) async fn billed(&self, orders: u64, patience: Duration) -> Result<()> {
        let wanted = i64::try_from(orders)?;
        let (mut most, mut moved) = (-1, Instant::now());
        loop {
            let billed: i64 = self.read(1, BILLED)?.iter().map(|bill| bill.orders).sum();
            if billed >= wanted {
                return Ok(());
            }
            if billed > most {
                (most, moved) = (billed, Instant::now());
            } else if moved.elapsed() > patience {
                bail!("{billed} of {wanted} orders were billed, and for {patience:?} no other");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the consumer has acknowledged all that it was given, and was given all.
    pub(crate) async fn nothing_pending(&self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            let mut conn = self.redis.get_connection()?;
            let groups: Vec<std::collections::HashMap<String, redis::Value>> =
                redis::cmd("XINFO").arg("GROUPS").arg(self.stream()).query(&mut conn)?;
            let of = |name: &str| -> Option<i64> {
                let value = groups.first()?.get(name)?.clone();
                redis::from_redis_value(value).ok()
            };
            let length: i64 = redis::cmd("XLEN").arg(self.stream()).query(&mut conn)?;
            // Redis 6.2 and Valkey do not all tell how many were read; then what is pending must do.
            let read = of("entries-read").unwrap_or(length);
            if of("pending") == Some(0) && read >= length {
                return Ok(());
            }
            if began.elapsed() > patience {
                bail!("entries are still pending after {patience:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Compares customer by customer.
    pub(crate) fn books(&self) -> Result<Books> {
        let (ordered, billed) = (self.read(0, ORDERED)?, self.read(1, BILLED)?);
        let (mut lost, mut twice) = (0, 0);
        for order in &ordered {
            let bill = billed.iter().find(|bill| bill.customer == order.customer);
            let orders = bill.map_or(0, |bill| bill.orders);
            lost += (order.orders - orders).max(0);
            twice += (orders - order.orders).max(0);
        }
        for bill in &billed {
            if !ordered.iter().any(|order| order.customer == bill.customer) {
                twice += bill.orders;
            }
        }
        let sum = |rows: &[Row], of: fn(&Row) -> i64| rows.iter().map(of).sum();
        Ok(Books {
            ordered: sum(&ordered, |row| row.orders),
            billed: sum(&billed, |row| row.orders),
            lost,
            twice,
            cents_ordered: sum(&ordered, |row| row.cents),
            cents_billed: sum(&billed, |row| row.cents),
        })
    }

    fn read(&self, database: usize, query: &str) -> Result<Vec<Row>> {
        let mut conn = PgConnection::establish(&self.url(database))?;
        Ok(diesel::sql_query(query).load(&mut conn)?)
    }

    fn remove(&self) -> Result<()> {
        let mut conn = PgConnection::establish(self.server.as_str())?;
        for database in self.databases() {
            conn.batch_execute(&format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"))?;
        }
        let stream = self.stream();
        let keys = [format!("outbox:fence:{{{stream}}}"), format!("{stream}:dead"), stream];
        Ok(self.redis.get_connection()?.del(&keys[..])?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("not all of {} could be removed: {error}", self.name);
        }
    }
}
