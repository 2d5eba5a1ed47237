//! Flags as they are typed. Values stay text here: `parse` reads them all and reports all that is wrong at once.

use clap::{Args, Parser, ValueEnum};
use plan::time::Pace;
use tensor::cpu::Threads;
use units::{Diagnostic, Diagnostics, Mfu, Tokens};

use crate::commands::Command;
use crate::parse::{Reader, days, dollars, some};

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
    /// Write to a file instead; its extension (.txt .md .csv .json .html .trace.json) is the format
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

/// Which devices, and how many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Hardware")]
pub struct DeviceArgs {
    /// Accelerator, or a file such as `napkin bench --save` writes; `napkin hw` lists them
    #[arg(long, value_name = "NAME")]
    pub hw: Option<String>,
    /// How many devices [default: 1]
    #[arg(short = 'n', long, value_name = "N")]
    pub devices: Option<String>,
}

impl DeviceArgs {
    /// As many devices as are data-parallel, where only that is said.
    pub fn at_least(&self, dp: Option<&String>) -> Self {
        let devices = self.devices.clone().or_else(|| dp.filter(|text| some(text).is_ok()).cloned());
        Self { devices, ..self.clone() }
    }
}

/// Which devices, how many, in which arithmetic.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Hardware")]
pub struct FleetArgs {
    /// Which devices, and how many
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Arithmetic of the matrix multiplications: bf16, fp16, fp8, tf32, fp32, ... [default: bf16]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<String>,
    /// Dense peak of one device instead of the table's, such as 500TFLOP/s
    #[arg(long, value_name = "RATE")]
    pub peak: Option<String>,
}

impl FleetArgs {
    /// As many devices as are data-parallel, where only that is said.
    pub fn at_least(&self, dp: Option<&String>) -> Self {
        Self { device: self.device.at_least(dp), ..self.clone() }
    }
}

/// How many threads kernels run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ThreadsArgs {
    /// Threads [default: one per core]
    #[arg(long, short = 'j', value_name = "N")]
    pub threads: Option<String>,
}

impl ThreadsArgs {
    /// The threads.
    ///
    /// # Errors
    /// A number that is none; threads that the system does not start.
    pub fn pool(&self) -> Result<Threads, Diagnostics> {
        let mut read = Reader::default();
        let threads = read.flag_with("--threads", self.threads.as_deref(), some).unwrap_or(0);
        read.finish(Some(()))?;
        Ok(Threads::new(threads as usize).map_err(|error| Diagnostic::error("", error.to_string()))?)
    }
}

/// The run, whose time is asked.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    /// Tokens to train on
    #[arg(long, value_name = "N")]
    pub tokens: Option<String>,
    /// Model FLOP utilization, such as 0.4 or 40% [default: a range, 0.3 to 0.5]
    #[arg(long, value_name = "SHARE", conflicts_with = "days")]
    pub mfu: Option<String>,
    /// Time there is, in days: asks which MFU it takes
    #[arg(long, value_name = "N")]
    pub days: Option<String>,
    /// US dollars for one device and hour
    #[arg(long, value_name = "USD")]
    pub price: Option<String>,
}

/// What [`RunArgs`] say.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub tokens: Option<Tokens>,
    pub pace: Pace,
    /// US dollars for one device and hour.
    pub price: Option<f64>,
}

impl RunArgs {
    /// Reads them.
    pub fn read(&self, read: &mut Reader) -> Run {
        let tokens = read.flag::<Tokens>("--tokens", self.tokens.as_deref());
        let mfu = read.flag::<Mfu>("--mfu", self.mfu.as_deref());
        let deadline = read.flag_with("--days", self.days.as_deref(), days);
        let price = read.flag_with("--price", self.price.as_deref(), dollars);
        let pace = match (mfu, deadline) {
            (Some(mfu), _) => Pace::Mfu(mfu),
            (None, Some(time)) => Pace::Deadline(time),
            (None, None) => Pace::Unknown,
        };
        Run { tokens, pace, price }
    }
}
