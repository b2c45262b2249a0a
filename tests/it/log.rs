//! [`Log`]: what is logged on a test's own thread.

use std::io;
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What was logged while the value that [`keep_warnings`](Self::keep_warnings) returned lived. For
/// tests on one thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn keep_warnings(&self) -> impl Drop + use<> {
        let log = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::WARN)
            .with_writer(move || log.clone())
            .with_ansi(false)
            .finish()
            .set_default()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
