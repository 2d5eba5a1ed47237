//! What the meta device says of a run before it is made: the same program, without data.

use super::program;
use super::settings::Settings;
use nn::{ModelSpec, Training};
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

/// Traces the second step of a run, the first in which the optimizer has its states.
///
/// # Errors
/// Sizes that cannot be counted, or a sequence longer than the model's learned positions.
pub fn predict(spec: &ModelSpec, settings: &Settings) -> Result<Predicted> {
    let runtime = Runtime::with_seed(Device::Meta, settings.seed);
    runtime.set_recording(false);
    let mut training = Training::new(&runtime, spec, &settings.training)?;
    let mut one = || {
        let make = || runtime.tensor_with(&[settings.batch, settings.seq_len], DType::I64, Vec::new);
        program::step(&mut training, 0.0, || Ok::<_, tensor::Error>((make()?, make()?)), |_| Ok(()))
    };
    one()?;
    runtime.reset_peak();
    runtime.set_recording(true);
    one()?;
    let peak = runtime.peak_bytes();
    let trace = runtime.take_trace();
    let model = trace.cost(|e| matches!(e.phase, Phase::Forward | Phase::Backward));
    let all = trace.cost(|_| true);
    Ok(Predicted {
        parameters: Params(super::parameter_count(&training)),
        peak_bytes: Bytes(peak),
        model_flop: Flops(model.matmul),
        hardware_flop: Flops(all.matmul + all.recomputed),
        trace,
    })
}
