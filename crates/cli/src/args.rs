//! Flags as they are typed. Values stay text here: `parse` reads them all and reports all that is wrong at once.

use clap::{Args, Parser, ValueEnum};

use crate::commands::Command;

/// The resource accountant for language-model training.
#[derive(Debug, Parser)]
#[command(name = "napkin", version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    /// The question.
    #[command(subcommand)]
    pub command: Command,
    /// How to answer.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Powers in which memory is printed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum UnitsArg {
    /// GiB, 2^30 bytes
    #[default]
    Iec,
    /// GB, 10^9 bytes
    Si,
}

/// When to print in colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorArg {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How to answer; the same for every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Write to a file instead; its extension (.txt .md .csv .json .html .svg .trace.json) is the format
    #[arg(short, long, value_name = "FILE", global = true)]
    pub output: Vec<String>,
    /// Overwrite an existing file
    #[arg(long, global = true)]
    pub force: bool,
    /// Print the first line only
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print each formula with its values and source
    #[arg(long, global = true)]
    pub explain: bool,
    /// Levels of a tree to print
    #[arg(long, value_name = "N", global = true)]
    pub depth: Option<u8>,
    /// GiB (iec) or GB (si)
    #[arg(long, value_enum, default_value_t, global = true)]
    pub units: UnitsArg,
    /// Colour
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", global = true)]
    pub color: ColorArg,
    /// Print no characters beyond ASCII
    #[arg(long, global = true)]
    pub ascii: bool,
}
