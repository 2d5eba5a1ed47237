//! A model as an input of analyses: what was read from the config, and traces of it.

use nn::config::{Config, Resolved};
use nn::families::{self, Loaded};
use nn::fp8;
use nn::objective::{HeadLoss, Reference};
use nn::spec::{FeedForwardSpec, LayerSpec, ModelSpec, SourceSpec};
use nn::step::{self, Checked, ParamInfo, Precision, StepOptions, StepTrace, Until};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use tensor::Trace;
use tensor::meter::{Mark, ModuleId};
use units::{Diagnostic, Diagnostics, group_digits};

use crate::quant;
use crate::report::{Assumption, Cell, Origin, Value};

/// A model with its name and the story of how its config was read.
#[derive(Clone, Debug)]
pub struct Model {
    /// What the user called it.
    pub name: String,
    /// What it is made of.
    pub spec: ModelSpec,
    /// Its config as JSON, with what the user changed.
    pub config: String,
    /// Values read, values assumed, warnings.
    pub resolved: Resolved,
    /// Notes of the reader of the file (which part of it is used).
    pub notes: Diagnostics,
}

impl Model {
    /// Reads the model a config describes.
    ///
    /// # Errors
    /// All problems of the config at once.
    pub fn from_config(name: impl Into<String>, config: &Config, assume: Option<&str>) -> Result<Self, Diagnostics> {
        let Loaded { spec, mut resolved, .. } = families::load(config, assume)?;
        if let Some(Ok(format)) = quant::stated(config) {
            // The reader of families does not know the formats of stored weights.
            for problem in resolved.diagnostics.0.iter_mut().filter(|problem| quant::is_of_stored(problem)) {
                let note = Diagnostic::note("T0325", format!("the checkpoint holds its weights as {}", format.name));
                let location = problem.location.take();
                *problem = location.into_iter().fold(note, Diagnostic::at).effect(
                    "counted as the precision of training holds them; `infer` counts what is stored, --quant frozen weights",
                );
            }
        }
        Ok(Self { name: name.into(), spec, config: config.root().to_string(), resolved, notes: Diagnostics::new() })
    }

    /// Reads the model from the text of a config.
    ///
    /// # Errors
    /// All problems of the text at once.
    pub fn from_text(
        name: impl Into<String>,
        file: &str,
        text: &[u8],
        overrides: &[(String, String)],
        assume: Option<&str>,
    ) -> Result<Self, Diagnostics> {
        let (config, mut notes) = Config::parse(file, text);
        let Some(config) = config else { return Err(notes) };
        let (config, more) = config.with_overrides(overrides);
        notes.extend(more);
        if notes.has_errors() {
            return Err(notes);
        }
        match Self::from_config(name, &config, assume) {
            Ok(mut model) => {
                model.notes = notes;
                Ok(model)
            }
            Err(problems) => {
                notes.extend(problems);
                Err(notes)
            }
        }
    }

    /// What to warn about: keys that are not understood, parts that are not modelled.
    pub fn warnings(&self) -> Vec<Diagnostic> {
        let holes = self.spec.not_modelled.iter().map(|what| {
            Diagnostic::warning("T0302", format!("not modelled: {what}"))
                .effect("the answer is that of the rest of the model")
        });
        self.notes.iter().chain(self.resolved.diagnostics.iter()).cloned().chain(holes).collect()
    }

    /// A warning where sequences are longer than the model is made for.
    pub fn length_warning(&self, seq_len: u64) -> Option<Diagnostic> {
        let most = group_digits(u128::from(self.spec.max_positions.filter(|most| *most < seq_len)?));
        let message = format!("--seq-len {seq_len} is beyond the {most} positions of the config");
        Some(Diagnostic::warning("T0303", message).effect("counted as if the model was made for them"))
    }

    /// The warnings of a step of it: [`warnings`](Self::warnings), and sizes that the model is not made for.
    pub fn step_warnings(&self, options: &StepOptions) -> Vec<Diagnostic> {
        let mut all = self.warnings();
        all.extend(self.length_warning(options.seq_len));
        all.extend(self.precision_warning(options.precision));
        all
    }

    /// What to warn about where it is trained in this precision.
    pub fn precision_warning(&self, precision: Precision) -> Option<Diagnostic> {
        let params = (precision == Precision::Fp8).then(|| step::parameters(&self.spec).unwrap_or_default())?;
        let none = !params.iter().any(|param| fp8::takes_part(param.kind, &param.shape));
        none.then(|| {
            let message = format!("no weight of a block has sizes that are multiples of {}", fp8::MULTIPLE);
            Diagnostic::warning("T0311", message).effect("nothing is in 8 bits: this is bf16-mixed")
        })
    }

    /// What the reader of the config assumed because a key was absent or null.
    pub fn assumptions(&self) -> Vec<Assumption> {
        let read = self.resolved.assumptions.iter().map(|a| {
            let value = Cell::Text(a.value.clone());
            Assumption::new("config", a.key.clone(), value, Origin::Default)
                .why(format!("not in the config: {}", a.why))
        });
        read.chain(self.input_assumptions()).chain(self.tuning_assumptions()).collect()
    }

    /// What a model reads that reads more than one text.
    fn input_assumptions(&self) -> Vec<Assumption> {
        let input = |key: &'static str, value: String, why: &'static str| {
            Assumption::new(key, key, Cell::Text(value), Origin::Default).why(why)
        };
        match (self.spec.source(), &self.spec.encoder) {
            (SourceSpec::Signal(signal), None) => {
                vec![input("input", signal.what.clone(), "one for each of the batch; --seq-len is its positions")]
            }
            (SourceSpec::Signal(signal), Some(_)) => {
                vec![input(
                    "input",
                    signal.what.clone(),
                    "what the encoder reads; --seq-len is the text of the decoder",
                )]
            }
            (SourceSpec::Tokens, Some(_)) => {
                vec![input("encoder", "seq_len".to_owned(), "encoder and decoder read --seq-len tokens each")]
            }
            (SourceSpec::Tokens, None) => {
                let count = |size: u64| format!("1 + (seq_len - 1) / {size}");
                let patches = self.spec.patches.as_ref().map(|patches| {
                    input(
                        "patches",
                        count(patches.size),
                        "of a text, rounded up; --set patch_size=N gives them N bytes",
                    )
                });
                patches.into_iter().collect()
            }
        }
    }

    /// What it is, for programs.
    pub fn inputs(&self) -> Value {
        let attention = self.spec.layers.iter().find_map(|layer| layer.attention());
        let inner = self.spec.layers.iter().find_map(|layer| intermediate_size(layer));
        Value::map()
            .with("name", self.name.as_str())
            .with("model_type", self.spec.family.as_str())
            .with("hidden_size", self.spec.hidden_size)
            .with("num_hidden_layers", self.spec.depth() as u64)
            .with("num_attention_heads", attention.map(|a| a.heads))
            .with("num_key_value_heads", attention.map(|a| a.kv_heads))
            .with("head_dim", attention.map(|a| a.head_dim))
            .with("intermediate_size", inner)
            .with("vocab_size", self.spec.vocab_size)
            .with("tuning", self.tuning_inputs())
    }

    /// Refuses what only a language model does: go on with a text, or train on plain tokens.
    ///
    /// # Errors
    /// `T0312` for an encoder, an encoder with a decoder, or a model of images or sounds.
    pub fn require_language_model(&self, doing: &str) -> Result<(), Diagnostics> {
        if self.spec.predicts_next_token() {
            return Ok(());
        }
        let message =
            format!("{doing}: `{}` is no model whose every position predicts the next token", self.spec.family);
        Err(Diagnostic::error("T0312", message)
            .why("an encoder, an encoder with a decoder, or a model of images or sounds reads something else")
            .help("params, flops, ledger, plan and time answer for it")
            .into())
    }

    /// Traces training steps of it. The last of them is kept: whoever asks about another device, or about another number of the
    /// same step, asks of the same trace.
    ///
    /// # Errors
    /// `T0305` for sizes that cannot be counted, or a sequence the model has no positions for.
    pub fn trace(&self, options: &StepOptions) -> Result<Rc<StepTrace>, Diagnostics> {
        let last = LAST.take();
        let last = match last {
            Some(last) if last.options == *options && last.spec == self.spec => last,
            last => {
                // Two of them are never held at once; where nobody holds the last one, the next takes its place.
                let before = last.and_then(|last| Some(last.checked?.with_step(Rc::try_unwrap(last.traced).ok())));
                let (traced, checked) = trace_again(&self.spec, options, before)?;
                Last { spec: self.spec.clone(), options: *options, traced: Rc::new(traced), checked }
            }
        };
        let traced = Rc::clone(&last.traced);
        LAST.set(Some(last));
        Ok(traced)
    }
}

/// A traced step, and what it is one of.
struct Last {
    spec: ModelSpec,
    options: StepOptions,
    traced: Rc<StepTrace>,
    /// What makes the next trace of the same program short.
    checked: Option<Checked>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Traces training steps of a model.
///
/// # Errors
/// `T0305` for sizes that cannot be counted, or a sequence the model has no positions for.
pub fn trace(spec: &ModelSpec, options: &StepOptions) -> Result<StepTrace, Diagnostics> {
    trace_again(spec, options, None).map(|(traced, _)| traced)
}

/// The same where a step was traced before.
fn trace_again(
    spec: &ModelSpec,
    options: &StepOptions,
    before: Option<Checked>,
) -> Result<(StepTrace, Option<Checked>), Diagnostics> {
    check(spec, options)?;
    let micro = StepOptions { grad_accum_steps: options.grad_accum_steps.min(MICRO_BATCHES), ..*options };
    let (mut traced, checked) = step::trace_again(spec, &micro, before).map_err(|error| {
        if let Err(problems) = parameters(spec) {
            return problems;
        }
        if !matches!(error, tensor::Error::TooLarge { .. }) {
            return Diagnostic::error("T0305", error.to_string()).into();
        }
        let help = format!("a smaller --batch (now {}) or --seq-len (now {})", options.batch, options.seq_len);
        Diagnostics::from(uncountable(&error).help(help))
    })?;
    // The last one stands for those that are not run: its costs are theirs too, so that all sums are those of the step.
    let times = repeats(options);
    for ops in last_micro_batches(&traced.trace, options) {
        for event in &mut traced.trace.ops[ops] {
            let cost = &mut event.ran_mut().cost;
            for part in [
                &mut cost.matmul,
                &mut cost.matmul_dense,
                &mut cost.recomputed,
                &mut cost.recomputed_dense,
                &mut cost.elementwise,
            ] {
                *part *= u128::from(times);
            }
            (cost.read, cost.written) = (cost.read.saturating_mul(times), cost.written.saturating_mul(times));
        }
    }
    Ok((traced, checked))
}

/// Most micro-batches of a step that are run: the first makes the gradients, each later one adds to them.
pub const MICRO_BATCHES: u64 = 3;

/// For how many micro-batches the last one of a trace stands.
pub const fn repeats(options: &StepOptions) -> u64 {
    if options.grad_accum_steps > MICRO_BATCHES { options.grad_accum_steps - MICRO_BATCHES + 1 } else { 1 }
}

/// The ops of micro-batches that stand for several, where some do.
pub fn last_micro_batches(trace: &Trace, options: &StepOptions) -> Vec<Range<usize>> {
    let last = format!(".{MICRO_BATCHES}");
    let stands = |mark: &Mark| repeats(options) > 1 && mark.name.ends_with(&last);
    let end = |i: usize| trace.marks.get(i + 1).map_or(trace.ops.len(), |next| next.op as usize);
    let marks = trace.marks.iter().enumerate().filter(|(_, mark)| stands(mark));
    marks.map(|(i, mark)| mark.op as usize..end(i)).collect()
}

/// The parameters of a model.
///
/// # Errors
/// `T0305` for sizes that cannot be counted.
pub fn parameters(spec: &ModelSpec) -> Result<Vec<ParamInfo>, Diagnostics> {
    step::parameters(spec).map_err(|error| uncountable(&error).help("correct the largest size of the config").into())
}

pub(crate) fn uncountable(error: &tensor::Error) -> Diagnostic {
    Diagnostic::error("T0305", error.to_string()).why("every byte is counted exactly, in 64 bits")
}

/// Longest sequence: pairs of its positions are counted in 64 bits.
pub(crate) const MOST_POSITIONS: u64 = 1 << 31;

/// Most tokens of a step.
pub(crate) const MOST_TOKENS: u128 = 1 << 48;

fn check(spec: &ModelSpec, options: &StepOptions) -> Result<(), Diagnostics> {
    let mut problems = Diagnostics::new();
    for (flag, value) in
        [("--batch", options.batch), ("--seq-len", options.seq_len), ("--grad-accum", options.grad_accum_steps)]
    {
        if value == 0 {
            problems.push(Diagnostic::error("T0306", format!("{flag} must be at least 1")));
        }
    }
    if options.seq_len == 1 {
        problems.push(
            Diagnostic::error("T0306", "--seq-len must be at least 2")
                .why("each position predicts the next: one token predicts none"),
        );
    }
    let tuning = &spec.tuning;
    if options.until != Until::Forward && !tuning.is_plain() {
        if options.precision == Precision::Fp8 && (tuning.packed.is_some() || tuning.lora.is_some()) {
            problems.push(
                Diagnostic::error(
                    "T0316",
                    "fp8 casts weights that are trained: adapters and packed weights are not cast",
                )
                .help("--precision bf16-mixed"),
            );
        }
        let dtype = options.precision.param_dtype();
        if let Some(frozen) = tuning.frozen_dtype.filter(|f| *f != dtype && options.precision.copies().is_none()) {
            problems.push(
                Diagnostic::error("T0318", format!("--frozen-dtype {frozen} beside parameters in {dtype}"))
                    .why(format!(
                        "{} multiplies weights as they are stored: all must have one dtype",
                        options.precision
                    ))
                    .help(format!("--frozen-dtype {dtype}"))
                    .help("--precision bf16-mixed"),
            );
        }
        if !step::parameters(spec).unwrap_or_default().iter().any(|param| param.trainable) {
            problems.push(
                Diagnostic::error("T0317", "nothing is trained: every parameter is frozen")
                    .help("--lora 16")
                    .help("--train-only lm_head"),
            );
        }
    }
    problems.extend(objective_problems(spec, options));
    if options.profile == nn::Profile::HfSdpa && !spec.has_sdpa {
        problems.push(
            Diagnostic::error("T0307", format!("transformers has no fused-attention path for `{}`", spec.family))
                .help("--profile hf-eager")
                .help("--profile fused"),
        );
    }
    let positions = match &spec.embedding.positions {
        Some(positions) if positions.trained && options.seq_len > positions.count => Some(positions.count),
        _ => None,
    };
    if let Some(count) = positions {
        let message =
            format!("--seq-len {} is longer than the {count} learned positions of this model", options.seq_len);
        problems.push(
            Diagnostic::error("T0306", message)
                .why("each position is a row of a table; there is none for the later ones")
                .help(format!("--seq-len {count}")),
        );
    }
    let tokens = u128::from(options.sequences()) * u128::from(options.seq_len) * u128::from(options.grad_accum_steps);
    if options.seq_len > MOST_POSITIONS || tokens > MOST_TOKENS {
        problems.push(
            Diagnostic::error(
                "T0306",
                format!(
                    "{} tokens in a step, {} in a sequence",
                    group_digits(tokens),
                    group_digits(u128::from(options.seq_len))
                ),
            )
            .why("at most 2^48 in a step and 2^31 in a sequence are counted exactly")
            .help("a smaller --seq-len, --batch or --grad-accum"),
        );
    }
    if problems.has_errors() { Err(problems) } else { Ok(()) }
}

/// What of the objective cannot be with this model.
fn objective_problems(spec: &ModelSpec, options: &StepOptions) -> Vec<Diagnostic> {
    let mut problems = Vec::new();
    if options.objective.head == HeadLoss::Fused && !spec.has_plain_head() {
        problems.push(
            Diagnostic::error("T0319", "--loss fused: the head of this model is more than one product")
                .why("a bias, a scale or a cap of the logits has no place in the fused kernel")
                .help("--loss chunked:8"),
        );
    }
    let Some(reference) = options.objective.preference else { return problems };
    if !spec.predicts_next_token() {
        problems.push(Diagnostic::error("T0319", "--dpo needs a model whose every position predicts the next token"));
    }
    if reference == Reference::Base && spec.tuning.lora.is_none() {
        problems.push(
            Diagnostic::error("T0319", "--dpo base: the model without its adapters, and it has none")
                .help("--lora 16")
                .help("--dpo model"),
        );
    }
    if options.objective.head != HeadLoss::Whole {
        problems.push(
            Diagnostic::error("T0319", format!("--dpo with --loss {}", options.objective.head))
                .why("log-probabilities of the tokens are taken from all logits")
                .help("--loss whole"),
        );
    }
    problems
}

/// Inner width of the feed-forward part of a block, if it has one.
pub fn intermediate_size(layer: &LayerSpec) -> Option<u64> {
    match &layer.feed_forward {
        FeedForwardSpec::Mlp(mlp) => Some(mlp.intermediate_size),
        FeedForwardSpec::Moe(moe) => Some(moe.intermediate_size),
        FeedForwardSpec::Beside(both) => Some(both.mlp.intermediate_size),
        FeedForwardSpec::ChannelMix(inner) => Some(*inner),
        FeedForwardSpec::None => None,
    }
}

/// A module path with layer numbers replaced: `model.layers.*.mlp`.
pub fn pattern(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for (i, part) in path.split('.').enumerate() {
        if i > 0 {
            out.push('.');
        }
        out.push_str(if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) { "*" } else { part });
    }
    out
}

/// The [`pattern`] of every module of a trace, each different one once: there are many blocks and few modules in one.
pub(crate) struct Patterns {
    distinct: Vec<String>,
    of: Vec<usize>,
}

impl Patterns {
    /// Those of a trace.
    pub(crate) fn of(trace: &Trace) -> Self {
        let mut known: HashMap<String, usize> = HashMap::new();
        let mut distinct = Vec::new();
        let number = |path: &String| {
            let path = pattern(path);
            *known.entry(path).or_insert_with_key(|path| {
                distinct.push(path.clone());
                distinct.len() - 1
            })
        };
        let of = trace.modules.iter().map(number).collect();
        Self { distinct, of }
    }

    /// The different ones.
    pub(crate) fn distinct(&self) -> &[String] {
        &self.distinct
    }

    /// Which of them is that of a module.
    pub(crate) fn number(&self, module: ModuleId) -> usize {
        self.of[module.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;
    use nn::Profile;

    /// The last step is not traced again, another one is, and so is the same step of a model that differs.
    #[test]
    fn the_last_step_is_kept() {
        let model = |keys: &[(&str, &str)]| {
            let (name, text) = presets::find("gpt2").unwrap();
            let keys: Vec<_> = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Model::from_text(name, name, text.as_bytes(), &keys, None).unwrap()
        };
        let step = StepOptions::usual(64, Profile::Fused, Precision::Bf16Mixed);
        let small = model(&[("n_layer", "2")]);
        let first = small.trace(&step).unwrap();
        assert!(Rc::ptr_eq(&first, &small.clone().trace(&step).unwrap()));
        let longer = small.trace(&StepOptions { seq_len: 65, ..step }).unwrap();
        assert_ne!(first.trace.ops, longer.trace.ops);
        let wider = model(&[("n_layer", "2"), ("n_embd", "1536")]).trace(&StepOptions { seq_len: 65, ..step }).unwrap();
        assert_ne!(longer.trace.ops, wider.trace.ops);
        let again = small.trace(&step).unwrap();
        assert!(!Rc::ptr_eq(&first, &again));
        assert_eq!((&first.trace.ops, &first.trace.memory), (&again.trace.ops, &again.trace.memory));
    }

    /// A step whose batch has other sizes than the last one's is what it is when it is asked for first.
    #[test]
    fn what_was_found_of_a_step_changes_none() {
        for name in ["gpt2", "deepseek-v3"] {
            let (name, text) = presets::find(name).unwrap();
            let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
            let usual = StepOptions::usual(64, Profile::Fused, Precision::Bf16Mixed);
            let sizes = [(1, 64), (1, 96), (3, 96), (2, 17)];
            for options in sizes.map(|(batch, seq_len)| StepOptions { batch, seq_len, ..usual }) {
                let one = model.trace(&options).unwrap();
                let first = trace(&model.spec, &options).unwrap();
                assert_eq!((&one.params, one.buffer_bytes), (&first.params, first.buffer_bytes), "{name}");
                assert_eq!(one.trace.storages, first.trace.storages, "{name}");
                assert_eq!(one.trace.memory, first.trace.memory, "{name}");
                let costs = |traced: &StepTrace| traced.trace.ops.iter().map(|event| event.cost).collect::<Vec<_>>();
                assert_eq!(costs(&one), costs(&first), "{name}");
            }
        }
    }
}
