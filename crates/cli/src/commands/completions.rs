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

/// The flags of a command as a section of the page of the program, without those that every command has.
fn options(command: &clap::Command) -> std::io::Result<String> {
    let own = command.clone().mut_args(|arg| {
        let hidden = arg.is_global_set() || arg.get_long() == Some("help") || arg.get_long() == Some("version");
        if hidden { arg.hide(true) } else { arg }
    });
    let mut flags = Vec::new();
    Man::new(own).render_options_section(&mut flags)?;
    let flags = String::from_utf8_lossy(&flags).replace(".SH ", ".SS ");
    let (name, about) = (command.get_name().to_uppercase(), command.get_about().map(ToString::to_string));
    // The preamble of a page stands at its head.
    let flags = flags.split_once(".SS ").map_or_else(String::new, |(_, flags)| format!(".SS {flags}"));
    Ok(format!(".SH NAPKIN {name}\n{}\n{flags}", about.unwrap_or_default()))
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
        let unwritten = |error: std::io::Error| Diagnostic::error("", error.to_string());
        let mut page = Vec::new();
        Man::new(command.clone()).render(&mut page).map_err(unwritten)?;
        let mut page = String::from_utf8_lossy(&page).into_owned();
        for one in command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help") {
            page += &options(one).map_err(unwritten)?;
        }
        Ok(page)
    }
}
