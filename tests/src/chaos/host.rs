//! [`Host`]: a relay's process, its network and its clock.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Proxy, RelayProcess, Scene};

/// A machine of its own, as far as a relay can tell.
#[derive(Debug)]
pub(super) struct Host {
    name: String,
    /// Between the relay and PostgreSQL.
    pub(super) postgres: Proxy,
    /// Between the relay and Redis.
    pub(super) redis: Proxy,
    program: String,
    arguments: [String; 3],
    clock: Option<Clock>,
    relay: Mutex<Option<RelayProcess>>,
}

/// A wall clock that is off.
#[derive(Debug, Clone)]
struct Clock {
    library: PathBuf,
    offset: &'static str,
}

/// The first host's clock is right; those of others are hours off, either way.
const OFFSETS: &[&str] = &["+7200", "-86400"];

impl Host {
    /// Starts the relay between the scene's database and its Redis, through a network of its own.
    pub(super) async fn start(program: &str, number: usize, scene: &Scene) -> Self {
        let (database, redis) = (scene.database().url(), scene.redis().url());
        let (to_postgres, database) = Proxy::before(&database).await;
        let (to_redis, redis) = Proxy::before(&redis).await;
        let host = Self {
            name: format!("host-{number}"),
            postgres: to_postgres,
            redis: to_redis,
            program: program.to_owned(),
            arguments: [database, redis, scene.redis().prefix().to_owned()],
            clock: Clock::of(number),
            relay: Mutex::new(None),
        };
        host.start_relay();
        host
    }

    /// Starts a relay, if there is none.
    pub(super) fn start_relay(&self) {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env("RELAY_OPTIONS", "forgetful");
        if let Some(Clock { library, offset }) = &self.clock {
            // The monotonic clock stays as it is: nobody can set that of a real host.
            command.env("LD_PRELOAD", library).env("FAKETIME", offset);
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        self.relay().get_or_insert_with(|| RelayProcess::spawn(&mut command, &self.name));
    }

    /// Kills the relay.
    pub(super) fn kill_relay(&self) {
        if let Some(mut relay) = self.relay().take() {
            relay.kill();
        }
    }

    /// Lets the relay end in order.
    pub(super) fn stop_relay(&self) {
        if let Some(mut relay) = self.relay().take() {
            relay.stop();
        }
    }

    /// Freezes the relay.
    pub(super) fn freeze_relay(&self) {
        if let Some(relay) = &*self.relay() {
            relay.pause();
        }
    }

    /// Lets the relay go on.
    pub(super) fn thaw_relay(&self) {
        if let Some(relay) = &*self.relay() {
            relay.resume();
        }
    }

    /// How far its clock is off, in seconds.
    pub(super) fn clock_offset(&self) -> Option<&'static str> {
        self.clock.as_ref().map(|clock| clock.offset)
    }

    fn relay(&self) -> MutexGuard<'_, Option<RelayProcess>> {
        self.relay.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock {
    fn of(host: usize) -> Option<Self> {
        let nth = host.checked_sub(1)? % OFFSETS.len();
        Some(Self { library: xtask::programs::find_faketime()?, offset: OFFSETS[nth] })
    }
}
