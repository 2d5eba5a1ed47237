//! `napkin completions SHELL`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;

/// Completions for a shell.
#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell
    #[arg(value_enum)]
    pub shell: Shell,
}

impl Completions {
    /// The script.
    pub fn script(&self) -> String {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "napkin", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}
