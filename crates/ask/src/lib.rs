//! Questions as people put them: the words of a command line to the request of an analysis, and its answer.
//!
//! The program, the page and the Python package ask in the same words, so that they cannot differ in what they understand:
//! [`answer`] is what `napkin WORDS` prints. Files come through [`Files`], so that nothing here touches a disk.
//!
//! ```
//! let words = ["time", "dense:70B", "--tokens", "15T", "--hw", "h100-sxm", "-n", "1024", "--mfu", "0.5"];
//! let report = napkin_ask::answer(&words.map(str::to_owned), &napkin_ask::Given::default()).unwrap();
//! assert_eq!(report.schema(), "napkin.time/1");
//! ```
//!
//! | file | noun |
//! |---|---|
//! | `args.rs` | flags of devices and runs |
//! | `model_args.rs`, `step.rs` | flags of models, steps and layouts |
//! | `parse.rs` | flags to typed values, all problems at once |
//! | `files.rs` | where named files come from |
//! | `config.rs` | where a config comes from: file, folder, preset, standard input |
//! | `hardware.rs` | where a device comes from: the table, or a file |
//! | `text.rs` | messages and logs: as they are, or in a file |
//! | `commands/NAME.rs` | one question: its flags, and the analysis it asks |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod args;
pub mod commands;
pub mod config;
mod files;
pub mod hardware;
pub mod layout_args;
pub mod model_args;
pub mod parse;
pub mod step;
pub mod text;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use plan::report::{Origin, Report};
use units::{Diagnostic, Diagnostics};

pub use commands::Question;
pub use files::{Files, Given};

/// How much of an answer is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Levels of a tree.
    pub depth: Option<u8>,
    /// Whether a step is told moment by moment.
    pub timeline: bool,
}

/// A question alone, with nothing said of where its answer goes.
#[derive(Debug, Parser)]
#[command(name = "napkin", disable_version_flag = true, disable_help_subcommand = true)]
struct Asked {
    #[command(subcommand)]
    question: Question,
    /// Levels of a tree
    #[arg(long, value_name = "N", global = true)]
    depth: Option<u8>,
}

/// What `napkin WORDS` answers; the words are those behind the name of the program.
///
/// # Errors
/// All that is wrong with the question.
pub fn answer(words: &[String], files: &dyn Files) -> Result<Report, Diagnostics> {
    let command = with_negative_numbers(Asked::command());
    let all = std::iter::once("napkin").chain(words.iter().map(String::as_str));
    let matches = command.clone().try_get_matches_from(all).map_err(|error| usage(&error))?;
    let asked = Asked::from_arg_matches(&matches).map_err(|error| usage(&error))?;
    let view = View { depth: asked.depth, timeline: false };
    let mut report = asked.question.report(files, view)?;
    report.command = parse::command_line(words);
    mark_given(&mut report, &command, &matches);
    Ok(report)
}

/// Lets a negative number be a value, which is then refused by what the flag takes instead of as a flag of its own.
pub fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: clap::Arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}

/// Says of each choice the report rests on whether the user made it: an analysis only knows that somebody did.
pub fn mark_given(report: &mut Report, command: &clap::Command, matches: &ArgMatches) {
    let Some((name, matches)) = matches.subcommand() else { return };
    let Some(command) = command.find_subcommand(name) else { return };
    let given = |flag: &str| {
        let named = command.get_arguments().find(|arg| arg.get_long().is_some_and(|long| flag == format!("--{long}")));
        named.is_some_and(|arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine))
    };
    for assumption in report.assumptions.iter_mut().filter(|one| one.from == Origin::Default && given(one.flag)) {
        assumption.from = Origin::Given;
    }
}

/// A mistake in the flags, in the form of all other problems.
pub fn usage(error: &clap::Error) -> Diagnostics {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    // clap's own advice follows its message.
    let (message, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    if error.kind() == ErrorKind::InvalidUtf8 {
        return Diagnostic::error("", message).help("rename the file, or hand it over: napkin params - < FILE").into();
    }
    let advice = rest.lines().map(str::trim);
    let advice = advice.filter(|line| !line.is_empty() && !line.starts_with("Usage:") && !line.starts_with("For more"));
    let problem = advice
        .fold(Diagnostic::error("", message), |problem, line| problem.help(line.strip_prefix("tip: ").unwrap_or(line)));
    problem.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_config_that_is_handed_over_is_answered_as_the_preset_it_is() {
        let (_, text) = plan::presets::find("qwen3-0.6b").unwrap();
        let files = Given([("mine.json".to_owned(), text.as_bytes().to_vec())].into());
        let of = |name: &str| answer(&words(&format!("params {name}")), &files).unwrap().result;
        assert_eq!(of("mine.json"), of("qwen3-0.6b"));
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let problems = answer(&words("plan nothing --hw gpu --zero 9"), &Given::default()).unwrap_err();
        assert_eq!(problems.iter().filter(|problem| problem.is_error()).count(), 3, "{problems:?}");
        let problems = answer(&words("paln gpt2"), &Given::default()).unwrap_err();
        assert!(problems.iter().any(|problem| problem.message.contains("paln")), "{problems:?}");
    }

    #[test]
    fn the_command_and_what_was_given_are_told() {
        let report = answer(&words("ledger gpt2 --batch 2"), &Given::default()).unwrap();
        assert_eq!(report.command, "napkin ledger gpt2 --batch 2");
        let batch = report.assumptions.iter().find(|one| one.flag == "--batch").unwrap();
        assert_eq!(batch.from, Origin::Given);
    }
}
