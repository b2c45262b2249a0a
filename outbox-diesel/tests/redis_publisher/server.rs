//! A Redis server of one's own.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

/// Runs until it is dropped. Nothing of it outlives the test.
pub(crate) struct RedisServer {
    process: Child,
    pub(crate) port: u16,
    password: Option<&'static str>,
    _directory: TempDir,
}

impl RedisServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Takes what `redis-server` takes on its command line.
    pub(crate) async fn start_with(arguments: &[&str]) -> Self {
        Self::launch(arguments, None).await
    }

    pub(crate) async fn start_with_password(password: &'static str) -> Self {
        Self::launch(&["--requirepass", password], Some(password)).await
    }

    /// A cluster of one node, which has all slots.
    pub(crate) async fn start_cluster() -> Self {
        let server = Self::start_with(&["--cluster-enabled", "yes"]).await;
        let mut assign = redis::cmd("CLUSTER");
        // ADDSLOTSRANGE is not known before 7.
        assign.arg("ADDSLOTS").arg((0..16_384).collect::<Vec<u16>>());
        let () = assign.query_async(&mut server.connection().await).await.expect("all are free");
        while !server.run::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server
    }

    /// Whether the program was built with TLS. Some packages are not.
    pub(crate) fn knows_tls() -> bool {
        // One that was misses the certificate. Either ends at once.
        let told = Command::new(program())
            .args(["--port", "0", "--tls-port", &free_port().to_string()])
            .args(["--tls-cert-file", "/nowhere/cert", "--tls-key-file", "/nowhere/key"])
            .args(["--tls-ca-cert-file", "/nowhere/ca"])
            .output()
            .expect("the program starts");
        let told = String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned();
        !["Bad directive", "Failed finding TLS support"].iter().any(|said| told.contains(said))
    }

    async fn launch(arguments: &[&str], password: Option<&'static str>) -> Self {
        let program = program();
        // Somebody else may take the port between our asking for it and the server's: try another.
        for _ in 0..10 {
            let port = free_port();
            let directory = TempDir::new().expect("a directory");
            let process = Command::new(&program)
                .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .args(["--port", &port.to_string(), "--dir"])
                .arg(directory.path())
                .args(arguments)
                .stdout(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("{program}: {error}; set REDIS_SERVER"));
            let mut server = Self { process, port, password, _directory: directory };
            if server.answers().await {
                return server;
            }
        }
        panic!("{program} does not start with {arguments:?}")
    }

    async fn answers(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if self.process.try_wait().expect("the server's state").is_some() {
                return false;
            }
            if let Ok(mut connection) = self.client().get_multiplexed_async_connection().await {
                let pong: Result<String, _> = redis::cmd("PING").query_async(&mut connection).await;
                if pong.is_ok() {
                    return true;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    pub(crate) fn url(&self) -> String {
        let login = self.password.map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{login}127.0.0.1:{}/", self.port)
    }

    pub(crate) fn client(&self) -> redis::Client {
        redis::Client::open(self.url()).expect("a valid url")
    }

    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        // On a busy machine the default of half a second is too short.
        let patience = Some(Duration::from_secs(30));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(patience)
            .set_response_timeout(patience);
        let client = self.client();
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        connection.await.expect("the server answers")
    }

    /// The fields of each entry of a stream.
    pub(crate) async fn entries(&self, stream: &str) -> Vec<HashMap<String, String>> {
        let entries: Vec<(String, HashMap<String, String>)> =
            self.run(&["XRANGE", stream, "-", "+"]).await;
        entries.into_iter().map(|(_, fields)| fields).collect()
    }

    /// Runs one command, given as words.
    pub(crate) async fn run<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connection().await).await.expect("the command works")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
