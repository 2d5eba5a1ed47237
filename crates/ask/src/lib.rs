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
//! | `grammar.rs` | what can be asked |
//! | `text.rs` | messages and logs: as they are, or in a file |
//! | `commands/NAME.rs` | one question: its flags, and the analysis it asks |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod args;
pub mod commands;
pub mod config;
mod files;
mod grammar;
pub mod hardware;
pub mod layout_args;
pub mod model_args;
pub mod parse;
pub mod step;
pub mod text;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use plan::report::{Origin, Report};
use units::{Diagnostic, Diagnostics};

pub use commands::Question;
pub use files::{Files, Given};
pub use grammar::{Flag, Takes, questions};

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

thread_local! {
    /// The grammar of all questions: some hundreds of flags, which are set up once.
    static GRAMMAR: clap::Command = with_negative_numbers(Asked::command());
}

/// The grammar of a question alone, where `name` is one; else that of all.
fn grammar_of(name: Option<&String>) -> clap::Command {
    GRAMMAR.with(|all| match name.and_then(|name| all.find_subcommand(name)) {
        None => all.clone(),
        Some(question) => clap::Command::new("napkin")
            .disable_version_flag(true)
            .disable_help_subcommand(true)
            .subcommand_required(true)
            .args(all.get_arguments())
            .subcommand(question.clone()),
    })
}

/// What `napkin WORDS` answers; the words are those behind the name of the program.
///
/// # Errors
/// All that is wrong with the question.
pub fn answer(words: &[String], files: &dyn Files) -> Result<Report, Diagnostics> {
    let mut command = grammar_of(words.first());
    let all = std::iter::once("napkin").chain(words.iter().map(String::as_str));
    let matches = command.try_get_matches_from_mut(all).map_err(|error| usage(&error))?;
    let asked = Asked::from_arg_matches(&matches).map_err(|error| usage(&error))?;
    let view = View { depth: asked.depth, timeline: false };
    let mut report = asked.question.report(files, view)?;
    // Parts are asked again in the words of other questions.
    let command = if report.parts.is_empty() { command } else { GRAMMAR.with(Clone::clone) };
    told(&mut report, words, &asked.question.implied(), &command, &matches);
    Ok(report)
}

/// Lets a negative number be a value, which is then refused by what the flag takes instead of as a flag of its own.
pub fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: clap::Arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}

/// Says of a report and its parts how they are asked again, and of each choice whether the user made it; `implied` are flags that
/// the question takes for granted and its parts do not.
pub fn told(report: &mut Report, words: &[String], implied: &[String], command: &clap::Command, matches: &ArgMatches) {
    report.command = parse::command_line(words);
    mark_given(report, command, matches);
    if report.parts.is_empty() {
        return;
    }
    let mut built = command.clone();
    built.build();
    let whole = matches.subcommand_name().and_then(|name| built.find_subcommand(name));
    let all = [words, implied].concat();
    // A part that was asked in words of its own has been told.
    for part in report.parts.iter_mut().filter(|part| part.command.is_empty()) {
        mark_given(part, command, matches);
        let words = whole.zip(built.find_subcommand(part.kind)).map(|(whole, own)| again(whole, own, &all));
        part.command = words.unwrap_or_default();
    }
}

/// The question of a part in words: those of the whole, as far as the part has flags for them and they do not say where an
/// answer goes.
fn again(whole: &clap::Command, part: &clap::Command, words: &[String]) -> String {
    let named = |command: &clap::Command, word: &str| {
        let long = word.strip_prefix("--").map(|name| name.split('=').next().unwrap_or_default());
        let matches = |arg: &&clap::Arg| match long {
            Some(name) => arg.get_long() == Some(name) || arg.get_visible_aliases().unwrap_or_default().contains(&name),
            None => arg.get_short() == word.chars().nth(1),
        };
        command.get_arguments().find(matches).cloned()
    };
    let mut own = vec![part.get_name().to_owned()];
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        if !word.starts_with('-') || word == "-" {
            own.push(word.clone());
            continue;
        }
        let joined = word.contains('=') || (!word.starts_with("--") && word.len() > 2);
        let takes = !joined && named(whole, word).is_some_and(|arg| arg.get_action().takes_values());
        let value = if takes { words.next() } else { None };
        if named(part, word).is_some_and(|arg| !arg.is_global_set()) {
            own.extend(std::iter::once(word).chain(value).cloned());
        }
    }
    parse::command_line(&own)
}

/// Says of each choice the report rests on whether the user made it: an analysis only knows that somebody did.
fn mark_given(report: &mut Report, command: &clap::Command, matches: &ArgMatches) {
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

/// The flag that a command does not have.
fn unknown_flag(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(flag) => Some(flag.split('=').next().unwrap_or(flag)),
        _ => None,
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
    if let (ErrorKind::UnknownArgument, Some(flag)) = (error.kind(), unknown_flag(error)) {
        let others = grammar::having(flag);
        if !others.is_empty() {
            let problem = Diagnostic::error("", message);
            return others.into_iter().fold(problem, Diagnostic::help).into();
        }
    }
    let lines = || rest.lines().map(str::trim).filter(|line| !line.is_empty());
    // Nobody who mistypes a flag means a value that begins with a dash.
    let says = |line: &&str| ["Usage:", "For more", "tip: to pass"].iter().all(|start| !line.starts_with(start));
    let advice: Vec<&str> = lines().filter(says).map(|line| line.strip_prefix("tip: ").unwrap_or(line)).collect();
    let problem = advice.iter().fold(Diagnostic::error("", message), |problem, line| problem.help(*line));
    if !advice.is_empty() {
        return problem.into();
    }
    let command = lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or_default();
    let command: Vec<&str> = command.split(' ').take_while(|word| word.starts_with(char::is_lowercase)).collect();
    problem.help(format!("{} --help lists what it takes", command.join(" "))).into()
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

    /// Each question once, with whether its answer has something to draw.
    #[test]
    fn what_is_said_to_be_drawn_is_drawn() {
        let rows = [
            ("plan gpt2 --hw h100-sxm", true),
            ("report gpt2 --hw h100-sxm", true),
            ("params gpt2", false),
            ("flops gpt2", true),
            ("ledger gpt2", true),
            ("layout gpt2 -n 8 --tp 4", false),
            ("layout gpt2 --hw h100-sxm -n 8 --gbs 8 --most-micro-batch 1 --top 1", true),
            ("recompute gpt2", false),
            ("time dense:7B --tokens 1T --hw h100-sxm", true),
            ("afford --budget 5000=device-days --hw h100-sxm --deadline 14d", false),
            ("fit dense:7B --hw h100-sxm --states-only", false),
            ("infer gpt2", false),
            ("mfu --matmul 8192x8192x8192 --seconds 0.002 --hw h100-sxm", false),
            ("compare gpt2 --vary recompute=none,full", false),
            ("dtype 0.1", true),
            ("dtype --table", false),
            ("einsum bs,sd->bd b=2 s=2 d=2", false),
            ("models", false),
            ("hw h100-sxm", false),
            ("explain 6nd", false),
            ("explain-oom 786MiB", false),
        ];
        for one in questions() {
            assert!(rows.iter().any(|(line, _)| line.split(' ').next() == Some(&one.name)), "{}", one.name);
        }
        for (line, drawn) in rows {
            // A space inside of a word.
            let words: Vec<String> = words(line).into_iter().map(|word| word.replace("5000=", "5000 ")).collect();
            let all = std::iter::once("napkin").chain(words.iter().map(String::as_str));
            let question = Asked::try_parse_from(all).unwrap().question;
            assert_eq!(question.draws(), drawn, "{line}");
            let report = answer(&words, &Given::default()).unwrap_or_else(|problems| panic!("{line}: {problems}"));
            assert_eq!(!report.charts.is_empty(), drawn, "{line}");
        }
    }

    #[test]
    fn a_flag_of_another_command_is_said_to_be_there() {
        for (line, says) in [
            ("plan llama-3.1-8b --hw h100-sxm --tp 4", "napkin layout MODEL --tp N"),
            ("ledger llama-3.1-8b --pp 4", "napkin layout MODEL --pp N"),
            ("plan llama-3.1-8b --sp", "napkin layout MODEL --sp"),
            ("plan llama-3.1-8b --cp=2", "napkin layout MODEL --cp N"),
            ("ledger llama-3.1-8b --states-only", "napkin fit MODEL --states-only"),
            ("ledger llama-3.1-8b --zreo 3", "--zero"),
        ] {
            let problems = answer(&words(line), &Given::default()).unwrap_err().to_string();
            assert!(problems.contains(says) && !problems.contains("--output"), "{line}: {problems}");
        }
    }

    /// Formula, values and source of what each answer says.
    #[test]
    fn answers_are_explained() {
        for (line, formulas) in [
            ("layout gpt2 --hw h100-sxm -n 8 --dp 8", &["traced-bytes", "device", "step", "mfu"][..]),
            ("layout gpt2 --hw h100-sxm -n 8 --gbs 8 --most-micro-batch 1", &["traced-bytes", "device", "step", "mfu"]),
            ("recompute gpt2 --hw h100-sxm", &["traced-bytes", "again"]),
            ("recompute gpt2", &["traced-bytes", "again"]),
            ("explain-oom 786MiB", &["logits"]),
            ("explain-oom 785.27MiB gpt2 --batch 4 --profile hf-eager", &["traced-bytes", "logits"]),
            (
                "afford --budget 64xh100-sxmxforx14xdays",
                &["compute", "device-hours", "optimal-parameters", "optimal-ratio", "optimal-tokens"],
            ),
            ("afford gpt2 --tokens 10B --deadline 1d", &["devices", "time"]),
            (
                "afford gpt2 --tokens 1B --hw h100-sxm --budget 9xdevice-days --gbs 64",
                &["device", "step", "mfu", "steps"],
            ),
        ] {
            let words: Vec<String> =
                words(line)
                    .into_iter()
                    .map(|word| {
                        if word.ends_with("days") {
                            word.replace('x', " ").replace("h100-s m", "h100-sxm")
                        } else {
                            word
                        }
                    })
                    .collect();
            let report = answer(&words, &Given::default()).unwrap_or_else(|problems| panic!("{line}: {problems}"));
            for formula in formulas {
                let derivation = report.derivations.iter().find(|one| one.formula == *formula);
                let derivation = derivation.unwrap_or_else(|| panic!("{line}: no {formula}"));
                assert!(!derivation.substituted.is_empty() && !derivation.source.is_empty(), "{line}: {formula}");
            }
        }
    }

    /// With the sequences of a step, parts of a layout that are given hold and the rest is looked for.
    #[test]
    fn parts_of_a_layout_hold_in_a_search() {
        let line = "layout gpt2 --hw h100-sxm -n 8 --gbs 16 --most-micro-batch 2 --top 3 --json";
        let of = |more: &str| {
            let line = format!("{} {more}", line.trim_end_matches(" --json"));
            answer(&words(line.trim_end()), &Given::default()).unwrap_or_else(|problems| panic!("{more}: {problems}"))
        };
        let tried = |report: &Report| match report.result.get("tried") {
            Some(plan::report::Value::Uint(count)) => *count,
            other => panic!("{other:?}"),
        };
        let all = of("");
        let each = ["--tp 1", "--tp 2", "--tp 4"].map(|flag| tried(&of(flag)));
        assert_eq!(each.iter().sum::<u128>(), tried(&all));
        for (flags, says) in [
            ("--tp 2", "tp 2"),
            ("--pp 2 --schedule 1f1b", "pp 2"),
            ("--zero 3 --micro-batch 1 --recompute full", "zero 3 · micro-batch 1 × 2 · recompute full"),
            ("--dp 4 --grad-accum 2", "dp 4"),
            ("--offload activations", "activations on the host"),
        ] {
            let report = of(flags);
            let shown = format!("{:?}", report.headline.answer);
            assert!(shown.contains(says), "{flags}: {shown}");
            assert!(tried(&report) < tried(&all), "{flags}");
        }
        for (flags, says) in [
            ("--tp 5", "tp 5 does not divide 12 attention heads"),
            ("--tp 3", "8 devices are no multiple of the 3"),
            ("--pp 8 --dp 2", "8 devices are no multiple of the 16"),
            ("--ep 2", "the model has no experts"),
            ("--shard 2", "--shard changes nothing"),
            ("--pp 2 --schedule gpipe", "cannot run schedule gpipe"),
            ("--micro-batch 5", "no layout of 16 sequences"),
        ] {
            let line = format!("{} {flags}", line.trim_end_matches(" --json"));
            let problems = answer(&words(&line), &Given::default()).unwrap_err().to_string();
            assert!(problems.contains(says), "{flags}: {problems}");
        }
        // Seven devices share no power of two.
        let odd = answer(&words("layout gpt2 --hw h100-sxm -n 7 --gbs 64 --top 1"), &Given::default()).unwrap();
        assert!(format!("{:?}", odd.notes).contains("--gbs 63 or --gbs 70"), "{:?}", odd.notes);
        assert!(!format!("{:?}", all.notes).contains("--gbs"), "{:?}", all.notes);
    }

    #[test]
    fn parts_are_asked_again_in_their_own_words() {
        let line = "report gpt2 --tokens 1B --hw a100-sxm-80gb -n 2 --batch 2 --zero 1 --mfu=0.4 --gbs 8";
        let report = answer(&words(line), &Given::default()).unwrap();
        let commands: Vec<&str> = report.parts.iter().map(|part| part.command.as_str()).collect();
        assert_eq!(
            commands,
            [
                "napkin ledger gpt2 --hw a100-sxm-80gb -n 2 --batch 2 --zero 1",
                "napkin flops gpt2 --batch 2",
                "napkin layout gpt2 --gbs=8 --hw=a100-sxm-80gb --devices=2",
            ]
        );
        // What `plan` takes for several devices where nothing is said is said to the ledger.
        let unsaid = answer(&words("report gpt2 --hw a100-sxm-80gb -n 2"), &Given::default()).unwrap();
        assert!(unsaid.parts[0].command.ends_with(" --zero=3"), "{}", unsaid.parts[0].command);
        for part in report.parts.iter().chain(&unsaid.parts) {
            let own = answer(&words(&part.command)[1..], &Given::default()).unwrap();
            assert_eq!(own.headline, part.headline, "{}", part.command);
        }
    }

    #[test]
    fn the_command_and_what_was_given_are_told() {
        let report = answer(&words("ledger gpt2 --batch 2"), &Given::default()).unwrap();
        assert_eq!(report.command, "napkin ledger gpt2 --batch 2");
        let batch = report.assumptions.iter().find(|one| one.flag == "--batch").unwrap();
        assert_eq!(batch.from, Origin::Given);
    }
}
