//! The Redis publisher against real servers, and the contract that it shares with the recording
//! publisher.
#![cfg(all(feature = "redis", feature = "testing"))]

mod contract;
mod events;
mod others;
mod outage;
mod plain;
mod server;
mod tls;
mod wire;

mod recording {
    use outbox_diesel::publish::RecordingPublisher;
    use uuid::Uuid;

    use crate::contract::{Broker, contract};

    async fn start() -> RecordingPublisher {
        RecordingPublisher::default()
    }

    contract! { start }

    impl Broker for RecordingPublisher {
        type Publisher = Self;

        fn publisher(&self) -> Self {
            self.clone()
        }

        async fn ids(&self, topic: &str) -> Vec<Uuid> {
            let delivered = self.delivered();
            let here = delivered.iter().filter(|recorded| recorded.message.topic() == topic);
            here.map(|recorded| recorded.message.id()).collect()
        }

        async fn refuse(&self, topic: &str) {
            let topic = topic.to_owned();
            self.reject(move |event| (event.topic() == topic).then(|| "poison".to_owned()));
        }

        async fn stall(&self) {
            self.hang();
        }

        async fn resume(&self) {
            self.come_back();
        }
    }
}

mod redis_streams {
    use outbox_diesel::publish::redis::RedisPublisher;
    use uuid::Uuid;

    use crate::contract::{Broker, contract};
    use crate::server::RedisServer;

    contract! { RedisServer::start }

    impl Broker for RedisServer {
        type Publisher = RedisPublisher;

        fn publisher(&self) -> RedisPublisher {
            RedisPublisher::new(self.client())
        }

        async fn ids(&self, topic: &str) -> Vec<Uuid> {
            let entries = self.entries(topic).await;
            entries.iter().map(|fields| fields["event_id"].parse().expect("a uuid")).collect()
        }

        async fn refuse(&self, topic: &str) {
            let () = self.run(&["SET", topic, "no stream"]).await;
        }

        async fn stall(&self) {
            let () = self.run(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
        }

        async fn resume(&self) {
            let () = self.run(&["CLIENT", "UNPAUSE"]).await;
        }
    }
}
