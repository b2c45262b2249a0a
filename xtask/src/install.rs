//! Getting the server programs that are not here.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, fs};

use crate::programs;

/// What a command may need on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Software {
    /// PostgreSQL's server programs.
    Postgres,
    /// Redis or Valkey.
    Redis,
    /// PgBouncer.
    PgBouncer,
    /// Prometheus, with promtool.
    Prometheus,
    /// libfaketime: wrong clocks for single processes.
    Faketime,
}

impl Software {
    fn is_here(self) -> bool {
        match self {
            Self::Postgres => programs::find_postgres().is_some(),
            Self::Redis => programs::find_redis().is_some(),
            Self::PgBouncer => programs::find_pgbouncer().is_some(),
            Self::Prometheus => {
                programs::find_promtool().is_some() && programs::find_prometheus().is_some()
            }
            Self::Faketime => programs::find_faketime().is_some(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL 14 or newer",
            Self::Redis => "Redis or Valkey",
            Self::PgBouncer => "PgBouncer",
            Self::Prometheus => "Prometheus with promtool",
            Self::Faketime => "libfaketime",
        }
    }
}

/// Whether the system's package manager may be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Yes, after saying what it will do.
    Allowed,
    /// No: what is missing is an error.
    Forbidden,
}

/// Why something is still missing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// It has to be installed by hand; the message says how.
    #[error("missing: {missing}\n{advice}")]
    ByHand {
        /// The names of what is missing.
        missing: String,
        /// The command, and the way around it.
        advice: String,
    },
    /// The package manager did not start.
    #[error("cannot run the package manager")]
    Start(#[source] io::Error),
}

struct Manager {
    program: &'static str,
    /// What comes before the package names, as root.
    command: &'static str,
    postgres: &'static str,
    redis: &'static str,
}

const APT: Manager = Manager {
    program: "apt-get",
    command: "apt-get install -y --no-install-recommends",
    postgres: "postgresql",
    redis: "redis-server",
};

/// The first whose program is in `PATH` is the system's. Only apt-get is run, the others' commands
/// are printed.
const MANAGERS: &[Manager] = &[
    APT,
    Manager { program: "brew", command: "brew install", postgres: "postgresql@17", redis: "redis" },
    Manager {
        program: "dnf",
        command: "sudo dnf install",
        postgres: "postgresql-server postgresql-contrib",
        redis: "valkey",
    },
    Manager {
        program: "pacman",
        command: "sudo pacman -S",
        postgres: "postgresql",
        redis: "valkey",
    },
    Manager {
        program: "zypper",
        command: "sudo zypper install",
        postgres: "postgresql-server postgresql-contrib",
        redis: "redis",
    },
    Manager {
        program: "apk",
        command: "sudo apk add",
        postgres: "postgresql postgresql-client",
        redis: "redis",
    },
];

/// Debian's packages start services of their own on the usual ports. A policy that says no, for
/// the time of the installation, is the documented way to prevent that; one that is there already
/// stays.
const APT_SCRIPT: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    trap 'exit 130' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod 755 $policy
fi
if [ "$1" = update ]; then apt-get update; fi
shift
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" < /dev/null
"#;

/// Apt's package lists are asked for again after this time.
const LISTS_LIVE: Duration = Duration::from_secs(24 * 60 * 60);

/// Installs what is missing of `wanted`, or says how.
pub fn ensure(wanted: &[Software], permission: Permission) -> Result<(), InstallError> {
    let missing = missing(wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let manager = MANAGERS.iter().find(|manager| in_path(manager.program));
    let runs_apt = manager.is_some_and(|manager| manager.program == APT.program)
        && permission == Permission::Allowed;
    if let (true, Some(root)) = (runs_apt, root()) {
        apt(root, &missing)?;
        if self::missing(wanted).is_empty() {
            return Ok(());
        }
    }
    let missing = self::missing(wanted);
    Err(InstallError::ByHand { missing: names(&missing), advice: advice(manager, &missing) })
}

fn missing(wanted: &[Software]) -> Vec<Software> {
    wanted.iter().copied().filter(|software| !software.is_here()).collect()
}

fn names(software: &[Software]) -> String {
    software.iter().map(|software| software.name()).collect::<Vec<_>>().join(", ")
}

fn packages(manager: &Manager, software: &[Software]) -> Vec<&'static str> {
    let package = |software: &Software| match software {
        Software::Postgres => manager.postgres,
        Software::Redis => manager.redis,
        Software::PgBouncer => "pgbouncer",
        Software::Prometheus => "prometheus",
        Software::Faketime => "libfaketime",
    };
    software.iter().map(package).flat_map(str::split_whitespace).collect()
}

fn advice(manager: Option<&Manager>, missing: &[Software]) -> String {
    let install = manager.map_or_else(
        || "Install it with your system's package manager".to_owned(),
        |manager| {
            let sudo = if manager.program == APT.program { "sudo " } else { "" };
            let packages = packages(manager, missing).join(" ");
            format!("Install it:\n    {sudo}{} {packages}", manager.command)
        },
    );
    format!(
        "{install}\nor let containers serve:\n    \
         docker compose up --wait\n    \
         export DATABASE_URL=postgres://postgres:postgres@127.0.0.1:55432/postgres\n    \
         export REDIS_URL=redis://127.0.0.1:56379/"
    )
}

/// How to become root without being asked for a password: nothing to do, or sudo.
fn root() -> Option<&'static [&'static str]> {
    const SUDO: &[&str] = &["sudo", "-n"];
    if nix::unistd::geteuid().is_root() {
        return Some(&[]);
    }
    let allowed = Command::new("sudo")
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    allowed.then_some(SUDO)
}

fn apt(root: &[&str], missing: &[Software]) -> Result<(), InstallError> {
    let packages = packages(&APT, missing);
    let update = if lists_are_fresh() { "keep" } else { "update" };
    eprintln!("missing: {}; running as root, without starting any service:", names(missing));
    if update == "update" {
        eprintln!("    apt-get update");
    }
    eprintln!("    {} {}", APT.command, packages.join(" "));

    let shell = ["sh", "-c", APT_SCRIPT, "install", update];
    let mut words = root.iter().chain(&shell).chain(&packages);
    let status = Command::new(words.next().expect("the shell at least"))
        .args(words)
        .stdin(Stdio::null())
        .status()
        .map_err(InstallError::Start)?;
    if !status.success() {
        eprintln!("the package manager failed: {status}");
    }
    Ok(())
}

fn lists_are_fresh() -> bool {
    let Ok(lists) = fs::read_dir("/var/lib/apt/lists") else { return false };
    lists
        .filter_map(Result::ok)
        .filter(|list| list.file_name().to_string_lossy().contains("_Packages"))
        // The files carry the archive's time; the directory's own is that of the last update.
        .any(|_| touched_lately(Path::new("/var/lib/apt/lists")))
}

fn touched_lately(path: &Path) -> bool {
    fs::metadata(path)
        .and_then(|directory| directory.modified())
        .is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age < LISTS_LIVE))
}

pub(crate) fn in_path(program: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .any(|place| place.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::{MANAGERS, Software, advice, packages};

    #[test]
    fn every_manager_is_told_to_install_what_is_missing_and_nothing_else() {
        for manager in MANAGERS {
            let text = advice(Some(manager), &[Software::Redis]);
            assert!(text.contains(&format!("{} {}", manager.command, manager.redis)), "{text}");
            assert!(!text.contains("pgbouncer"), "{text}");
            assert!(packages(manager, &[Software::PgBouncer]).contains(&"pgbouncer"));
        }
    }

    #[test]
    fn the_way_with_containers_is_always_told() {
        assert!(advice(None, &[Software::Postgres]).contains("docker compose up --wait"));
    }
}
