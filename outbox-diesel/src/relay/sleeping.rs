//! Sleeps while nothing happens, if the options say so, until an emit wakes the relay.

mod listening;

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::info;

pub(super) use self::listening::Sleeping;
use self::listening::{REOPEN, Stage, Trial, lost};
use super::backoff::pause_for;
use super::worker::{Worker, chain};
use crate::options::Wake;
use crate::publish::Publisher;
use crate::session::{Session, SessionError};
use crate::wake::{self, Heard, Register};

/// A relay falls asleep so long after it last found something.
const DROWSY: Duration = Duration::from_millis(250);
/// A trial that is not heard by then will not be.
const ANSWER: Duration = Duration::from_secs(1);
/// How often a relay that is awake looks whether emits notify all the same.
const DRAIN: Duration = Duration::from_millis(100);
/// How soon is tried again what only people can mend.
const MENDED: Duration = Duration::from_secs(60);
/// What only people can mend.
const DEAF: &str = "the connection that listens hears nothing, as behind a transaction pooler; give the relay one that reaches the server with Relay::direct";

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
        while self.step_to_sleep(session, pause, cancelled).await? {}
        Ok(())
    }

    /// One step on the way to sleep, and the sleep itself; true if the next one can be taken without
    /// another look at the log.
    async fn step_to_sleep(
        &mut self,
        session: &mut Session,
        pause: Duration,
        cancelled: &CancellationToken,
    ) -> Result<bool, SessionError> {
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
            Stage::Trying(trial) if trial.is_heard => self.sleeping.trust(),
            Stage::Falling(_, Some(below)) => {
                // What such a transaction emits wakes nobody: until it has ended, look.
                if !wake::have_ended(session, *below).await? {
                    self.doze(pause, cancelled).await;
                } else if let Stage::Falling(_, below) = &mut self.sleeping.stage {
                    // And look once more: it may have ended since the last time.
                    *below = None;
                }
            }
            Stage::Falling(trial, None) if trial.is_heard => {
                self.sleeping.stage = Stage::Asleep(trial.sent);
                return Ok(true);
            }
            Stage::Trying(trial) | Stage::Falling(trial, None) => {
                if trial.sent.elapsed() < ANSWER {
                    return Ok(self.doze(pause, cancelled).await);
                }
                let (pause, why) = if self.sleeping.is_trusted {
                    (REOPEN, "the connection that listens has gone silent")
                } else {
                    (MENDED, DEAF)
                };
                self.sleeping.give_up(pause, why);
            }
            Stage::Asleep(since) => {
                let left = self.options.poll_asleep.checked_sub(since.elapsed());
                match left.filter(|left| !left.is_zero()) {
                    Some(left) => self.sleep(session, left, cancelled).await?,
                    None => return self.sleep_on(session).await,
                }
            }
        }
        Ok(false)
    }

    /// No shard is ours. Others may leave some to us.
    pub(super) async fn stand_by(
        &mut self,
        session: &mut Session,
        cancelled: &CancellationToken,
    ) -> Result<(), SessionError> {
        // Emits are others' business: it is no sleeper whom they must wake.
        self.rouse(session).await?;
        let is_listening = self.sleeping.wake == Wake::Listen
            && self.is_ready
            && self.is_fit_to_sleep(session).await?;
        if is_listening {
            self.sleep(session, self.options.poll_asleep, cancelled).await
        } else {
            pause_for(self.options.poll_idle, cancelled).await;
            Ok(())
        }
    }

    /// Something was found: says that this relay is awake, once it is delivered.
    pub(super) async fn rouse(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let sleeping = &mut self.sleeping;
        // Also where another relay took the tick.
        sleeping.stir();
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
                            "installed the triggers that wake relays; outbox.remove_wake() removes them"
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

    /// Renews the register, and tries whether the listener still hears. True unless it must look again
    /// before it sleeps.
    async fn sleep_on(&mut self, session: &mut Session) -> Result<bool, SessionError> {
        let Some((trial, register)) = self.set_register(session).await? else { return Ok(false) };
        let has_lapsed = register.was_awake;
        let below = if has_lapsed { Some(wake::draw_xid(session).await?) } else { None };
        self.sleeping.stage = Stage::Falling(trial, below);
        Ok(!has_lapsed)
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

    /// A poll's pause, cut short by what is heard; true if that is this relay's own trial.
    async fn doze(&mut self, pause: Duration, cancelled: &CancellationToken) -> bool {
        let heard = tokio::select! {
            heard = self.sleeping.hear() => heard,
            () = pause_for(pause, cancelled) => return false,
        };
        self.heed(heard)
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

    fn heed(&mut self, heard: Result<Heard, SessionError>) -> bool {
        match heard {
            Ok(Heard::Trial(_)) => return true,
            Ok(Heard::Event) => {}
            Ok(Heard::Change) => self.clocks.membership = None,
            Err(error) => self.sleeping.give_up(REOPEN, &lost(&error)),
        }
        false
    }
}
