//! The program `napkin`: flags to requests, reports to streams. It holds no logic of its own.
//!
//! | file | noun |
//! |---|---|
//! | `args.rs` | how to answer |
//! | `commands/NAME.rs` | one subcommand that needs this machine; the others are the crate `ask`'s |
//! | `local.rs` | flags of a step that is really made here |
//! | `disk.rs` | files, for who asks |
//! | `output.rs` | reports to a stream or a file |
//! | `progress.rs` | a run as it goes on |
//!
//! Exit codes: 0 answered, 1 answered "no", 2 bad input, 3 internal error.

mod args;
mod commands;
mod disk;
mod local;
mod output;
mod progress;

use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use mimalloc::MiMalloc;
use plan::report::Verdict;
use train::probe::heap::{self, Counting};
use units::Diagnostic;

use args::Cli;
use output::Failure;

/// mimalloc, for traces are many small vectors; and a witness of the heap: `train` and `reconcile` ask it what the engine's own
/// books cannot prove.
#[global_allocator]
static HEAP: Counting<MiMalloc> = Counting(MiMalloc);

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
    if arguments.iter().any(|word| word == "train" || word == "reconcile") {
        heap::count();
    }
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

fn run(arguments: &[OsString]) -> Result<Verdict, Failure> {
    let parsed = ask::with_negative_numbers(Cli::command()).try_get_matches_from(arguments);
    let (cli, matches) = match parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches))) {
        Ok(parsed) => parsed,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return output::print(&error.render().to_string()).map(|()| Verdict::Answered);
        }
        Err(error) => return Err(ask::usage(&error).into()),
    };
    if let Some((text, warnings)) = cli.command.text(&cli.output)? {
        if !warnings.is_empty() {
            output::problems(&warnings, false);
        }
        return output::print(&text).map(|()| Verdict::Answered);
    }
    let files: &[String] = if cli.command.makes_a_file() { &[] } else { &cli.output.output };
    let sink = output::Sink::new(&cli.output, files, cli.command.shows())?;
    let mut report = cli.command.report(&cli.output)?;
    let words: Vec<String> = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    ask::told(&mut report, &words, &cli.command.implied(), &Cli::command(), &matches);
    sink.write(&report)
}
