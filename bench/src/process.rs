//! What processes have used, as Linux tells it.

use std::fs;

use outbox_tests::TestDatabase;

/// The most memory the process has ever had resident, in MiB.
pub(crate) fn peak_memory(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib / 1024.0)
}

/// Seconds of CPU that the processes' threads have used so far. What comes or goes between two
/// calls is not seen, so compare processes that stay.
pub(crate) fn cpu_seconds(pids: &[u32]) -> f64 {
    let threads = pids.iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok());
    let nanos: f64 = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<f64>().ok())
        .sum();
    nanos / 1e9
}

/// CPU time of those who take part in a drain. Unlike events per second it is hardly touched by what
/// else the machine does.
#[derive(Debug)]
pub(crate) struct Spent {
    relay: u32,
    postgres: f64,
    redis: (u32, f64),
}

impl Spent {
    /// Starts counting for a relay that has not started yet.
    pub(crate) fn from_now(relay: u32, database: &TestDatabase, redis: u32) -> Self {
        let postgres = cpu_seconds(&of_server(database));
        Self { relay, postgres, redis: (redis, cpu_seconds(&[redis])) }
    }

    /// Tells people what each event has cost.
    pub(crate) fn tell(&self, what: &str, database: &TestDatabase, events: f64, seconds: f64) {
        // The relay's backends began after the start, from zero.
        let postgres = cpu_seconds(&of_server(database)) - self.postgres;
        let redis = cpu_seconds(&[self.redis.0]) - self.redis.1;
        let [relay, postgres, redis] =
            [cpu_seconds(&[self.relay]), postgres, redis].map(|used| used / events * 1e6);
        eprintln!(
            "{what}: {:.0} events/s; CPU per event: relay {relay:.2} us, PostgreSQL {postgres:.2} us, \
             Redis {redis:.2} us",
            events / seconds
        );
    }
}

/// All processes of the PostgreSQL server that has this database.
pub(crate) fn of_server(database: &TestDatabase) -> Vec<u32> {
    // A backend ends with its connection; the checkpointer stays.
    let stays = "SELECT pid::bigint FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
    let Some(postmaster) = u32::try_from(database.value::<i64>(stays)).ok().and_then(parent) else {
        return Vec::new();
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid == postmaster || parent(*pid) == Some(postmaster))
        .collect()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
