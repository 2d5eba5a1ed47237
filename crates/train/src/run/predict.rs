//! What the meta device says of a run before it is made: the same program, without data.

use super::program;
use super::settings::Settings;
use nn::{ModelSpec, Training, TrainingOptions};
use tensor::{DType, Device, Phase, Result, Runtime, Trace};
use units::{Bytes, Flops, Params};

/// A prediction.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// Parameters, those shared by several modules once.
    pub parameters: Params,
    /// Highest bytes allocated in a steady step.
    pub peak_bytes: Bytes,
    /// Model FLOP of one optimizer step, causal pairs.
    pub model_flop: Flops,
    /// FLOP that the hardware does in it: with what is done again.
    pub hardware_flop: Flops,
    /// The steady step's recording.
    pub trace: Trace,
}

/// Micro-batches that stand for all: the first finds no gradients, the second adds to them as all later ones do.
const MICRO_BATCHES: u64 = 2;

/// Traces the second step of a run, the first in which the optimizer has its states.
///
/// Of many micro-batches only the first two are traced; FLOP are those of all.
///
/// # Errors
/// Sizes that cannot be counted, or a sequence longer than the model's learned positions.
pub fn predict(spec: &ModelSpec, settings: &Settings) -> Result<Predicted> {
    trace(spec, settings, settings.training.grad_accum_steps.min(MICRO_BATCHES))
}

/// [`predict`] with every micro-batch in its trace.
///
/// # Errors
/// As [`predict`].
pub fn predict_whole(spec: &ModelSpec, settings: &Settings) -> Result<Predicted> {
    trace(spec, settings, settings.training.grad_accum_steps)
}

fn trace(spec: &ModelSpec, settings: &Settings, micro_batches: u64) -> Result<Predicted> {
    let runtime = Runtime::with_seed(Device::Meta, settings.seed);
    runtime.set_recording(false);
    let training = TrainingOptions { grad_accum_steps: micro_batches, ..settings.training };
    let mut training = Training::new(&runtime, spec, &training)?;
    // Its learning rate is one of the run: where nothing decays, no op does.
    let lr = settings.schedule.lr(2);
    let mut one = || {
        let make = || runtime.tensor_with(&[settings.batch, settings.seq_len], DType::I64, Vec::new);
        program::step(&mut training, lr, || Ok::<_, tensor::Error>((make()?, make()?)), |_| Ok(()))
    };
    one()?;
    runtime.reset_peak();
    runtime.set_recording(true);
    one()?;
    let peak = runtime.peak_bytes();
    let trace = runtime.take_trace();
    let of_all = |flop: u128| flop / u128::from(micro_batches.max(1)) * u128::from(settings.training.grad_accum_steps);
    let model = trace.cost(|e| matches!(e.phase, Phase::Forward | Phase::Backward));
    let batches = trace.cost(|e| e.phase != Phase::Optimizer);
    let update = trace.cost(|e| e.phase == Phase::Optimizer);
    Ok(Predicted {
        parameters: Params(super::parameter_count(&training)),
        peak_bytes: Bytes(peak),
        model_flop: Flops(of_all(model.matmul)),
        hardware_flop: Flops(of_all(batches.matmul + batches.recomputed) + update.matmul + update.recomputed),
        trace,
    })
}
