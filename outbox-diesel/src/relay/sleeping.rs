//! Sleeps while nothing happens, if the options say so, until an emit wakes the relay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::startup::Refusal;
use super::worker::{Worker, chain, pause_for};
use crate::options::{RelayOptions, Wake};
use crate::publish::Publisher;
use crate::session::{Pool, Session, SessionError};
use crate::snapshot::Xid;
use crate::wake::{self, Heard, Listener, Manager, Register, Source};

/// A relay falls asleep so long after it last found something.
const DROWSY: Duration = Duration::from_millis(250);
/// A trial that is not heard by then will not be.
const ANSWER: Duration = Duration::from_secs(1);
/// How often a relay that is awake looks whether emits notify all the same.
const DRAIN: Duration = Duration::from_millis(100);
/// How soon a connection that was lost is opened again.
const REOPEN: Duration = Duration::from_secs(1);
/// How soon is tried again what only people can mend.
const MENDED: Duration = Duration::from_secs(60);
/// How often a trouble that stays is named again.
const REMINDER: Duration = Duration::from_secs(600);

/// What it takes to sleep.
pub(super) struct Sleeping {
    wake: Wake,
    source: Source,
    timeout: Duration,
    opening: JoinSet<Result<Listener, SessionError>>,
    listener: Option<Listener>,
    /// The listener has heard a trial.
    is_trusted: bool,
    /// The triggers are there.
    is_installed: bool,
    stage: Stage,
    quiet_since: Instant,
    next_try: Option<Instant>,
    last_drain: Option<Instant>,
    trouble: Option<(String, Instant)>,
}

enum Stage {
    Awake,
    /// Does the listener hear anything?
    Trying(Trial),
    /// The register is set. With an xid: not before all transactions below it have ended.
    Falling(Trial, Option<Xid>),
    /// Since then the register is known to hold, and the listener to hear.
    Asleep(Instant),
}

/// A notification on its way.
struct Trial {
    token: String,
    sent: Instant,
    is_heard: bool,
}

impl Trial {
    fn new() -> Self {
        Self { token: Uuid::now_v7().to_string(), sent: Instant::now(), is_heard: false }
    }
}

impl Sleeping {
    pub(super) fn new(pool: Pool, options: &RelayOptions) -> Self {
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
        }
    }

    /// Listens through connections of this manager.
    pub(super) fn listen_through(&mut self, manager: Arc<Manager>) {
        self.source = Source::Direct(manager);
    }

    /// Starts over with nothing known, and refuses where emits must not notify.
    pub(super) async fn begin(&mut self, session: &mut Session) -> Result<(), Refusal> {
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
    pub(super) async fn announce(&self, session: &mut Session) -> Result<(), SessionError> {
        match self.wake {
            Wake::Poll => Ok(()),
            Wake::Listen => wake::send(session, wake::CHANGE.to_owned()).await,
        }
    }

    /// The register is set for us, or about to be.
    pub(super) fn is_dozing(&self) -> bool {
        matches!(self.stage, Stage::Falling(..) | Stage::Asleep(_))
    }

    /// The relay found something.
    pub(super) fn stir(&mut self) {
        self.quiet_since = Instant::now();
    }

    /// With the connection goes the lock.
    fn forget_listener(&mut self) {
        self.listener = None;
        self.is_trusted = false;
        self.stage = Stage::Awake;
    }

    /// The listener, opened in the background: delivery does not wait for it.
    fn is_listening(&mut self) -> bool {
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

    /// Polls for now. Named once, and again after a while if it stays.
    fn give_up(&mut self, pause: Duration, why: &str) {
        self.forget_listener();
        self.next_try = Some(Instant::now() + pause);
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
    async fn hear(&mut self) -> Result<Heard, SessionError> {
        loop {
            let Some(listener) = &mut self.listener else { return std::future::pending().await };
            let heard = listener.hear().await?;
            if let Some(heard) = self.take_in(heard) {
                return Ok(heard);
            }
        }
    }

    /// Whether an emit has notified since the last time, though this relay is awake.
    fn drain(&mut self) -> bool {
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

fn lost(error: &SessionError) -> String {
    format!("the connection that listens was lost: {}", chain(error))
}

impl<P: Publisher> Worker<P> {
    /// Nothing to do. Polls after the pause, or sleeps until there is something.
    pub(super) async fn rest(
        &mut self,
        session: &mut Session,
        pause: Duration,
        cancelled: &CancellationToken,
    ) -> Result<(), SessionError> {
        if self.sleeping.wake == Wake::Poll {
            pause_for(pause, cancelled).await;
            return Ok(());
        }
        if !self.is_ready || self.replaying.is_likely {
            self.rouse(session).await?;
            pause_for(pause, cancelled).await;
            return Ok(());
        }
        match &self.sleeping.stage {
            Stage::Awake => {
                if self.sleeping.quiet_since.elapsed() < DROWSY {
                    self.doze(pause, cancelled).await;
                } else if !self.is_fit_to_sleep(session).await? {
                    pause_for(pause, cancelled).await;
                } else if self.sleeping.is_trusted {
                    self.lie_down(session).await?;
                } else {
                    let trial = Trial::new();
                    wake::send(session, trial.token.clone()).await?;
                    self.sleeping.stage = Stage::Trying(trial);
                }
            }
            Stage::Trying(trial) if trial.is_heard => {
                self.sleeping.is_trusted = true;
                self.sleeping.trouble = None;
                self.sleeping.stage = Stage::Awake;
            }
            Stage::Falling(_, Some(below)) => {
                // What such a transaction emits wakes nobody: until it has ended, look.
                if wake::have_ended(session, *below).await? {
                    if let Stage::Falling(_, below) = &mut self.sleeping.stage {
                        // And look once more: it may have ended since the last time.
                        *below = None;
                    }
                } else {
                    self.doze(pause, cancelled).await;
                }
            }
            Stage::Falling(trial, None) if trial.is_heard => {
                self.sleeping.stage = Stage::Asleep(trial.sent);
                debug!(subscription = %self.who.subscription, "the relay sleeps");
            }
            Stage::Trying(trial) | Stage::Falling(trial, None) => {
                if trial.sent.elapsed() < ANSWER {
                    self.doze(pause, cancelled).await;
                } else if self.sleeping.is_trusted {
                    self.sleeping.give_up(REOPEN, "the connection that listens has gone silent");
                } else {
                    self.sleeping.give_up(MENDED, "the connection that listens hears nothing, as behind a transaction pooler; give the relay one that reaches the server with Relay::direct");
                }
            }
            Stage::Asleep(since) => {
                let left = self.options.poll_asleep.checked_sub(since.elapsed());
                match left.filter(|left| !left.is_zero()) {
                    Some(left) => self.sleep(session, left, cancelled).await?,
                    None => self.sleep_on(session).await?,
                }
            }
        }
        Ok(())
    }

    /// No shard is ours. Others may leave some to us.
    pub(super) async fn stand_by(&mut self, cancelled: &CancellationToken) {
        if self.sleeping.wake == Wake::Poll || !self.is_ready {
            pause_for(self.options.poll_idle, cancelled).await;
            return;
        }
        tokio::select! {
            () = self.health.question() => {}
            () = pause_for(self.options.poll_asleep, cancelled) => {}
        }
    }

    /// Something was found: says that this relay is awake, once it is delivered.
    pub(super) async fn rouse(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let sleeping = &mut self.sleeping;
        let Some(listener) = &mut sleeping.listener else { return Ok(()) };
        if matches!(sleeping.stage, Stage::Falling(..) | Stage::Asleep(_)) {
            sleeping.stage = Stage::Awake;
            if let Err(error) = listener.let_go().await {
                sleeping.give_up(REOPEN, &lost(&error));
            }
            sleeping.drain();
            wake::wake_up(session).await?;
        } else if sleeping.last_drain.is_none_or(|last| last.elapsed() >= DRAIN) {
            sleeping.last_drain = Some(Instant::now());
            // A relay that slept is awake by now, or died.
            if sleeping.drain() {
                wake::wake_up(session).await?;
            }
        }
        Ok(())
    }

    /// Whether there are triggers that notify and a connection that listens.
    async fn is_fit_to_sleep(&mut self, session: &mut Session) -> Result<bool, SessionError> {
        if self.sleeping.next_try.is_some_and(|at| Instant::now() < at) {
            return Ok(false);
        }
        if !self.sleeping.is_installed {
            if let Some(remedy) = wake::missing_rights(session).await? {
                self.sleeping.give_up(MENDED, &format!("the relay's role lacks rights: {remedy}"));
                return Ok(false);
            }
            match wake::install(session).await {
                Ok(is_new) => {
                    self.sleeping.is_installed = true;
                    if is_new {
                        info!(
                            "installed triggers on outbox.events and outbox.revisions that wake relays; outbox.remove_wake() removes them"
                        );
                    }
                }
                // Long transactions that emit keep the lock from us.
                Err(error @ SessionError::Query(_)) => {
                    let why = format!(
                        "the triggers that wake relays are not installed yet: {}",
                        chain(&error)
                    );
                    self.sleeping.give_up(REOPEN * 5, &why);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.sleeping.is_listening())
    }

    /// Before the register is set: whoever resets it must see that somebody sleeps.
    async fn lie_down(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let Some(listener) = &mut self.sleeping.listener else { return Ok(()) };
        if let Err(error) = listener.hold().await {
            self.sleeping.give_up(REOPEN, &lost(&error));
            return Ok(());
        }
        let Some((trial, _)) = self.set_register(session).await? else { return Ok(()) };
        // Also where another relay has set the register before: it may still be waiting.
        let below = wake::draw_xid(session).await?;
        self.sleeping.stage = Stage::Falling(trial, Some(below));
        Ok(())
    }

    /// Renews the register, and tries whether the listener still hears.
    async fn sleep_on(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let Some((trial, register)) = self.set_register(session).await? else { return Ok(()) };
        let has_lapsed = register.was_awake;
        let below = if has_lapsed { Some(wake::draw_xid(session).await?) } else { None };
        self.sleeping.stage = Stage::Falling(trial, below);
        Ok(())
    }

    /// Says that this relay may be asleep; None if emits could not wake it.
    async fn set_register(
        &mut self,
        session: &mut Session,
    ) -> Result<Option<(Trial, Register)>, SessionError> {
        let trial = Trial::new();
        // If the relay dies, emits notify until then.
        let asleep_for = self.options.poll_asleep.saturating_mul(3).max(ANSWER * 3);
        let register = wake::fall_asleep(session, asleep_for, trial.token.clone()).await?;
        if !register.is_installed {
            self.sleeping.give_up(
                MENDED,
                "the triggers that wake relays were removed; restart the relay to have them back",
            );
            return Ok(None);
        }
        Ok(Some((trial, register)))
    }

    /// A poll's pause, cut short by what is heard.
    async fn doze(&mut self, pause: Duration, cancelled: &CancellationToken) {
        let heard = tokio::select! {
            heard = self.sleeping.hear() => heard,
            () = pause_for(pause, cancelled) => return,
        };
        self.heed(heard);
    }

    /// Until something happens, or the time is up.
    async fn sleep(
        &mut self,
        session: &mut Session,
        left: Duration,
        cancelled: &CancellationToken,
    ) -> Result<(), SessionError> {
        let parked = self.shards_with_parked();
        let left = if parked.is_empty() {
            left
        } else {
            let due = wake::next_due(session, self.who.subscription.clone(), parked).await?;
            due.map_or(left, |due| due.max(self.options.poll_idle).min(left))
        };
        let heard = tokio::select! {
            heard = self.sleeping.hear() => heard,
            () = self.health.question() => return Ok(()),
            () = pause_for(left, cancelled) => return Ok(()),
        };
        self.heed(heard);
        Ok(())
    }

    fn heed(&mut self, heard: Result<Heard, SessionError>) {
        match heard {
            Ok(Heard::Change) => self.clocks.membership = None,
            Ok(Heard::Event | Heard::Trial(_)) => {}
            Err(error) => self.sleeping.give_up(REOPEN, &lost(&error)),
        }
    }
}
