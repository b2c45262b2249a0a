//! Where servers keep their data, and what happens to data whose owner is gone.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::account::{self, Account};
use crate::error::ServerError;
use crate::identity::Identity;

/// Names the process and the way to end it, in every server's directory.
const SERVER_FILE: &str = "server";

/// Counts this process's servers, so that parallel threads get different directories.
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// The directory of one server; removed on drop.
#[derive(Debug)]
pub(crate) struct ServerDirectory {
    path: PathBuf,
}

impl ServerDirectory {
    /// A fresh directory, after what dead owners left was cleaned.
    pub(crate) fn create(account: Account) -> Result<Self, ServerError> {
        let root = root()?;
        clean(&root);
        // The owner is part of the name, so that no cleaner ever sees a directory without one.
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{}-{number}", Identity::own()));
        fs::create_dir_all(&path).map_err(ServerError::io(format!("create {}", path.display())))?;
        account.own(&path)?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes down which process serves from here, for whoever finds it after our death.
    pub(crate) fn record(&self, pid: u32, end: Signal) -> Result<(), ServerError> {
        // A process that is gone already needs no record.
        let Some(server) = Identity::of(pid) else { return Ok(()) };
        fs::write(self.path.join(SERVER_FILE), format!("{server} {}", end.as_str()))
            .map_err(ServerError::io("write down the server's pid"))
    }
}

impl Drop for ServerDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Ends servers whose owner is dead and removes their data. Every start of a server does this too.
pub fn clean_leftovers() -> Result<(), ServerError> {
    clean(&root()?);
    Ok(())
}

fn root() -> Result<PathBuf, ServerError> {
    Ok(place("servers", account::unprivileged()?))
}

/// This name below `target`, or a place below the temporary directory if the account that has to
/// run the servers cannot enter that.
pub(crate) fn place(name: &str, account: Account) -> PathBuf {
    static NOTICE: Once = Once::new();
    let wanted = target().join(name);
    if account.reaches(&wanted) {
        return wanted;
    }
    let instead = env::temp_dir().join(format!("outbox-{name}"));
    NOTICE.call_once(|| {
        eprintln!(
            "note: servers cannot run as root, and their account cannot enter {}; \
             their files go to {}",
            wanted.display(),
            instead.display()
        );
    });
    instead
}

/// Where cargo puts what it builds, unless a configuration file of its own says otherwise.
#[must_use]
pub fn target() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies in the workspace's directory");
    workspace.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn clean(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if owner(&path).is_some_and(|owner| !owner.is_alive()) {
            end_recorded_server(&path);
            remove(&path);
        }
    }
}

/// The process named by `<pid>-<start time>-<number>`.
fn owner(path: &Path) -> Option<Identity> {
    Identity::parse(path.file_name()?.to_str()?.rsplit_once('-')?.0)
}

fn end_recorded_server(directory: &Path) {
    let Ok(record) = fs::read_to_string(directory.join(SERVER_FILE)) else { return };
    let Some((server, signal)) = record.split_once(' ') else { return };
    let (Some(server), Ok(signal)) = (Identity::parse(server), signal.parse::<Signal>()) else {
        return;
    };
    for (signal, patience) in [(signal, 10), (Signal::SIGKILL, 2)] {
        let deadline = Instant::now() + Duration::from_secs(patience);
        while server.is_alive() && Instant::now() < deadline {
            // Sent again and again: it does no harm, and who dies between the two lines is told
            // apart by `is_alive` all the same.
            let _ = kill(pid(server.pid), signal);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

pub(crate) fn pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("pids are positive 32-bit numbers"))
}

/// Removes a directory in which a dying server may still create a file.
fn remove(path: &Path) {
    for attempt in 0..50 {
        match fs::remove_dir_all(path) {
            Ok(()) => return,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) if attempt == 49 => {
                eprintln!("note: cannot remove {}: {error}", path.display());
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                eprintln!("note: cannot remove {}: {error}", path.display());
                return;
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}
