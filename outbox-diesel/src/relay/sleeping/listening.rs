//! What a relay needs in order to sleep: the connection that listens, and how far it has got.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tracing::warn;
use uuid::Uuid;

use crate::options::{RelayOptions, Wake};
use crate::relay::health::HealthCell;
use crate::relay::startup::Refusal;
use crate::relay::worker::chain;
use crate::session::{Pool, Session, SessionError};
use crate::snapshot::Xid;
use crate::wake::{self, Heard, Listener, Manager, Source};

/// How soon a connection that was lost is opened again.
pub(super) const REOPEN: Duration = Duration::from_secs(1);
/// How often a trouble that stays is named again.
const REMINDER: Duration = Duration::from_secs(600);

/// What it takes to sleep.
pub(in crate::relay) struct Sleeping {
    pub(super) wake: Wake,
    pub(super) source: Source,
    pub(super) timeout: Duration,
    pub(super) opening: JoinSet<Result<Listener, SessionError>>,
    pub(super) listener: Option<Listener>,
    /// The listener has heard a trial.
    pub(super) is_trusted: bool,
    /// The triggers are there.
    pub(super) is_installed: bool,
    pub(super) stage: Stage,
    pub(super) quiet_since: Instant,
    pub(super) next_try: Option<Instant>,
    pub(super) last_drain: Option<Instant>,
    pub(super) trouble: Option<(String, Instant)>,
    health: HealthCell,
}

pub(super) enum Stage {
    Awake,
    /// Does the listener hear anything?
    Trying(Trial),
    /// The register is set. With an xid: not before all transactions below it have ended.
    Falling(Trial, Option<Xid>),
    /// Since then the register is known to hold, and the listener to hear.
    Asleep(Instant),
}

/// A notification on its way.
pub(super) struct Trial {
    pub(super) token: String,
    pub(super) sent: Instant,
    pub(super) is_heard: bool,
}

impl Trial {
    pub(super) fn new() -> Self {
        Self { token: Uuid::now_v7().to_string(), sent: Instant::now(), is_heard: false }
    }
}

impl Sleeping {
    pub(in crate::relay) fn new(pool: Pool, options: &RelayOptions, health: HealthCell) -> Self {
        Self {
            wake: options.wake,
            source: Source::Pool(pool),
            timeout: options.database_timeout,
            opening: JoinSet::new(),
            listener: None,
            is_trusted: false,
            is_installed: false,
            stage: Stage::Awake,
            quiet_since: Instant::now(),
            next_try: None,
            last_drain: None,
            trouble: None,
            health,
        }
    }

    /// Listens through connections of this manager.
    pub(in crate::relay) fn listen_through(&mut self, manager: Arc<Manager>) {
        self.source = Source::Direct(manager);
    }

    /// Starts over with nothing known, and refuses where emits must not notify.
    pub(in crate::relay) async fn begin(&mut self, session: &mut Session) -> Result<(), Refusal> {
        self.opening.abort_all();
        self.opening = JoinSet::new();
        self.forget_listener();
        self.is_installed = false;
        self.next_try = None;
        if self.wake == Wake::Poll {
            return Ok(());
        }
        match wake::max_prepared_transactions(session).await? {
            0 => Ok(()),
            allowed => Err(Refusal::PreparedTransactions { allowed }),
        }
    }

    /// Tells sleeping relays that this one has come or gone: the shares of the shards change.
    pub(in crate::relay) async fn announce(
        &self,
        session: &mut Session,
    ) -> Result<(), SessionError> {
        match self.wake {
            Wake::Poll => Ok(()),
            Wake::Listen => wake::send(session, wake::CHANGE.to_owned()).await,
        }
    }

    /// The register is set for us, or about to be.
    pub(in crate::relay) fn is_dozing(&self) -> bool {
        matches!(self.stage, Stage::Falling(..) | Stage::Asleep(_))
    }

    /// The relay found something.
    pub(in crate::relay) fn stir(&mut self) {
        self.quiet_since = Instant::now();
    }

    /// With the connection goes the lock.
    fn forget_listener(&mut self) {
        self.listener = None;
        self.is_trusted = false;
        self.stage = Stage::Awake;
    }

    /// The listener, opened in the background: delivery does not wait for it.
    pub(super) fn is_listening(&mut self) -> bool {
        if self.listener.is_some() {
            return true;
        }
        match self.opening.try_join_next() {
            Some(Ok(Ok(listener))) => self.listener = Some(listener),
            Some(Ok(Err(error))) => {
                self.give_up(REOPEN * 5, &format!("no connection to listen on: {}", chain(&error)));
            }
            Some(Err(ended)) => self.give_up(REOPEN * 5, &chain(&ended)),
            None if self.opening.is_empty() => {
                self.opening.spawn(Listener::open(self.source.clone(), self.timeout));
            }
            None => {}
        }
        self.listener.is_some()
    }

    /// The listener has heard a trial: the relay can sleep.
    pub(super) fn trust(&mut self) {
        self.is_trusted = true;
        self.trouble = None;
        self.health.set_sleepless(None);
        self.stage = Stage::Awake;
    }

    /// Polls for now. Named once, and again after a while if it stays.
    pub(super) fn give_up(&mut self, pause: Duration, why: &str) {
        self.forget_listener();
        self.next_try = Some(Instant::now() + pause);
        // What mends itself in a moment is nobody's business.
        if pause > REOPEN {
            self.health.set_sleepless(Some(why));
        }
        let is_known = |(known, at): &(String, Instant)| known == why && at.elapsed() < REMINDER;
        if !self.trouble.as_ref().is_some_and(is_known) {
            warn!(why, "the relay cannot sleep and polls instead; it will try again");
            self.trouble = Some((why.to_owned(), Instant::now()));
        }
    }

    /// Takes in what was heard; whether an operator has changed something, or none of our business.
    fn take_in(&mut self, heard: Heard) -> Option<Heard> {
        let Heard::Trial(token) = heard else { return Some(heard) };
        if let Stage::Trying(trial) | Stage::Falling(trial, _) = &mut self.stage
            && trial.token == token
        {
            trial.is_heard = true;
            return Some(Heard::Trial(token));
        }
        // Another relay's.
        None
    }

    /// Waits until something is heard that concerns this relay. For ever where nobody listens.
    pub(super) async fn hear(&mut self) -> Result<Heard, SessionError> {
        loop {
            let Some(listener) = &mut self.listener else { return std::future::pending().await };
            let heard = listener.hear().await?;
            if let Some(heard) = self.take_in(heard) {
                return Ok(heard);
            }
        }
    }

    /// Whether an emit has notified since the last time, though this relay is awake.
    pub(super) fn drain(&mut self) -> bool {
        let mut is_notified = false;
        loop {
            match self.listener.as_mut().and_then(Listener::heard) {
                None => return is_notified,
                Some(Ok(heard)) => is_notified |= self.take_in(heard) == Some(Heard::Event),
                Some(Err(error)) => {
                    self.give_up(REOPEN, &lost(&error));
                    return is_notified;
                }
            }
        }
    }
}

pub(super) fn lost(error: &SessionError) -> String {
    format!("the connection that listens was lost: {}", chain(error))
}
