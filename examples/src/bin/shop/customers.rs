//! Customers: they order over HTTP, and ask again when they get no answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

/// How many order at a time.
const AT_ONCE: u64 = 8;
/// How long to go on asking for one order.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Order {
    customer: String,
    cents: i64,
}

pub(crate) struct Customers {
    client: reqwest::Client,
    shop: String,
    orders: u64,
    next: AtomicU64,
    repeated: AtomicU64,
}

impl Customers {
    pub(crate) fn new(address: &str, orders: u64) -> Result<Self> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
        let (next, repeated) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { client, shop: format!("http://{address}/orders"), orders, next, repeated })
    }

    /// How many requests had no answer, or not the right one.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    pub(crate) fn start(self: Arc<Self>) -> JoinHandle<Result<()>> {
        tokio::spawn(async move {
            let mut customers = JoinSet::new();
            for _ in 0..AT_ONCE {
                customers.spawn(self.clone().order());
            }
            while let Some(ended) = customers.join_next().await {
                ended??;
            }
            Ok(())
        })
    }

    async fn order(self: Arc<Self>) -> Result<()> {
        loop {
            let nth = self.next.fetch_add(1, Ordering::Relaxed);
            if nth >= self.orders {
                return Ok(());
            }
            let order = Order {
                customer: format!("customer {}", nth % 20),
                cents: fastrand::i64(100..10_000),
            };
            let url = format!("{}/{}", self.shop, Uuid::now_v7());
            let answered = async {
                while !self.ask(&url, &order).await {
                    self.repeated.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::time::timeout(PATIENCE, answered).await.context("the shop does not answer")?;
        }
    }

    async fn ask(&self, url: &str, order: &Order) -> bool {
        let answer = self.client.put(url).json(order).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }
}
