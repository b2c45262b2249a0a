//! [`Sent`]: what a connection sends.

use std::sync::{Arc, Mutex};

use diesel::connection::{Instrumentation, InstrumentationEvent};

/// The statements that a connection has sent since `conn.set_instrumentation(sent.clone())`.
#[derive(Debug, Clone, Default)]
pub struct Sent(Arc<Mutex<Vec<String>>>);

impl Sent {
    /// The statements so far, and starts anew.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no holder panics"))
    }
}

impl Instrumentation for Sent {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        if let InstrumentationEvent::StartQuery { query, .. } = event {
            // Diesel prints the binds behind the text.
            let text = query.to_string();
            let text = text.split(" -- binds").next().unwrap_or_default().to_owned();
            self.0.lock().expect("no holder panics").push(text);
        }
    }
}
