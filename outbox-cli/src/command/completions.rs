//! `outbox completions`.

use clap_complete::Shell;

/// Prints a shell's completions, to be kept where it looks for them.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// Which shell.
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) {
        clap_complete::generate(
            self.shell,
            &mut crate::grammar(),
            "outbox",
            &mut std::io::stdout(),
        );
    }
}
