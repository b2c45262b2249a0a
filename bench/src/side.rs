//! [`Side`]: what is measured runs in a process of its own, so that its memory and CPU are its own
//! too, and none of the sides shares a runtime with the bench.
//!
//! A side says `ready`, starts when it is told `go`, may say `done` with what it has found, and ends
//! when its standard input does.

mod limits;
mod relay;
mod textbook;

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

pub(crate) use self::textbook::SCHEMA as TEXTBOOK_SCHEMA;
use crate::Outcome;

/// What a side does.
#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum Kind {
    /// Our relay, to Redis.
    Relay(relay::ToRedis),
    /// Our relay with a counting publisher.
    Counting(relay::Counting),
    /// The usual relay.
    Textbook(textbook::Textbook),
    /// A plain SELECT of all events.
    Select(limits::Select),
    /// Pipelined XADD of all events.
    Xadd(limits::Xadd),
}

/// Is a side: the child's part.
pub(crate) async fn run(kind: Kind) -> Outcome {
    match kind {
        Kind::Relay(side) => side.run().await,
        Kind::Counting(side) => side.run().await,
        Kind::Textbook(side) => side.run().await,
        Kind::Select(side) => side.run().await,
        Kind::Xadd(side) => side.run().await,
    }
}

/// The child's standard input.
struct Input(Lines<BufReader<tokio::io::Stdin>>);

impl Input {
    /// Says that the side is ready, and waits until it is to start.
    async fn wait_for_go() -> Result<Self, std::io::Error> {
        println!("ready");
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        lines.next_line().await?;
        Ok(Self(lines))
    }

    /// Waits until the side is to end.
    async fn wait_for_end(mut self) {
        while let Ok(Some(_)) = self.0.next_line().await {}
    }
}

/// A side from the bench's point of view. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Side {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Side {
    /// Starts one of ours, and returns when it is ready.
    pub(crate) async fn start(arguments: &[&str]) -> Outcome<Self> {
        let program = std::env::current_exe()?;
        Self::start_program(&program, &[&["side"], arguments].concat()).await
    }

    /// The same of another program that keeps to the same words.
    pub(crate) async fn start_program(program: &Path, arguments: &[&str]) -> Outcome<Self> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{} {arguments:?}: {error}", program.display()))?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut side = Self { child, input, output };
        side.hear("ready").await?;
        Ok(side)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it has not been waited for")
    }

    /// Lets it start.
    pub(crate) async fn go(&mut self) -> Outcome {
        Ok(self.input.write_all(b"go\n").await?)
    }

    /// Waits until it is done, and returns what it says of it.
    pub(crate) async fn done(&mut self) -> Outcome<String> {
        self.hear("done").await
    }

    async fn hear(&mut self, word: &str) -> Outcome<String> {
        while let Some(line) = self.output.next_line().await? {
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.trim().to_owned());
            }
        }
        Err(format!("a side ended before it was {word}").into())
    }

    /// Lets it end in order.
    pub(crate) async fn end(self) -> Outcome {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait().await?;
        Ok(())
    }
}
