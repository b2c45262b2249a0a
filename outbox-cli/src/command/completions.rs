//! `outbox completions`.

use clap_complete::Shell;

/// Prints a shell's completions: outbox completions bash > /etc/bash_completion.d/outbox
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
