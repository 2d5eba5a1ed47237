//! The program `napkin`: flags to requests, reports to streams. It holds no logic of its own.
//!
//! | file | noun |
//! |---|---|
//! | `args.rs` | flags as they are typed |
//! | `parse.rs` | flags to typed values, all problems at once |
//! | `config.rs` | where a config comes from: file, folder, preset, standard input |
//! | `hardware.rs` | where a device comes from: the table, or a file |
//! | `step.rs` | flags of models, steps and layouts |
//! | `commands/NAME.rs` | one subcommand: its flags, and the analysis it asks |
//! | `output.rs` | reports to a stream or a file |
//! | `progress.rs` | a run as it goes on |
//! | `text.rs` | messages and logs: on the command line, in a file, on standard input |
//!
//! Exit codes: 0 answered, 1 answered "no", 2 bad input, 3 internal error.

mod args;
mod commands;
mod config;
mod hardware;
mod layout_args;
mod model_args;
mod output;
mod parse;
mod progress;
mod step;
mod text;

use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use plan::report::{Origin, Report, Verdict};
use units::{Diagnostic, Diagnostics};

use args::Cli;
use output::Failure;

/// A witness of the heap: `reconcile` asks it what the engine's own books cannot prove.
#[global_allocator]
static HEAP: train::probe::heap::Counting = train::probe::heap::Counting;

/// The question had an answer.
const ANSWERED: u8 = 0;
/// The answer is "no".
const NO: u8 = 1;
/// The question cannot be answered as it was put.
const BAD_INPUT: u8 = 2;
/// Napkin is wrong.
const INTERNAL: u8 = 3;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Asked of the raw words, because what is wrong may be the flags themselves.
    let wants_json = arguments.iter().any(|word| word == "--json");
    panic::set_hook(Box::new(|info| {
        let what = Diagnostic::error("", format!("napkin has failed: {info}"))
            .why("this is a mistake in napkin, not in what you asked")
            .help("report it, with the command line, at the project's issue tracker");
        output::problems(&what.into(), false);
    }));
    // Nothing is used after a panic but the exit code.
    let code = panic::catch_unwind(AssertUnwindSafe(|| run(&arguments))).unwrap_or(Err(Failure::Internal));
    ExitCode::from(match code {
        Ok(Verdict::No) => NO,
        // Who stops reading has had the answer.
        Ok(Verdict::Answered) | Err(Failure::BrokenPipe) => ANSWERED,
        Err(Failure::Internal) => INTERNAL,
        Err(Failure::Bad(problems)) => {
            output::problems(&problems, wants_json);
            BAD_INPUT
        }
    })
}

/// Lets a negative number be a value, which is then refused by what the flag takes instead of as a flag of its own.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: clap::Arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}

fn run(arguments: &[OsString]) -> Result<Verdict, Failure> {
    let parsed = with_negative_numbers(Cli::command()).try_get_matches_from(arguments);
    let (cli, matches) = match parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches))) {
        Ok(parsed) => parsed,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return output::print(&error.render().to_string()).map(|()| Verdict::Answered);
        }
        Err(error) => return Err(usage(&error).into()),
    };
    if let Some((text, warnings)) = cli.command.text(&cli.output)? {
        if !warnings.is_empty() {
            output::problems(&warnings, false);
        }
        return output::print(&text).map(|()| Verdict::Answered);
    }
    let files: &[String] = if cli.command.makes_a_file() { &[] } else { &cli.output.output };
    let sink = output::Sink::new(&cli.output, files)?;
    let mut report = cli.command.report(&cli.output)?;
    report.command = parse::command_line(arguments);
    mark_given(&mut report, &matches);
    sink.write(&report)
}

/// Says of each choice the report rests on whether the user made it: an analysis only knows that somebody did.
fn mark_given(report: &mut Report, matches: &ArgMatches) {
    let command = Cli::command();
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
fn usage(error: &clap::Error) -> Diagnostics {
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
