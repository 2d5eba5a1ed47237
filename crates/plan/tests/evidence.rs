//! Evidence from real runs: out-of-memory messages and step logs, with the answers that `shared/cases` says are right.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::explain;
use napkin_plan::fleet::Fleet;
use napkin_plan::hardware::{self, Precision as Arithmetic};
use napkin_plan::ledger::{self, Ledger};
use napkin_plan::log_mfu;
use napkin_plan::model::Model;
use napkin_plan::oom::Request;
use napkin_plan::oom::message::Message;
use napkin_plan::params::{Counts, parameters};
use napkin_plan::report::{Report, Value, Verdict};
use napkin_plan::sharding::Sharding;
use napkin_plan::states::ParameterBytes;
use napkin_plan::step_log;
use napkin_plan::work::Work;
use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::step::{Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use tensor::CastLists;
use units::{Bytes, Diagnostics, Flops};

/// memory-01: GPT-2-large with a gated feed-forward of 3392 and a padded vocabulary, biases and all but its learned positions.
const LARGE: &str = r#"{"model_type": "llama", "hidden_size": 1280, "num_attention_heads": 20, "num_key_value_heads": 20,
    "num_hidden_layers": 36, "intermediate_size": 3392, "vocab_size": 50304, "tie_word_embeddings": true, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 1024, "attention_bias": true, "mlp_bias": true}"#;

const OPTIONS: StepOptions = StepOptions {
    batch: 4,
    seq_len: 1024,
    grad_accum_steps: 1,
    profile: Profile::HfEager,
    precision: Precision::Bf16MasterFp32Grads,
    optimizer: OptimizerKind { kind: Kind::AdamW, implementation: Implementation::Fused },
    recompute: Recompute::None,
    autocast: CastLists::Cuda,
    steps: 2,
    warm: false,
    dropout: false,
    objective: nn::Objective::DEFAULT,
    offload: nn::Offload::NONE,
    in_backward: false,
    until: Until::Optimizer,
};

/// The message of the card of 31.74 GiB, in the words of the time.
const MESSAGE: &str = "RuntimeError: CUDA out of memory. Tried to allocate 786.00 MiB (GPU 0; 31.74 GiB total capacity; 29.71 GiB \
    already allocated; 255.25 MiB free; 30.36 GiB reserved in total by PyTorch)";

fn model(text: &str) -> Model {
    Model::from_text("case", "config.json", text.as_bytes(), &[], None).unwrap_or_else(|e| panic!("{e}"))
}

fn explained(text: &str, step: Option<(&Model, StepOptions)>) -> Report {
    let sharding = Sharding::new(0, 1);
    let step = step.map(|(model, options)| {
        let runtime = Bytes::ZERO;
        (
            model,
            ledger::Request {
                options,
                sharding,
                hardware: None,
                runtime,
                runtime_given: true,
                paged: false,
                process: None,
                depth: 1,
                timeline: false,
            },
        )
    });
    Request { message: Message::read(text).unwrap(), step }.report().unwrap_or_else(|e| panic!("{e}"))
}

fn list<'a>(report: &'a Report, name: &str) -> &'a [Value] {
    let Some(Value::List(items)) = report.result.get(name) else { panic!("no {name}") };
    items
}

fn uint(value: &Value, name: &str) -> u128 {
    value.get(name).and_then(Value::as_uint).unwrap_or_else(|| panic!("no {name} in {value:?}"))
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    let Some(Value::Text(text)) = value.get(name) else { panic!("no {name} in {value:?}") };
    text
}

fn num(report: &Report, name: &str) -> f64 {
    report.result.get(name).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {name}"))
}

/// memory-01: the 786.00 MiB are the fp32 logits, with the model and, as a guess, without.
#[test]
fn the_786_mib_are_the_logits() {
    let report = explained("Tried to allocate 786.00 MiB", Some((&model(LARGE), OPTIONS)));
    assert_eq!(report.verdict, Verdict::Answered);
    let first = &list(&report, "tensors")[0];
    assert_eq!((text(first, "name"), text(first, "dtype"), text(first, "phase")), ("logits", "f32", "forward"));
    assert_eq!(uint(first, "bytes"), 1024 * 4 * 50_304 * 4);
    let all = list(&report, "tensors");
    assert!(
        all.iter()
            .any(|tensor| text(tensor, "name") == "gradient of the logits" && text(tensor, "phase") == "backward")
    );
    let product = &list(&report, "products")[0];
    assert_eq!((text(product, "what"), uint(product, "tokens"), uint(product, "batch")), ("fp32 logits", 4096, 4));
    let guess = explained("786.00 MiB", None);
    assert!(
        list(&guess, "products")
            .iter()
            .any(|p| uint(p, "width") == 50_304 && uint(p, "tokens") == 4096 && uint(p, "element_bytes") == 4)
    );
}

/// memory-01: states of 14.4 GiB and activations of 20.0 GiB come to 34.4 GiB, with the logits beside them.
#[test]
fn what_did_not_fit_on_the_card() {
    let values = [("b", 4.0), ("s", 1024.0), ("h", 1280.0), ("a", 20.0)].map(|(name, value)| (name.to_owned(), value));
    let layer = explain::one("activations", &values).unwrap();
    let activations = 36.0 * layer.result.get("value").and_then(Value::as_f64).unwrap();
    let large = model(LARGE);
    // The case's model also has learned positions, and biases in its 36 · 2 + 1 norms.
    let parameters = Counts::of(&parameters(&large).unwrap()).stored.get() + 1024 * 1280 + (36 * 2 + 1) * 1280;
    assert_eq!(parameters, 771_201_024);
    // Weights and gradients in 16 bits beside those of training in 32.
    let each = ParameterBytes::of(Precision::Fp32, OPTIONS.optimizer.kind).unwrap();
    let states = (parameters * (each.total() + 4)) as f64;
    assert!((states / f64::from(1 << 30) - 14.4).abs() < 0.05, "{states}");
    let gib = (states + activations) / f64::from(1 << 30);
    assert!((gib / 34.4 - 1.0).abs() < 0.01, "{gib}");
    let report = explained(MESSAGE, Some((&large, OPTIONS)));
    // The traced step is that of transformers, whose explicit attention also keeps its softmax in 32 bits.
    assert!(num(&report, "peak_bytes") > num(&report, "budget_bytes"));
    // Fused attention or half the micro-batch are enough, as the case says.
    for flags in ["--profile hf-sdpa", "--batch 2 --grad-accum 2"] {
        let lever = list(&report, "levers").iter().find(|lever| text(lever, "flags") == flags).unwrap();
        assert_eq!(lever.get("enough"), Some(&Value::Bool(true)), "{lever:?}");
    }
    assert_eq!(report.result.get("fragmentation_holds_the_request"), Some(&Value::Bool(true)));
}

/// What a lever says is what the step with its flags takes, traced whole.
#[test]
fn levers_are_steps() {
    let model = model(LARGE);
    let report = explained(MESSAGE, Some((&model, OPTIONS)));
    let steady = StepOptions { steps: 1, warm: true, ..OPTIONS };
    let head = nn::HeadLoss::Chunked(8);
    let chunked = StepOptions { objective: nn::Objective { head, ..OPTIONS.objective }, ..steady };
    let offload = StepOptions { offload: nn::Offload { optimizer: true, ..OPTIONS.offload }, ..steady };
    let full = StepOptions { recompute: Recompute::Full, ..steady };
    for (flags, options) in
        [("--loss chunked:8", chunked), ("--offload optimizer", offload), ("--recompute full", full)]
    {
        let lever = list(&report, "levers").iter().find(|lever| text(lever, "flags") == flags).unwrap();
        let traced = model.trace(&options).unwrap();
        let right = Ledger::of(&traced, &options, Sharding::default(), &model.spec.names, Bytes::ZERO).peak_bytes;
        let about = uint(lever, "peak_bytes_about") as f64;
        assert!((about / right as f64 - 1.0).abs() < 0.005, "{flags}: {about} is not {right}");
        assert!(right < num(&report, "peak_bytes") as u64, "{flags}");
    }
}

/// memory-03: logits of all positions and of one piece, back to their tokens.
#[test]
fn tokens_of_large_vocabularies() {
    let with = |vocabulary: u64| {
        model(&LARGE.replace("50304", &vocabulary.to_string()).replace("1024,", "16384,").replace(": 36", ": 2"))
    };
    for (size, vocabulary, tokens) in
        [("10.73 GiB", 248_320, 11_600), ("4.64 GiB", 151_936, 8192), ("594.00 MiB", 151_936, 1024)]
    {
        let options = StepOptions { batch: 1, seq_len: 1024, ..OPTIONS };
        let report = explained(&format!("Tried to allocate {size}"), Some((&with(vocabulary), options)));
        let found = list(&report, "products")
            .iter()
            .find(|p| text(p, "what") == "fp32 logits")
            .unwrap_or_else(|| panic!("{size}"));
        assert_eq!((uint(found, "width"), uint(found, "tokens")), (u128::from(vocabulary), tokens), "{size}");
        let gib = uint(found, "bytes") as f64 / f64::from(1 << 30);
        let right: f64 = if size.ends_with("MiB") { 0.58 } else { size.split(' ').next().unwrap().parse().unwrap() };
        assert!((gib / right - 1.0).abs() < 0.005, "{size}: {gib}");
    }
}

/// Whatever tensor of a step is refused, its size leads back to it: in every implementation and phase.
#[test]
fn every_large_tensor_is_found_by_its_size() {
    let model = model(&LARGE.replace(": 36", ": 2"));
    for profile in [Profile::HfEager, Profile::HfSdpa, Profile::Fused] {
        let options = StepOptions { profile, ..OPTIONS };
        let traced = model.trace(&options).unwrap();
        let trace = &traced.trace;
        let mut sizes: Vec<u64> =
            trace.storages.iter().map(|storage| storage.bytes).filter(|bytes| *bytes >= 10 << 20).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.len() > 3);
        for bytes in sizes {
            // As the allocator prints it: the segment, in two decimals.
            let segment = napkin_plan::allocator::segment(bytes) as f64 / f64::from(1 << 20);
            let printed =
                if segment >= 1024.0 { format!("{:.2} GiB", segment / 1024.0) } else { format!("{segment:.2} MiB") };
            let report = explained(&format!("Tried to allocate {printed}."), Some((&model, options)));
            let found = list(&report, "tensors").iter().any(|tensor| uint(tensor, "bytes") == u128::from(bytes));
            assert!(found, "{profile}: {bytes} as {printed}");
        }
    }
}

/// A block as FSDP gathers it: 4 · 1280² + 3 · 1280 · 3392 weights, 4 · 1280 + 2 · 3392 + 1280 biases, 2 · 1280 of norms.
#[test]
fn a_gathered_block_is_one_buffer() {
    let model = model(LARGE);
    let block: u64 = 4 * 1280 * 1280 + 3 * 1280 * 3392 + 4 * 1280 + 2 * 3392 + 1280 + 2 * 1280;
    // 37.37 MiB in 16 bits, in a segment of 38 MiB.
    let report = explained("Tried to allocate 38.00 MiB", Some((&model, OPTIONS)));
    let buffers = list(&report, "buffers");
    assert_eq!(buffers.len(), 1, "{buffers:?}");
    assert_eq!((text(&buffers[0], "what"), uint(&buffers[0], "elements")), ("one block", u128::from(block)));
    assert_eq!(uint(&buffers[0], "bytes"), u128::from(2 * block));
}

/// Live bytes of the message choose between tensors of one size: the gradient of the logits is made when more is live.
#[test]
fn live_bytes_tell_equal_sizes_apart() {
    let model = model(&LARGE.replace(": 36", ": 4"));
    let plain = explained("Tried to allocate 786.00 MiB", Some((&model, OPTIONS)));
    for tensor in list(&plain, "tensors") {
        let live = uint(tensor, "live_bytes_before");
        let message = format!(
            "Tried to allocate 786.00 MiB. Of the allocated memory {live} bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
        );
        let report = explained(&message, Some((&model, OPTIONS)));
        assert_eq!(uint(&list(&report, "tensors")[0], "live_bytes_before"), live);
    }
}

/// A size that no tensor has is a no, and the implementation that has one is named.
#[test]
fn a_size_of_another_implementation() {
    let model = model(&LARGE.replace(": 36", ": 2"));
    let scores = 4 * 20 * 1024 * 1024 * 2;
    let message = format!("Tried to allocate {:.2} MiB", f64::from(scores) / f64::from(1 << 20));
    let eager = explained(&message, Some((&model, OPTIONS)));
    assert!(list(&eager, "tensors").iter().any(|tensor| text(tensor, "name").contains("attention scores")));
    let sdpa = explained(&message, Some((&model, StepOptions { profile: Profile::HfSdpa, ..OPTIONS })));
    assert_eq!((sdpa.verdict, list(&sdpa, "tensors").len()), (Verdict::No, 0));
    assert!(format!("{:?}", sdpa.blocks).contains("--profile hf-eager: attention scores"));
}

fn fleet(devices: u64) -> Fleet {
    Fleet {
        hardware: hardware::find("a100-sxm-40gb").unwrap().clone(),
        devices,
        devices_given: true,
        precision: Arithmetic::Bf16,
        precision_given: true,
    }
}

const LOG: &str = r#"{"step": 0, "dt_s": 3.9, "tokens": 61440, "note": "compile"}
{"step": 1, "dt_s": 0.52, "tokens": 61440, "note": ""}
{"step": 2, "dt_s": 0.5, "tokens": 61440, "note": ""}
{"step": 3, "dt_s": 0.51, "tokens": 61440, "note": ""}
{"step": 4, "dt_s": 0.5, "tokens": 61440, "note": ""}
{"step": 5, "dt_s": 0.49, "tokens": 61440, "note": ""}
{"step": 6, "dt_s": 2.9, "tokens": 61440, "note": "eval+checkpoint"}
{"step": 7, "dt_s": 0.5, "tokens": 61440, "note": ""}
"#;

fn logged(text: &str, devices: u64, per_device: bool, tokens_per_step: Option<f64>) -> Result<Report, Diagnostics> {
    let lines = step_log::read(text)?;
    let work = Some(Work::given(Flops(854_800_000)));
    log_mfu::Request { lines, work, tokens_per_step, fleet: fleet(devices), per_device }.report()
}

fn near(is: f64, right: f64, most: f64) {
    assert!((is - right).abs() <= most, "{is} is not {right}");
}

/// mfu-11: the median with and without pauses, all steps, and what was left out, on one device and on eight.
#[test]
fn a_log_with_pauses() {
    for (devices, per_device) in [(1, false), (8, true)] {
        let report = logged(LOG, devices, per_device, None).unwrap_or_else(|e| panic!("{e}"));
        near(num(&report, "median_step_seconds"), 0.505, 1e-9);
        near(num(&report, "mfu_at_median"), 0.333, 0.005);
        near(num(&report, "mfu_at_median_without_pauses"), 0.337, 0.005);
        near(num(&report, "mfu_over_all_steps"), 0.137, 0.005);
        assert_eq!(report.result.get("pauses"), Some(&Value::list([0_u64, 6])));
        let why: Vec<&str> = list(&report, "excluded").iter().map(|step| text(step, "why")).collect();
        assert_eq!(why, ["compile", "eval+checkpoint"]);
    }
}

/// Every number of the answer is at most the peak: few steps that are too fast hide behind the median, not behind the mean.
#[test]
fn a_mean_above_the_peak_is_refused() {
    let step = |i: usize, tokens: u64, dt: f64| format!("{{\"step\": {i}, \"dt_s\": {dt}, \"tokens\": {tokens}}}\n");
    let usual: String = (0..3).map(|i| step(i, 61_440, 0.5)).collect();
    let fast: String = (3..5).map(|i| step(i, 10_000_000, 1.0)).collect();
    assert!(logged(&usual, 1, false, None).is_ok());
    let problems = logged(&(usual + &fast), 1, false, None).unwrap_err().to_string();
    assert!(problems.contains("T0404") && problems.contains("cannot be"), "{problems}");
}

/// mfu-11: one GPU's tokens over the peak of eight, and those of eight over the peak of one.
#[test]
fn whose_tokens() {
    let eight = logged(LOG, 8, false, None).unwrap();
    near(num(&eight, "mfu"), 0.337 / 8.0, 0.001);
    near(num(&eight, "mfu_if_tokens_of_one_device"), 0.337, 0.005);
    assert!(eight.warnings.iter().any(|warning| warning.code == "T0423"));
    let all_over_one = logged(LOG, 1, false, Some(491_520.0)).unwrap_err().to_string();
    assert!(
        all_over_one.contains("cannot be")
            && all_over_one.contains("-n 8, if the tokens are those of a node of 8 devices"),
        "{all_over_one}"
    );
}

/// The same run under other names: lines of text, totals, rates, milliseconds, a clock.
#[test]
fn the_same_log_in_other_words() {
    let steps = [3.9, 0.52, 0.5, 0.51, 0.5, 0.49, 2.9, 0.5];
    let lines = |line: &dyn Fn(usize, f64) -> String| -> String {
        steps.iter().enumerate().map(|(i, dt)| line(i, *dt) + "\n").collect()
    };
    let totals = lines(&|i, dt| format!(r#"{{"iter": {i}, "tokens_seen": {}, "step_time": {dt}}}"#, 61_440 * (i + 1)));
    let millis =
        lines(&|i, dt| format!("iter {i}: loss 3.2, time {:.2}ms, 61440 tokens/step, tokens: 61440", dt * 1e3));
    let rates = lines(&|i, dt| format!("step {i} | loss 3.2 | tok/s {}", 61_440.0 / dt));
    for (name, text) in [("totals", totals), ("millis", millis), ("rates", rates)] {
        let report = logged(&text, 1, false, None).unwrap_or_else(|e| panic!("{name}: {e}"));
        near(num(&report, "mfu_at_median_without_pauses"), 0.337, 0.005);
        assert_eq!(report.result.get("pauses"), Some(&Value::list([0_u64, 6])), "{name}");
        if name != "rates" {
            near(num(&report, "mfu_over_all_steps"), 0.137, 0.005);
        }
    }
}

/// What a log does not say is asked for; what it counts itself is used.
#[test]
fn what_is_missing_is_asked_for() {
    let times = "{\"step\": 1, \"dt\": 0.5}\n";
    assert!(logged(times, 1, false, None).unwrap_err().to_string().contains("--tokens-per-step"));
    assert!(logged(times, 1, false, Some(61_440.0)).is_ok());
    let own = r#"{"step":1,"tokens":61440,"seconds":0.5,"flop":52518912000000,"mfu":0.5}"#;
    let request = |text: &str| log_mfu::Request {
        lines: step_log::read(text).unwrap(),
        work: None,
        tokens_per_step: None,
        fleet: fleet(1),
        per_device: false,
    };
    let report = request(own).report().unwrap();
    near(num(&report, "mfu"), 0.3367, 0.0005);
    // It printed half of the table's peak into its own number.
    assert!(format!("{:?}", report.blocks).contains("means a peak of"));
    assert!(request("step 1 tok/s 5000").report().unwrap_err().to_string().contains("--flops-per-token"));
}
