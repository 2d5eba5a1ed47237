//! Forms of the loss that must not change a number, and preference optimisation against its formula.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::families;
use napkin_nn::loss::loss;
use napkin_nn::optim::Hyper;
use napkin_nn::spec::{Lora, ModelSpec, Tuning};
use napkin_nn::step::{self, Precision, StepOptions, Until};
use napkin_nn::training::{Training, TrainingOptions};
use napkin_nn::{Forward, HeadLoss, Labels, Model, Objective, Profile, Recompute, Reference};
use tensor::meter::MemoryChange;
use tensor::ops::create::{Create, Fill};
use tensor::{CastLists, DType, Device, Op, Phase, Runtime, Tensor};

fn spec(family: &str) -> ModelSpec {
    let text = match family {
        "llama" => include_bytes!("data/tiny/llama.json").as_slice(),
        "bert" => include_bytes!("data/tiny/bert.json").as_slice(),
        _ => include_bytes!("data/tiny/gemma2.json").as_slice(),
    };
    let (config, _) = Config::parse("tiny.json", text);
    families::load(&config.unwrap(), None).unwrap().spec
}

const TOKENS: [f64; 12] = [1.0, 5.0, 2.0, 7.0, 3.0, 4.0, 8.0, 0.0, 6.0, 2.0, 9.0, 1.0];

/// Loss and all gradients of a form of the loss.
fn gradients(spec: &ModelSpec, profile: Profile, labels: bool, head: HeadLoss) -> (f64, Vec<(String, Vec<f64>)>) {
    let rt = Runtime::with_seed(Device::Cpu, 3);
    let model = Model::build(&rt, spec, DType::F32).unwrap();
    let tokens = rt.tensor(&TOKENS, &[2, 6], DType::I64).unwrap();
    let mut some = TOKENS;
    some[4] = -100.0;
    let given = rt.tensor(&some, &[2, 6], DType::I64).unwrap();
    let labels = if labels { Labels::Tokens(&given) } else { Labels::Targets(&given) };
    let mut f = Forward::new(&rt, profile, Recompute::None, 2, 6);
    f.training = false;
    let loss = loss(&f, &model, &tokens, labels, head).unwrap();
    let value = loss.item().unwrap();
    loss.backward().unwrap();
    let of = |p: &napkin_nn::Param| (p.name.clone(), p.tensor.grad().unwrap().to_vec().unwrap());
    (value, model.params().iter().map(of).collect())
}

#[test]
fn every_form_of_the_loss_has_the_same_gradients() {
    for family in ["llama", "gemma2"] {
        let spec = spec(family);
        for profile in [Profile::Fused, Profile::HfEager] {
            for labels in [true, false] {
                let (value, right) = gradients(&spec, profile, labels, HeadLoss::Whole);
                let mut forms =
                    vec![HeadLoss::Parallel, HeadLoss::Chunked(1), HeadLoss::Chunked(5), HeadLoss::Chunked(100)];
                forms.extend(spec.has_plain_head().then_some(HeadLoss::Fused));
                for form in forms {
                    let (is, gradients) = gradients(&spec, profile, labels, form);
                    assert!((is / value - 1.0).abs() < 1e-6, "{family} {profile} {form}: {is} is not {value}");
                    for ((name, is), (_, right)) in gradients.iter().zip(&right) {
                        for (is, right) in is.iter().zip(right) {
                            assert!((is - right).abs() <= 1e-6 + 1e-4 * right.abs(), "{family} {form} {name}");
                        }
                    }
                }
            }
        }
    }
}

fn options(profile: Profile, precision: Precision, objective: Objective) -> StepOptions {
    StepOptions {
        batch: 2,
        seq_len: 6,
        profile,
        precision,
        optimizer: "adamw".parse().unwrap(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cuda,
        steps: 2,
        warm: false,
        dropout: true,
        objective,
        offload: napkin_nn::Offload::NONE,
        in_backward: false,
        until: Until::Optimizer,
    }
}

fn objectives() -> Vec<Objective> {
    let heads = [HeadLoss::Chunked(3), HeadLoss::Fused, HeadLoss::Parallel]
        .map(|head| Objective { head, ..Objective::DEFAULT });
    let preferences = [Reference::Model, Reference::Base, Reference::Stored]
        .map(|reference| Objective { preference: Some(reference), ..Objective::DEFAULT });
    heads.into_iter().chain(preferences).collect()
}

#[test]
fn meta_and_cpu_record_the_same_trace() {
    let lora = Lora { dropout: 0.1, ..Lora::of_rank(2) };
    let spec = ModelSpec { tuning: Tuning { lora: Some(lora), ..Tuning::default() }, ..spec("llama") };
    for objective in objectives() {
        for profile in [Profile::Fused, Profile::HfSdpa, Profile::HfEager] {
            for precision in [Precision::Fp32, Precision::Bf16Mixed, Precision::Bf16Pure] {
                let options = options(profile, precision, objective);
                let [meta, cpu] = [Device::Meta, Device::Cpu].map(|device| {
                    let runtime = Runtime::new(device);
                    let mut trace = step::run(&runtime, &spec, &options).unwrap().trace;
                    assert_eq!(runtime.live_bytes(), 0, "{objective:?}");
                    for event in &mut trace.ops {
                        if let Op::Create(Create { fill: Fill::Data(data), .. }) = &mut event.ran_mut().op {
                            *data = None;
                        }
                    }
                    trace
                });
                assert_eq!(meta.ops, cpu.ops, "{objective:?} {profile} {precision}");
                assert_eq!(meta.memory, cpu.memory, "{objective:?} {profile} {precision}");
            }
        }
    }
}

/// Largest storages made in the module of the head, in the step after the first.
fn largest(objective: Objective, profile: Profile) -> (u64, u128) {
    let spec = spec("llama");
    let mut options = options(profile, Precision::Fp32, objective);
    (options.batch, options.seq_len) = (8, 64);
    let trace = step::trace(&spec, &options).unwrap().trace;
    let sizes = trace.memory.iter().filter(|e| matches!(e.change, MemoryChange::Alloc(_)));
    let activations = sizes.filter(|e| trace.ops.get(e.op as usize).is_some_and(|op| op.phase != Phase::Optimizer));
    let vocabulary = |bytes: &u64| bytes.is_multiple_of(spec.vocab_size * 4);
    let bytes = activations.map(|e| trace.storages[e.storage.0 as usize].bytes).filter(vocabulary);
    let rows = |bytes: u64| bytes / (spec.vocab_size * 4);
    // Tables of the vocabulary have as many rows as the model is wide, logits as many as there are tokens.
    let logits = bytes.filter(|b| rows(*b) != spec.hidden_size).max().unwrap_or(0);
    (rows(logits), trace.cost(|e| e.phase != Phase::Recompute).matmul)
}

/// memory-03: the loss in chunks of already made logits helps nothing; the head in chunks does.
#[test]
fn the_head_in_chunks_makes_no_large_logits() {
    for profile in [Profile::Fused, Profile::HfSdpa] {
        let (whole, work) = largest(Objective::DEFAULT, profile);
        assert_eq!(whole, 8 * 64, "{profile}");
        let (part, same) = largest(Objective { head: HeadLoss::Chunked(8), ..Objective::DEFAULT }, profile);
        assert_eq!((part, same), (64, work), "{profile}");
        let (none, same) = largest(Objective { head: HeadLoss::Fused, ..Objective::DEFAULT }, profile);
        assert!(none < 8 * 64 && same == work, "{profile}: {none} rows, {same} is not {work}");
    }
}

/// Where the reference takes the loss of logits in their own dtype, it does so of parts of the tokens too.
#[test]
fn parts_of_the_tokens_are_raised_no_more_than_all() {
    let raised = |family: &str, head| {
        let spec = spec(family);
        let options = options(Profile::HfEager, Precision::Bf16Pure, Objective { head, ..Objective::DEFAULT });
        let trace = step::trace(&spec, &options).unwrap().trace;
        let logits = |event: &&tensor::meter::OpEvent| {
            let wide = |t: &tensor::meter::TensorRef| {
                t.dtype == DType::F32 && t.layout.shape().last() == Some(&spec.vocab_size)
            };
            matches!(event.op, Op::Cast(_)) && event.phase == Phase::Forward && event.outputs.iter().any(wide)
        };
        trace.ops.iter().any(|event| logits(&event))
    };
    for head in [HeadLoss::Whole, HeadLoss::Chunked(3)] {
        assert!(!raised("bert", head), "{head}");
        assert!(raised("llama", head), "{head}");
    }
}

/// A batch of preferences counts pairs, of which each is two sequences.
#[test]
fn a_pair_is_two_sequences() {
    let spec = spec("llama");
    let work = |batch, objective| {
        let options = StepOptions { batch, ..options(Profile::Fused, Precision::Fp32, objective) };
        let matmul = step::trace(&spec, &options).unwrap().trace.cost(|_| true).matmul;
        (options.sequences(), options.tokens(), matmul)
    };
    let stored = Objective { preference: Some(Reference::Stored), ..Objective::DEFAULT };
    assert_eq!(work(3, stored), work(6, Objective::DEFAULT));
}

/// At the start the trained model is its reference: the loss is ln 2, whatever the batch. Then it falls, and only what is
/// trained has moved.
#[test]
fn preferences_begin_at_ln_2_and_are_learned() {
    let lora = Lora::of_rank(2);
    let tuned = Tuning { lora: Some(lora), ..Tuning::default() };
    for (reference, tuning) in [(Reference::Base, tuned), (Reference::Stored, Tuning::default())] {
        for profile in [Profile::Fused, Profile::HfEager] {
            let spec = ModelSpec { tuning: tuning.clone(), ..spec("llama") };
            let rt = Runtime::with_seed(Device::Cpu, 5);
            let options = TrainingOptions {
                profile,
                precision: Precision::Fp32,
                optimizer: "adamw".parse().unwrap(),
                hyper: Hyper::default(),
                recompute: Recompute::None,
                grad_accum_steps: 1,
                autocast: CastLists::Cpu,
                dropout: false,
                clip_norm: None,
                objective: Objective { preference: Some(reference), ..Objective::DEFAULT },
                stochastic_rounding: false,
            };
            let mut training = Training::new(&rt, &spec, &options).unwrap();
            let tokens = rt.tensor(&TOKENS, &[2, 6], DType::I64).unwrap();
            let mut losses = Vec::new();
            for _ in 0..6 {
                let loss = training.forward(&tokens, Labels::Tokens(&tokens)).unwrap();
                losses.push(loss.item().unwrap());
                training.backward(loss, 1.0).unwrap();
                training.update(0.01).unwrap();
            }
            if reference == Reference::Base {
                assert!((losses[0] - std::f64::consts::LN_2).abs() < 1e-6, "{losses:?}");
            } else {
                assert!((losses[0] - by_hand(&rt, &spec, profile, &tokens)).abs() < 1e-5, "{losses:?}");
            }
            assert!(losses[5] < losses[0] - 0.05, "{losses:?}");
        }
    }
}

/// `-ln σ(0.1 (ln p(chosen) - ln p(rejected)))` from the logits of a model of the same seed.
fn by_hand(_: &Runtime, spec: &ModelSpec, profile: Profile, tokens: &Tensor) -> f64 {
    let rt = Runtime::with_seed(Device::Cpu, 5);
    let model = Model::build(&rt, spec, DType::F32).unwrap();
    let tokens = rt.tensor(&tokens.to_vec().unwrap(), &[2, 6], DType::I64).unwrap();
    let mut f = Forward::new(&rt, profile, Recompute::None, 2, 6);
    f.training = false;
    let logits = model.forward(&f, &tokens).unwrap().to_vec().unwrap();
    let v = spec.vocab_size as usize;
    let mut total = [0.0; 2];
    for (sequence, total) in total.iter_mut().enumerate() {
        for position in 0..5 {
            let row = &logits[(sequence * 6 + position) * v..][..v];
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            *total += row[TOKENS[sequence * 6 + position + 1] as usize] - sum.ln();
        }
    }
    (1.0 + (-0.1 * (total[0] - total[1])).exp()).ln()
}
