//! A database and a stream of the demo's own, removed at the end.

use anyhow::{Context as _, Result};
use diesel::connection::SimpleConnection as _;
use diesel::{Connection as _, PgConnection};
use outbox_diesel::migrate;
use redis::Commands as _;
use url::Url;
use uuid::Uuid;

use crate::shop;

/// Dropping the value removes both.
pub(crate) struct Scratch {
    server: Url,
    redis: redis::Client,
    name: String,
}

impl Scratch {
    /// Creates the database, with the outbox and the shop's own tables.
    pub(crate) fn create(server: &Url, redis_url: &str) -> Result<Self> {
        let redis = redis::Client::open(redis_url)?;
        let name = format!("outbox_demo_{}", Uuid::now_v7().simple());
        PgConnection::establish(server.as_str())?
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .context("the demo works in a database of its own, which could not be created")?;
        let scratch = Self { server: server.clone(), redis, name };

        let mut conn = PgConnection::establish(&scratch.database_url())?;
        migrate::run(&mut conn)?;
        conn.batch_execute(shop::CREATE_TABLES)?;
        Ok(scratch)
    }

    pub(crate) fn database_url(&self) -> String {
        let mut url = self.server.clone();
        url.set_path(&self.name);
        url.into()
    }

    pub(crate) fn stream_prefix(&self) -> String {
        format!("{}:", self.name)
    }

    /// The publisher's default is one stream per topic.
    pub(crate) fn stream(&self) -> String {
        format!("{}{}", self.stream_prefix(), shop::TOPIC)
    }

    fn remove(&self) -> Result<()> {
        PgConnection::establish(self.server.as_str())?
            .batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name))?;
        let stream = self.stream();
        let fence = format!("outbox:fence:{{{stream}}}");
        Ok(self.redis.get_connection()?.del(&[stream, fence])?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("not all of {} could be removed: {error}", self.name);
        }
    }
}
