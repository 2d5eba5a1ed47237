//! `napkin completions SHELL`, `napkin man`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use units::Diagnostic;

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

/// The manual page of the program, or of one of its commands.
#[derive(Debug, Args)]
pub struct Manual {
    /// The command; none is the program itself
    pub command: Option<String>,
}

impl Manual {
    /// The page, as `man` reads it.
    ///
    /// # Errors
    /// No command of that name.
    pub fn page(&self) -> Result<String, Diagnostic> {
        let mut program = Cli::command();
        program.build();
        let command = match &self.command {
            None => program,
            Some(name) => {
                let found = program.find_subcommand(name).cloned();
                let names = program.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name);
                let near = plan::nearest::nearest(name, names).join(", ");
                found.ok_or_else(|| Diagnostic::error("", format!("`{name}` is no command")).help(near))?
            }
        };
        let mut page = Vec::new();
        Man::new(command).render(&mut page).map_err(|error| Diagnostic::error("", error.to_string()))?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }
}
