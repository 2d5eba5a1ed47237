//! `napkin bench`, `napkin bench step MODEL`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use plan::hardware::{self, Hardware};
use plan::phrase;
use plan::report::Report;
use tensor::DType;
use train::bench::{self, Machine, Peak, Request, StepRequest};
use train::probe;
use units::{Diagnostic, Diagnostics};

use crate::disk::DISK;
use crate::local::LocalStepArgs;
use crate::output;
use ask::parse::{Reader, positive, rate, some};

/// The peak of this processor, its memory bandwidth, and matrix products held against them.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    /// What to measure instead of the machine
    #[command(subcommand)]
    pub what: Option<What>,
    /// Types of the matrices [default: f32,bf16,f16]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtype: Vec<String>,
    /// Rows of the square matrices: a list, or a range of powers of two [default: 512..4096]
    #[arg(long, value_name = "SIZES")]
    pub sizes: Option<String>,
    /// Numbers of threads [default: 1 and one per core]
    #[arg(long, short = 'j', value_name = "LIST", value_delimiter = ',')]
    pub threads: Vec<String>,
    /// Peak in fp32 of all cores instead of the measured one, such as 230GFLOP/s; other types keep their ratio to it
    #[arg(long, value_name = "RATE")]
    pub peak: Option<String>,
    /// Seconds after which no further product is begun [default: 45]
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<String>,
    /// Write this machine as a hardware file, for --hw FILE
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

/// What else can be measured.
#[derive(Clone, Debug, Subcommand)]
pub enum What {
    /// Whole training steps on random tokens
    Step(Box<Step>),
}

/// Whole training steps on random tokens.
#[derive(Clone, Debug, Args)]
pub struct Step {
    /// A config.json, its folder or a preset [default: gpt2]
    pub model: Option<String>,
    /// The step.
    #[command(flatten)]
    pub local: LocalStepArgs,
}

impl Bench {
    /// Measures.
    pub fn report(&self, force: bool, quiet: bool) -> Result<Report, Diagnostics> {
        match &self.what {
            Some(What::Step(step)) => step.report(quiet),
            None => self.machine(force, quiet),
        }
    }

    fn machine(&self, force: bool, quiet: bool) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let request = self.request(&mut read);
        if let Some(path) = &self.save {
            check_file(&mut read, path, force);
        }
        let request = read.finish(Some(request))?;
        let spinner = spinner(quiet);
        let machine = bench::run(&request, &mut |next| spinner.set_message(next.to_owned()));
        spinner.finish_and_clear();
        let machine = machine?;
        let mut report = machine.report();
        if let Some(path) = &self.save {
            save(&machine, path, force)?;
            report.notes.push(phrase![format!("saved as {0}: napkin plan MODEL --hw {0}", path.display())]);
        } else {
            report.notes.push(phrase!["--save cpu.toml writes this machine as a hardware file, for --hw cpu.toml"]);
        }
        Ok(report)
    }

    fn request(&self, read: &mut Reader<'_>) -> Request {
        let all = probe::cpu::threads();
        let mut dtypes = read.flags("--dtype", &self.dtype, dtype);
        if dtypes.is_empty() {
            dtypes = vec![DType::F32, DType::BF16, DType::F16];
        }
        let mut threads: Vec<usize> =
            read.flags("--threads", &self.threads, some).into_iter().map(|count| count as usize).collect();
        if threads.is_empty() {
            threads = if all > 1 { vec![1, all] } else { vec![1] };
        }
        Request {
            sizes: read
                .flag_with("--sizes", self.sizes.as_deref(), sizes)
                .unwrap_or_else(|| vec![512, 1024, 2048, 4096]),
            dtypes,
            threads,
            peak: read.flag_with("--peak", self.peak.as_deref(), rate),
            seconds: read.flag_with("--seconds", self.seconds.as_deref(), positive).unwrap_or(45.0),
        }
    }
}

impl Step {
    fn report(&self, quiet: bool) -> Result<Report, Diagnostics> {
        let pool = self.local.threads.pool()?;
        pool.run(|| self.report_of(pool.count(), quiet))
    }

    fn report_of(&self, threads: usize, quiet: bool) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let model = self.local.model(&mut read, self.model.as_deref().unwrap_or("gpt2"));
        let (steps, settings) = self.local.read(&mut read, model.as_ref());
        let peak = read.flag_with("--peak", self.local.peak.as_deref(), rate);
        let model = read.finish(model)?;

        let spinner = spinner(quiet);
        spinner.set_message("peak of this processor");
        let arithmetic = hardware::Precision::of(settings.training.precision.matmul_dtype());
        let peak = peak.map_or_else(|| Peak::measure(threads).rate_or_fp32(arithmetic), units::FlopPerSecond::get);
        spinner.set_message(format!("{} steps of {}", steps + 1, model.name));
        let request = StepRequest { model: &model, settings, threads, steps: steps as usize, peak };
        let measured = request.run();
        spinner.finish_and_clear();
        let (steps, predicted) = measured?;
        Ok(request.report(&steps, &predicted))
    }
}

/// Tells what is being measured, where somebody watches.
pub(super) fn spinner(quiet: bool) -> ProgressBar {
    let spinner = if quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    spinner.enable_steady_tick(std::time::Duration::from_millis(250));
    spinner
}

/// A type that products are measured in.
fn dtype(text: &str) -> Result<DType, Diagnostic> {
    match text.parse() {
        Ok(hardware::Precision::Fp32) => Ok(DType::F32),
        Ok(hardware::Precision::Bf16) => Ok(DType::BF16),
        Ok(hardware::Precision::Fp16) => Ok(DType::F16),
        _ => Err(Diagnostic::error("", format!("products are not measured in `{text}`")).help("f32, bf16 or f16")),
    }
}

/// `512..4096` or `512,768,1024`.
fn sizes(text: &str) -> Result<Vec<u64>, Diagnostic> {
    const LARGEST: u64 = 1 << 15;
    let sizes: Vec<u64> = match text.split_once("..") {
        Some((low, high)) => {
            let (low, high) = (some(low)?, some(high.trim_start_matches('='))?);
            std::iter::successors(Some(low), |n| n.checked_mul(2)).take_while(|n| *n <= high).collect()
        }
        None => text.split(',').map(some).collect::<Result<_, _>>()?,
    };
    if sizes.is_empty() || sizes.iter().any(|n| *n > LARGEST) {
        let message = format!("`{text}` names no sizes up to {LARGEST}");
        return Err(Diagnostic::error("", message).help("--sizes 512..4096").help("--sizes 512,768,1024"));
    }
    Ok(sizes)
}

/// Looks before the work is done whether its result can be written.
fn check_file(read: &mut Reader<'_>, path: &Path, force: bool) {
    if path.extension().is_none_or(|extension| extension != "toml") {
        let message = format!("--save: `{}` does not end in .toml", path.display());
        read.problem(Diagnostic::error("", message).help("--save cpu.toml"));
    } else if path.exists() && !force {
        read.problem(output::exists(path));
    }
}

fn save(machine: &Machine, path: &Path, force: bool) -> Result<(), Diagnostic> {
    let hardware: Hardware = machine.hardware(&probe::date::month())?;
    let text = hardware::to_toml(&hardware).expect("a processor has a file");
    output::save(path, &text, force)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_lists_or_powers_of_two() {
        assert_eq!(sizes("512..4096").ok(), Some(vec![512, 1024, 2048, 4096]));
        assert_eq!(sizes("96..=400").ok(), Some(vec![96, 192, 384]));
        assert_eq!(sizes("100,1k").ok(), Some(vec![100, 1000]));
        assert_eq!(sizes("64").ok(), Some(vec![64]));
        for wrong in ["", "0", "64..", "64..32", "1..1000000", "x"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn types_are_those_that_products_have() {
        assert_eq!(
            ["fp32", "bf16", "half"].map(|text| dtype(text).ok()),
            [Some(DType::F32), Some(DType::BF16), Some(DType::F16)]
        );
        assert!(dtype("int8").is_err() && dtype("f31").is_err());
    }
}
