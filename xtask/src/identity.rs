//! Which process a pid means: numbers are reused, a pid together with its start time is not.

use std::fmt;
use std::process::Command;

/// A process, told apart from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// Opaque; equal if and only if the process is the same.
    started: String,
}

impl Identity {
    /// The process that has this pid now, unless there is none or it is a zombie.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let started = if cfg!(target_os = "linux") { from_proc(pid) } else { from_ps(pid) }?;
        Some(Self { pid, started })
    }

    /// This process.
    pub(crate) fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).expect("/proc or ps tells when a running process started")
    }

    /// Reads what `Display` wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.split_once('-')?;
        Some(Self { pid: pid.parse().ok()?, started: started.to_owned() })
    }

    /// Whether this very process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.pid, self.started)
    }
}

fn from_proc(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold spaces and parentheses.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?;
    // The start time is field 22 of proc_pid_stat(5), and the state is field 3.
    let started = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| started.to_owned())
}

fn from_ps(pid: u32) -> Option<String> {
    let output = Command::new("ps")
        .env("LC_ALL", "C")
        .args(["-o", "stat=,lstart=", "-p", &pid.to_string()])
        .output()
        .ok()?;
    let line = String::from_utf8(output.stdout).ok()?;
    let (state, started) = line.trim().split_once(' ')?;
    let started: String = started.chars().filter(char::is_ascii_alphanumeric).collect();
    (!state.starts_with('Z') && !started.is_empty()).then_some(started)
}

#[cfg(test)]
mod tests {
    use super::{Identity, from_ps};

    #[test]
    fn this_process_is_alive_and_survives_being_written_down() {
        let own = Identity::own();
        assert!(own.is_alive());
        assert_eq!(Identity::parse(&own.to_string()), Some(own));
    }

    #[test]
    fn another_process_with_the_same_pid_is_not_the_same() {
        let own = Identity::own();
        assert!(!Identity { started: format!("{}9", own.started), ..own }.is_alive());
    }

    #[test]
    fn a_zombie_does_not_count_as_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while Identity::of(child.id()).is_some() {
            assert!(std::time::Instant::now() < deadline, "`true` still runs");
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn ps_tells_the_start_time_where_there_is_no_proc() {
        assert!(from_ps(std::process::id()).is_some());
        assert_eq!(from_ps(u32::MAX >> 1), None);
    }
}
