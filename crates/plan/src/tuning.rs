//! What of a model is trained: adapters, frozen parts, packed weights, checked against the model they are for.

use nn::ParamKind;
use nn::spec::{Lora, Pattern, Tuning};
use nn::step::{ParamInfo, Precision};
use tensor::packed::FORMATS;
use units::{Diagnostic, Diagnostics, group_digits};

use crate::model::{Model, parameters, pattern};
use crate::nearest::nearest;
use crate::report::{Assumption, Origin, Value};

impl Model {
    /// The same model, tuned.
    ///
    /// # Errors
    /// `T0324` for patterns that name nothing of it, `T0313` for an adapter that can be none, `T0305` for sizes that
    /// cannot be counted.
    pub fn tuned(mut self, tuning: Tuning) -> Result<Self, Diagnostics> {
        let mut problems = Diagnostics::new();
        let params = parameters(&self.spec)?;
        let maps: Vec<&str> = params.iter().filter(|p| p.kind == ParamKind::Matrix).map(module).collect();
        let names: Vec<&str> = params.iter().map(|p| p.name.as_str()).collect();
        for (flag, patterns) in [
            ("--freeze", &tuning.frozen),
            ("--train-only", &tuning.trained),
            ("--lora-modules-to-save", &tuning.copied),
        ] {
            problems.extend(unmatched(flag, patterns, &names));
            problems.extend(beyond(flag, patterns, &names));
        }
        if let Some(lora) = &tuning.lora {
            problems.extend(unmatched("--lora-targets", &lora.targets, &maps));
            problems.extend(beyond("--lora-targets", &lora.targets, &maps));
            if lora.rank == 0 {
                problems.push(
                    Diagnostic::error("T0313", "--lora 0: an adapter has a rank of at least 1").help("--lora 16"),
                );
            }
            let widest = params.iter().filter(|p| p.kind == ParamKind::Matrix).flat_map(|p| &p.shape).max();
            if let Some(widest) = widest.filter(|widest| lora.rank > **widest) {
                problems.push(
                    Diagnostic::error("T0313", format!("--lora {}: no linear map is wider than {widest}", lora.rank))
                        .why("an adapter of a rank beyond the map's own says nothing that the map cannot")
                        .help("--lora 16"),
                );
            }
            if let (true, Some(format)) = (lora.magnitudes, tuning.packed) {
                problems.push(
                    Diagnostic::error("T0313", format!("--dora with --quant {}: not modelled", format.name))
                        .why("norms of rows are taken of weights that are unpacked for it in every pass")
                        .help("--lora without --dora: the bytes are less by that weight in 16 bits, for the widest map at a time")
                        .help("--dora without --quant"),
                );
            }
            if maps.is_empty() {
                problems
                    .push(Diagnostic::error("T0313", "the model has no linear maps in blocks to put adapters beside"));
            }
        }
        if problems.has_errors() {
            return Err(problems);
        }
        self.spec.tuning = tuning;
        self.notes.extend(self.untouched(&params));
        Ok(self)
    }

    /// What adapters and packing leave alone, where somebody may think otherwise.
    fn untouched(&self, params: &[ParamInfo]) -> Option<Diagnostic> {
        let tuning = &self.spec.tuning;
        let stacks = params.iter().filter(|p| matches!(p.kind, ParamKind::Expert { .. }) && p.shape.len() == 3);
        let elements: u64 = stacks.map(|p| p.elements).sum();
        if elements == 0 || tuning.lora.is_none() && tuning.packed.is_none() {
            return None;
        }
        let left = match (&tuning.lora, tuning.packed) {
            (Some(_), Some(_)) => "have no adapter and are not packed",
            (Some(_), None) => "have no adapter",
            (None, _) => "are not packed",
        };
        let count = group_digits(u128::from(elements));
        let message = format!("{count} parameters in stacks of experts {left}");
        Some(
            Diagnostic::warning("T0314", message)
                .why("PEFT and bitsandbytes replace linear maps, and transformers keeps the experts of a block as one tensor")
                .effect("where they are frozen, they are stored in the dtype of --frozen-dtype"),
        )
    }

    /// How it is tuned, as assumptions.
    pub(crate) fn tuning_assumptions(&self) -> Vec<Assumption> {
        let tuning = &self.spec.tuning;
        let mut all = Vec::new();
        let given = |name: &'static str, text: String, flag: &'static str| {
            Assumption::new(name, name, text, Origin::Given).flag(flag)
        };
        if let Some(lora) = &tuning.lora {
            all.push(given("lora", format!("rank {}", lora.rank), "--lora").why(words(lora)));
        }
        if let Some(format) = tuning.packed {
            all.push(
                given("quant", format.name.to_owned(), "--quant").why(format!("{} ({})", format.what, format.source)),
            );
        }
        if tuning.packed_keeps_inputs {
            let why = "as MatMul4Bit of bitsandbytes before 0.43.2 (July 2024)";
            all.push(given("quant_keeps_inputs", "yes".to_owned(), "--quant-keeps-inputs").why(why));
        }
        if !tuning.copied.is_empty() {
            let why = "modules_to_save of PEFT: trained in copies of their own dtype, the originals stay";
            all.push(given("modules_to_save", list(&tuning.copied), "--lora-modules-to-save").why(why));
        }
        if !tuning.frozen.is_empty() {
            all.push(given("frozen", list(&tuning.frozen), "--freeze"));
        }
        if !tuning.trained.is_empty() {
            all.push(given("trained", list(&tuning.trained), "--train-only"));
        }
        if !tuning.is_plain() {
            let dtype = match tuning.frozen_dtype {
                Some(dtype) => Assumption::new("frozen_dtype", "frozen dtype", dtype.name(), Origin::Given),
                None => Assumption::new("frozen_dtype", "frozen dtype", "by recipe", Origin::Default)
                    .why("with adapters the 16 bits of a mixed recipe, else the dtype of parameters"),
            };
            all.push(dtype.flag("--frozen-dtype"));
        }
        all
    }

    /// How it is tuned, for programs; nothing if everything is trained.
    pub(crate) fn tuning_inputs(&self) -> Option<Value> {
        let tuning = &self.spec.tuning;
        let texts = |patterns: &[Pattern]| Value::List(patterns.iter().map(|p| p.to_string().into()).collect());
        let lora = tuning.lora.as_ref().map(|lora| {
            Value::map()
                .with("rank", lora.rank)
                .with("alpha", lora.alpha)
                .with("dropout", lora.dropout)
                .with("targets", texts(&lora.targets))
                .with("magnitudes", lora.magnitudes)
        });
        (!tuning.is_plain()).then(|| {
            Value::map()
                .with("lora", lora)
                .with("quant", tuning.packed.map(|format| format.name))
                .with("quant_keeps_inputs", tuning.packed_keeps_inputs)
                .with("modules_to_save", texts(&tuning.copied))
                .with("frozen", texts(&tuning.frozen))
                .with("trained", texts(&tuning.trained))
                .with("frozen_dtype", tuning.frozen_dtype.map(tensor::DType::name))
        })
    }
}

/// In what parameters are stored: `f32`, or `bf16, trained f32`.
pub(crate) fn storage_words(tuning: &Tuning, precision: Precision) -> String {
    let trained = precision.param_dtype().name();
    let frozen = precision.frozen_dtype(tuning).name();
    match (tuning.packed, tuning.is_plain()) {
        (_, true) => trained.to_owned(),
        (Some(format), _) => format!("{}, else {frozen}, trained {trained}", format.name),
        (None, _) if frozen == trained => trained.to_owned(),
        (None, _) => format!("{frozen}, trained {trained}"),
    }
}

/// The module of a parameter.
fn module(param: &ParamInfo) -> &str {
    param.name.rsplit_once('.').map_or("", |(module, _)| module)
}

fn list(patterns: &[Pattern]) -> String {
    patterns.iter().map(Pattern::to_string).collect::<Vec<_>>().join(", ")
}

fn words(lora: &Lora) -> String {
    let targets = if lora.targets.is_empty() { "all linear maps of blocks".to_owned() } else { list(&lora.targets) };
    let directed = if lora.magnitudes { "; magnitudes of rows are trained too (DoRA)" } else { "" };
    format!("beside {targets}; alpha {}, dropout {}{directed}", lora.alpha, lora.dropout)
}

/// Patterns that name none of `paths`, with those that look like it.
fn unmatched(flag: &str, patterns: &[Pattern], paths: &[&str]) -> Diagnostics {
    let mut problems = Diagnostics::new();
    for wrong in patterns.iter().filter(|p| !paths.iter().any(|path| p.matches(path))) {
        let mut parts: Vec<String> = paths.iter().map(|path| pattern(path)).collect();
        parts.sort();
        parts.dedup();
        let last = wrong.to_string();
        let ends = parts.iter().flat_map(|path| path.split('.')).filter(|part| *part != "*");
        let mut near = nearest(&last, ends);
        near.dedup();
        let mut problem = Diagnostic::error("T0324", format!("{flag} {wrong}: nothing of the model has this name"));
        for name in near {
            problem = problem.help(format!("{flag} {name}"));
        }
        if let Some(example) = parts.first() {
            problem =
                problem.why(format!("names are such as {example}; * stands for any letters, 0-3 for four numbers"));
        }
        problems.push(problem);
    }
    problems
}

/// Patterns that name some of `paths` and whose range of numbers ends behind the last of them.
fn beyond(flag: &str, patterns: &[Pattern], paths: &[&str]) -> Diagnostics {
    let mut problems = Diagnostics::new();
    for wide in patterns.iter().filter(|pattern| paths.iter().any(|path| pattern.matches(path))) {
        let text = wide.to_string();
        let parts: Vec<&str> = text.split('.').collect();
        for (at, part) in parts.iter().enumerate() {
            let range = part.split_once('-').and_then(|(a, b)| Some((a.parse::<u64>().ok()?, b.parse::<u64>().ok()?)));
            let Some((first, last)) = range else { continue };
            let with = |end: String| {
                let mut parts = parts.clone();
                parts[at] = &end;
                parts.join(".")
            };
            let names = |number: u64| {
                let one = with(number.to_string()).parse::<Pattern>();
                one.is_ok_and(|pattern| paths.iter().any(|path| pattern.matches(path)))
            };
            if names(last) {
                continue;
            }
            let mut numbers: Vec<u64> =
                paths.iter().flat_map(|path| path.split('.')).filter_map(|p| p.parse().ok()).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let Some(most) = numbers.into_iter().rev().filter(|n| (first..last).contains(n)).find(|n| names(*n)) else {
                continue;
            };
            let message = format!("{flag} {wide}: {last} is behind the last of them, which is {most}");
            let help = format!("{flag} {}", with(format!("{first}-{most}")));
            problems.push(Diagnostic::error("T0324", message).why("blocks are counted from 0").help(help));
        }
    }
    problems
}

/// The format of packed weights with this name.
///
/// # Errors
/// `T0315` with the names there are.
pub fn format(text: &str) -> Result<&'static tensor::packed::Format, Diagnostic> {
    tensor::packed::Format::find(text).ok_or_else(|| {
        let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
        Diagnostic::error("T0315", format!("`{text}` is no format of packed weights")).help(names.join(", "))
    })
}
