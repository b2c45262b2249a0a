//! [`Proxy`]: a network that can be cut, go silent and lead elsewhere.

use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

/// A port that leads to another port of this machine. It closes when the value is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    network: watch::Sender<Network>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy)]
struct Network {
    target: u16,
    /// How often all connections were cut.
    cuts: u64,
    silent: bool,
}

impl Proxy {
    /// A new port that leads to the server of this URL, and the URL with it.
    ///
    /// # Panics
    /// Unless the URL names a port of this machine.
    pub async fn before(url: &str) -> (Self, String) {
        let mut url: Url = url.parse().expect("a server's URL");
        let proxy = Self::start(url.port().expect("a private server's URL names its port")).await;
        url.set_port(Some(proxy.port)).expect("a server's URL takes a port");
        (proxy, url.into())
    }

    /// Closes every connection. New ones may come.
    pub fn cut(&self) {
        self.network.send_modify(|network| network.cuts += 1);
    }

    /// From now on nothing passes, and nobody is told: connections stay open, new ones are accepted.
    pub fn silence(&self) {
        self.network.send_modify(|network| network.silent = true);
    }

    /// What waited since [`silence`](Self::silence) passes, unless its sender gave up.
    pub fn resume(&self) {
        self.network.send_modify(|network| network.silent = false);
    }

    /// Closes every connection, and leads new ones to this port.
    pub fn lead_to(&self, target: u16) {
        self.network.send_modify(|network| {
            network.target = target;
            network.cuts += 1;
        });
    }

    async fn start(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (network, seen) = watch::channel(Network { target, cuts: 0, silent: false });
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connection(client, seen.clone()));
            }
        });
        Self { port, network, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn connection(client: TcpStream, mut network: watch::Receiver<Network>) {
    let Network { target, cuts, .. } = *network.borrow_and_update();
    let passing = network.clone();
    tokio::select! {
        // Whatever ends it, both ends see it end.
        _ = join(client, target, passing) => {}
        // An error means that the proxy is gone.
        _ = network.wait_for(|network| network.cuts != cuts) => {}
    }
}

async fn join(
    client: TcpStream,
    target: u16,
    mut network: watch::Receiver<Network>,
) -> io::Result<()> {
    until_heard(&mut network).await?;
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::try_join!(
        pass(from_client, to_server, network.clone()),
        pass(from_server, to_client, network),
    )?;
    Ok(())
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut network: watch::Receiver<Network>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        until_heard(&mut network).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}

async fn until_heard(network: &mut watch::Receiver<Network>) -> io::Result<()> {
    let heard = network.wait_for(|network| !network.silent).await;
    heard.map(drop).map_err(|_| io::ErrorKind::ConnectionAborted.into())
}
