//! Redis: where it is, and how streams are named.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use outbox_diesel::publish::redis::{RedisPublisher, StreamNaming, Trim};
use redis::{Client, IntoConnectionInfo as _, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::failure::Failure;
use crate::times::parse_duration;

/// Where streams are, and what they are called.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Streams {
    /// What stream names begin with.
    #[arg(
        long = "stream-prefix",
        env = "OUTBOX_STREAM_PREFIX",
        default_value = "",
        value_name = "TEXT"
    )]
    pub(crate) prefix: String,
    /// One stream per `topic`, `single:NAME` for all, or `shards:N` per topic.
    #[arg(long = "streams", env = "OUTBOX_STREAMS", default_value = "topic", value_parser = parse_naming, value_name = "HOW")]
    pub(crate) naming: StreamNaming,
    /// A file of PEM certificates of authorities to trust; else the system's. For rediss:// URLs.
    #[arg(long, env = "OUTBOX_REDIS_CA", value_name = "FILE")]
    pub(crate) redis_ca: Option<PathBuf>,
}

/// How to publish.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Publishing {
    /// For a Redis that runs no scripts: entries are written without a fence. Delivery is at-least-once
    /// then: after a crash or an outage entries may come again.
    #[arg(long, env = "OUTBOX_WITHOUT_SCRIPTS", value_parser = BoolishValueParser::new())]
    without_scripts: bool,
    /// Trim streams to about so many entries. LOSES what consumers have not read.
    #[arg(long, env = "OUTBOX_TRIM_LENGTH", value_name = "ENTRIES", conflicts_with = "trim_age")]
    trim_length: Option<u64>,
    /// Trim entries of about this age. LOSES what consumers have not read.
    #[arg(long, env = "OUTBOX_TRIM_AGE", value_parser = parse_duration, value_name = "DURATION")]
    trim_age: Option<Duration>,
    /// How long to wait for an answer of Redis.
    #[arg(long, env = "OUTBOX_RESPONSE_TIMEOUT", default_value = "4s", value_parser = parse_duration, value_name = "DURATION")]
    response_timeout: Duration,
    /// How long connecting to Redis may take.
    #[arg(long, env = "OUTBOX_CONNECT_TIMEOUT", default_value = "2s", value_parser = parse_duration, value_name = "DURATION")]
    connect_timeout: Duration,
}

fn parse_naming(text: &str) -> Result<StreamNaming, String> {
    match text.split_once(':') {
        None if text == "topic" => Ok(StreamNaming::PerTopic),
        Some(("single", name)) if !name.is_empty() => Ok(StreamNaming::Single(name.to_owned())),
        Some(("shards", number)) => number
            .parse()
            .ok()
            .filter(|per_topic| (1..=16).contains(per_topic))
            .map(|per_topic| StreamNaming::PerShard { per_topic })
            .ok_or_else(|| "write shards:1 to shards:16".to_owned()),
        _ => Err("write topic, single:NAME or shards:N".to_owned()),
    }
}

impl Streams {
    /// The server at the URL; nothing is connected yet.
    pub(crate) fn client(&self, url: &str) -> Result<Client, Failure> {
        // The error may quote the URL, and with it the password.
        let unusable = |_| {
            Failure::usage("the redis URL cannot be used").advice(
                "write redis://user:password@host:port/, or rediss:// for TLS, in REDIS_URL",
            )
        };
        let Some(file) = &self.redis_ca else { return Client::open(url).map_err(unusable) };
        let pem = std::fs::read(file)
            .map_err(|error| Failure::usage(format!("--redis-ca {}: {error}", file.display())))?;
        if !CertificateDer::pem_slice_iter(&pem).any(|certificate| certificate.is_ok()) {
            let file = file.display();
            return Err(Failure::usage(format!("--redis-ca {file} holds no certificate"))
                .advice("name a file with PEM certificates of authorities"));
        }
        let tls = TlsCertificates { client_tls: None, root_cert: Some(pem) };
        Client::build_with_tls(url, tls).map_err(unusable)
    }

    /// A publisher to the server at the URL.
    pub(crate) fn publisher(&self, url: &str, how: &Publishing) -> Result<RedisPublisher, Failure> {
        let mut publisher = RedisPublisher::new(self.client(url)?)
            .stream_prefix(self.prefix.clone())
            .streams(self.naming.clone())
            .response_timeout(how.response_timeout)
            .connect_timeout(how.connect_timeout);
        if how.without_scripts {
            publisher = publisher.without_scripts();
        }
        if let Some(length) = how.trim_length {
            publisher = publisher.trim(Trim::MaxLen(length));
        }
        if let Some(age) = how.trim_age {
            publisher = publisher.trim(Trim::MaxAge(age));
        }
        Ok(publisher)
    }
}

/// The server without credentials.
pub(crate) fn server(url: &str) -> String {
    url.into_connection_info()
        .map_or_else(|_| "Redis".to_owned(), |info| format!("Redis at {}", info.addr()))
}

/// rustls wants to be told which provider it uses; the whole program uses this one.
pub(crate) fn choose_crypto_provider() {
    // Failing means that it was chosen before.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_named_in_words() {
        assert_eq!(parse_naming("topic"), Ok(StreamNaming::PerTopic));
        assert_eq!(parse_naming("single:all"), Ok(StreamNaming::Single("all".to_owned())));
        assert_eq!(parse_naming("shards:4"), Ok(StreamNaming::PerShard { per_topic: 4 }));
        for wrong in ["", "single:", "shards:0", "shards:17", "topics"] {
            assert!(parse_naming(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_server_is_named_without_credentials() {
        let told = server("redis://me:s3cret@cache.example:6380/1");
        assert!(told.contains("cache.example:6380") && !told.contains("s3cret"), "{told}");
        assert_eq!(server("s3cret"), "Redis");
    }
}
