//! The account a server runs under: PostgreSQL and PgBouncer refuse root.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::error::ServerError;

/// Whose rights a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Account {
    /// The one that called us; it is not root.
    Own,
    /// Another one, because we are root.
    Other { uid: u32, gid: u32 },
}

/// The caller's account, or an unprivileged one if the caller is root.
pub(crate) fn unprivileged() -> Result<Account, ServerError> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(Account::Own);
    }
    let passwd = fs::read_to_string("/etc/passwd").map_err(ServerError::io("read /etc/passwd"))?;
    ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| find(&passwd, name))
        .ok_or(ServerError::NoAccount)
}

fn find(passwd: &str, name: &str) -> Option<Account> {
    let mut fields = passwd
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?
        .skip(1);
    Some(Account::Other { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
}

impl Account {
    /// Makes `command` run with this account's rights.
    pub(crate) fn apply(self, command: &mut Command) -> &mut Command {
        match self {
            Self::Own => command,
            Self::Other { uid, gid } => command.uid(uid).gid(gid),
        }
    }

    /// Gives `path` to this account.
    pub(crate) fn own(self, path: &Path) -> Result<(), ServerError> {
        match self {
            Self::Own => Ok(()),
            Self::Other { uid, gid } => chown(path, Some(uid), Some(gid))
                .map_err(ServerError::io(format!("give {} to its server", path.display()))),
        }
    }

    /// Whether this account may enter `path` and every directory above it. Parts that do not exist
    /// yet count as reachable: we create them.
    pub(crate) fn reaches(self, path: &Path) -> bool {
        let Self::Other { uid, gid } = self else { return true };
        path.ancestors().filter_map(|part| fs::metadata(part).ok()).all(|part| {
            let enter = if part.uid() == uid {
                0o100
            } else if part.gid() == gid {
                0o010
            } else {
                0o001
            };
            part.mode() & enter != 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, find};

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
                          nobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin\n";

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        assert_eq!(find(PASSWD, "nobody"), Some(Account::Other { uid: 65534, gid: 65533 }));
        assert_eq!(find(PASSWD, "no"), None);
    }
}
