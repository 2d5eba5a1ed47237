//! Steps that are made to be measured, on random tokens.

use std::time::{Duration, Instant};

use nn::step::Precision;
use nn::{ModelSpec, Training};
use plan::hardware;
use plan::reconcile::{Ceilings, Measured};
use tensor::{Device, Runtime};
use units::{BytesPerSecond, Diagnostic, FlopPerSecond};

use super::recorder::{Recorder, Stage};
use crate::bench::{Bandwidth, Peak, random_tokens};
use crate::run::{Predicted, Settings, parameter_count, program};

/// Measures a step in two programs, one after the other: one whose allocator keeps what tensors free, as in training,
/// for work, time and the process; and one in which each tensor has memory of its own, so that the witness of the heap
/// sees them one by one.
///
/// # Errors
/// Sizes the model does not allow; memory that the system does not have.
pub fn measure(
    spec: &ModelSpec,
    settings: &Settings,
    predicted: &Predicted,
    timed_steps: usize,
    ceilings: Ceilings,
) -> tensor::Result<Measured> {
    let stages = [Stage::Warm, Stage::Work].into_iter().chain(std::iter::repeat_n(Stage::Time, timed_steps));
    let in_training = steps(spec, settings, stages, Some(ceilings), |runtime| {
        runtime.expect_bytes(predicted.peak_bytes.get());
    })?;
    let apart = steps(spec, settings, [Stage::Warm, Stage::Heap], None, |runtime| runtime.set_caching(false))?;
    Ok(Measured { heap: apart.heap, ..in_training })
}

fn steps(
    spec: &ModelSpec,
    settings: &Settings,
    stages: impl IntoIterator<Item = Stage>,
    ceilings: Option<Ceilings>,
    prepare: impl FnOnce(&Runtime),
) -> tensor::Result<Measured> {
    let stages: Vec<Stage> = stages.into_iter().collect();
    let count = stages.len();
    let mut recorder = Recorder::new(stages);
    let runtime = Runtime::with_seed(Device::Cpu, settings.seed);
    runtime.set_recording(false);
    prepare(&runtime);
    let mut training = Training::new(&runtime, spec, &settings.training)?;
    recorder.built(&runtime, parameter_count(&training));
    for _ in 0..count {
        runtime.reset_peak();
        recorder.begin(&runtime);
        let begun = Instant::now();
        let mut seed = 0;
        let pair = || {
            seed += 2;
            let make = |seed| random_tokens(&runtime, settings.batch, settings.seq_len, spec.vocab_size, seed);
            Ok::<_, tensor::Error>((make(seed)?, make(seed + 1)?))
        };
        let done = program::step(&mut training, settings.training.hyper.lr, pair, |_| Ok(()))?;
        recorder.end(&runtime, begun.elapsed(), Duration::ZERO, done.skipped.is_none());
    }
    Ok(recorder.finish(&runtime, ceilings))
}

/// What this machine can do at most on so many threads, measured; `peak` instead of the measured one of the products.
///
/// # Errors
/// A bandwidth that is no positive number.
pub fn ceilings(threads: usize, precision: Precision, peak: Option<FlopPerSecond>) -> Result<Ceilings, Diagnostic> {
    let measured = Peak::measure(threads);
    let rate = |precision| FlopPerSecond::new(measured.rate_or_fp32(precision));
    let wrong = |error: units::RangeError| Diagnostic::error("", error.to_string());
    let products = hardware::Precision::of(precision.matmul_dtype());
    Ok(Ceilings {
        fp32: rate(hardware::Precision::Fp32).map_err(wrong)?,
        products: peak.map_or_else(|| rate(products), Ok).map_err(wrong)?,
        bandwidth: BytesPerSecond::new(Bandwidth::measure(threads).rate()).map_err(wrong)?,
        threads: threads as u64,
    })
}
