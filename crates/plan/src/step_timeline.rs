//! The bytes of each bucket over one step of the steady state.

use tensor::meter::{MemoryChange, OpEvent};
use tensor::{DType, Role};
use units::Bytes;

use crate::hardware::{Hardware, Precision};
use crate::ledger::{Ledger, Request, peak_words, place, steady, stretch};
use crate::model::{Model, Patterns};
use crate::report::{Axis, BUCKETS, Sample, Slice, StepTimeline, Stretch};
use crate::timeline::Device;

/// Buckets from the bottom of a chart to its top: what stays first, what comes and goes last.
const ORDER: [&str; BUCKETS] = [
    "runtime",
    "parameters",
    "buffers",
    "optimizer_states",
    "gradients",
    "inputs",
    "communication",
    "weight_casts",
    "activations",
    "recomputed_activations",
    "logits_and_loss",
    "temporaries",
];

/// Replays the last step, at whose beginning a device holds what this one does.
pub fn of(model: &Model, mut device: Device<'_>, ledger: &Ledger, request: &Request<'_>) -> StepTimeline {
    let trace = device.trace();
    let names = &model.spec.names;
    let phases = steady(&ledger.phases);
    let marks = &trace.marks[phases.clone()];
    let (Some(first), Some(last)) = (marks.first(), trace.marks.get(phases.end)) else {
        // A trace that ends before the optimizer has no step whose end is marked.
        return StepTimeline::default();
    };
    let (first_op, end_op) = (first.op as usize, last.op as usize);
    let number = |name: &str| ORDER.iter().position(|one| *one == name).unwrap_or(BUCKETS - 1);
    // By module and role, since there are many more storages than modules.
    let patterns = Patterns::of(trace);
    let places = patterns.distinct().iter().map(|path| Role::ALL.map(|role| number(place(role, path, names).0)));
    let places: Vec<_> = places.collect();
    let bucket = |role: Role, storage: usize| places[patterns.number(trace.storages[storage].module)][role as usize];
    let (communication, gradients) = (number("communication"), number("gradients"));
    let mut bytes = [0; BUCKETS];
    bytes[number("runtime")] = request.runtime.get();
    for (storage, (role, live)) in device.live().iter().enumerate().filter_map(|(i, held)| Some((i, (*held)?))) {
        bytes[bucket(role, storage)] += live;
    }
    let mut samples = Vec::new();
    // What an allocation finds gathered stays until the next one, as in the timeline.
    let mut around = (0, 0);
    let mut update = marks.iter().find(|mark| mark.name.starts_with("opt"));
    let mut ended = Vec::with_capacity(marks.len());
    for at in first.memory as usize..last.memory as usize {
        let event = trace.memory[at];
        while marks.get(ended.len() + 1).is_some_and(|next| next.memory as usize <= at) {
            ended.push(samples.len().checked_sub(1));
        }
        let storage = event.storage.0 as usize;
        if let Some(mark) = update.take_if(|mark| mark.memory as usize <= at) {
            // Nothing is gathered for the update, which may allocate nothing that would say so.
            around = (0, 0);
            samples.push(Sample { op: mark.op, bytes });
        }
        if let Some((role, live)) = device.live()[storage] {
            bytes[bucket(role, storage)] -= live;
        }
        device.apply(at);
        if let Some((role, live)) = device.live()[storage] {
            bytes[bucket(role, storage)] += live;
        }
        if matches!(event.change, MemoryChange::Alloc(_)) {
            around = device.communication(event.op as usize);
        }
        let mut bytes = bytes;
        bytes[communication] += around.0;
        bytes[gradients] += around.1;
        samples.push(Sample { op: event.op, bytes });
    }
    if let Some(mark) = update {
        samples.push(Sample { op: mark.op, bytes });
    }
    let mut is_used = [false; BUCKETS];
    for sample in &samples {
        for (used, bytes) in is_used.iter_mut().zip(sample.bytes) {
            *used |= bytes > 0;
        }
    }
    let used: Vec<usize> = (0..BUCKETS).filter(|&i| is_used[i]).collect();
    for sample in &mut samples {
        let all = sample.bytes;
        *sample = Sample::new(sample.op, &[]);
        for (bytes, &i) in sample.bytes.iter_mut().zip(&used) {
            *bytes = all[i];
        }
    }
    let peak = (0..samples.len()).max_by_key(|&i| (samples[i].total(), std::cmp::Reverse(i))).unwrap_or(0);
    let pace = request.hardware.and_then(|hardware| pace(hardware, request.options.precision.matmul_dtype()));
    let mut now = 0.0;
    let slices: Vec<Slice> = trace.ops[first_op..end_op]
        .iter()
        .map(|event| {
            let start = now;
            now += pace.map_or(1.0, |pace| pace.seconds(event));
            Slice {
                name: event.op.name(),
                module: event.module.0,
                phase: event.phase.name(),
                start,
                end: now,
                flop: event.cost.matmul + event.cost.recomputed,
                traffic: event.cost.traffic().get(),
            }
        })
        .collect();
    let at = |op: u32| slices.get((op as usize).saturating_sub(first_op)).map_or(now, |slice| slice.start);
    ended.resize(marks.len(), samples.len().checked_sub(1));
    let ends = marks.iter().skip(1).chain([last]).zip(ended);
    let stretches = marks.iter().zip(ends).map(|(mark, (next, last_sample))| Stretch {
        name: stretch(&mark.name).to_owned(),
        start: at(mark.op),
        end: at(next.op),
        last_sample,
    });
    StepTimeline {
        axis: if pace.is_some() { Axis::Seconds } else { Axis::Ops },
        buckets: used.iter().map(|&i| ORDER[i].replace('_', " ")).collect(),
        stretches: stretches.collect(),
        first_op: first.op,
        samples,
        peak,
        peak_at: peak_words(ledger, trace),
        capacity: request.hardware.map(Hardware::capacity).map(Bytes::get),
        slices,
        modules: trace.modules.clone(),
    }
}

/// The rates of a device.
#[derive(Clone, Copy)]
struct Pace {
    flop: f64,
    bytes: f64,
}

fn pace(hardware: &Hardware, dtype: DType) -> Option<Pace> {
    Some(Pace { flop: hardware.peak(Precision::of(dtype))?.rate.get(), bytes: hardware.bandwidth().get() })
}

impl Pace {
    /// The roofline: arithmetic or bytes, whichever takes longer.
    fn seconds(self, event: &OpEvent) -> f64 {
        let flop = (event.cost.matmul + event.cost.recomputed) as f64;
        (flop / self.flop).max(event.cost.traffic().get() as f64 / self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharding::Sharding;
    use nn::blocks::Blocks;
    use nn::step::{Precision, StepOptions, Until};
    use nn::{Objective, Offload, Profile, Recompute};
    use tensor::CastLists;

    /// The last moment of a stretch has what its phase of the ledger leaves, not what the next one begins with.
    #[test]
    fn stretches_end_where_their_phases_do() {
        let (name, text) = crate::presets::find("gpt2").unwrap();
        let set = [("n_layer".to_owned(), "2".to_owned())];
        let model = Model::from_text(name, name, text.as_bytes(), &set, None).unwrap();
        for (profile, grad_accum_steps) in [(Profile::Fused, 1), (Profile::HfEager, 2)] {
            let options = StepOptions {
                batch: 2,
                seq_len: 64,
                profile,
                precision: Precision::Bf16Mixed,
                optimizer: "adamw".parse().unwrap(),
                recompute: Recompute::None,
                grad_accum_steps,
                autocast: CastLists::Cuda,
                steps: 2,
                warm: false,
                dropout: false,
                objective: Objective::DEFAULT,
                offload: Offload::NONE,
                in_backward: false,
                until: Until::Optimizer,
            };
            let request = Request {
                options,
                sharding: Sharding::default(),
                hardware: None,
                runtime: Bytes::ZERO,
                runtime_given: true,
                paged: false,
                process: None,
                depth: 1,
                timeline: true,
            };
            let traced = model.trace(&options).unwrap();
            let names = &model.spec.names;
            let empty = Device::new(&traced, &options, request.sharding, Blocks::of(names));
            let (ledger, begins) = Ledger::on(empty, names, request.runtime);
            let timeline = of(&model, begins, &ledger, &request);
            let phases = &ledger.phases[steady(&ledger.phases)];
            // The last phase ends with the step.
            assert_eq!(timeline.stretches.len(), phases.len());
            for (stretch, phase) in timeline.stretches.iter().zip(phases) {
                let sample = &timeline.samples[stretch.last_sample.unwrap()];
                assert_eq!(sample.total(), phase.end_by_role.iter().sum::<u64>(), "{} {}", stretch.name, phase.name);
            }
        }
    }
}
