//! What of a model is trained: adapters, frozen parts, packed weights, checked against the model they are for.

use nn::ParamKind;
use nn::spec::{Lora, Pattern, Targets, Tuning};
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
        for (flag, patterns) in [("--freeze", &tuning.frozen), ("--train-only", &tuning.trained)] {
            problems.extend(unmatched(flag, patterns, &names));
            problems.extend(beyond(flag, patterns, &names));
        }
        problems.extend(copy_problems(&tuning.copied, &params, self.spec.embedding.shared.is_some()));
        if let Some(lora) = &tuning.lora {
            let (inside, named) = of_one_expert(lora, &params, &maps);
            problems.extend(inside);
            problems.extend(unmatched("--lora-targets", &named, &maps));
            problems.extend(beyond("--lora-targets", lora.targets.names(), &maps));
            problems.extend(stack_problems(lora, &params));
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
            if maps.is_empty() && lora.stacks.is_empty() {
                problems
                    .push(Diagnostic::error("T0313", "the model has no linear maps in blocks to put adapters beside"));
            }
            if lora.stacks.is_empty() && lora.targets == Targets::Named(Vec::new()) {
                problems.push(
                    Diagnostic::error("T0313", "--lora-targets none: nothing has an adapter")
                        .why("it leaves those of --lora-target-parameters, and there are none")
                        .help("leave --lora-targets away: all linear maps of blocks"),
                );
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
        let stacks: Vec<&ParamInfo> = params.iter().filter(|param| is_stack(param)).collect();
        // Who names some stacks knows of the others.
        let bare = tuning.lora.as_ref().is_some_and(|lora| lora.stacks.is_empty());
        let left = match (bare, tuning.packed.is_some()) {
            (true, true) => "have no adapter and are not packed",
            (true, false) => "have no adapter",
            (false, true) => "are not packed",
            (false, false) => return None,
        };
        let elements: u64 = stacks.iter().map(|p| p.elements).sum();
        if elements == 0 {
            return None;
        }
        let count = group_digits(u128::from(elements));
        let warning = Diagnostic::warning("T0314", format!("{count} parameters in stacks of experts {left}"))
            .why("PEFT and bitsandbytes replace linear maps, and transformers keeps the experts of a block as one tensor")
            .effect("where they are frozen, they are stored in the dtype of --frozen-dtype");
        Some(if bare {
            warning.help(format!("--lora-target-parameters {}", stack_names(&stacks).join(",")))
        } else {
            warning
        })
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
            let apart = if self.spec.head.tied {
                "; copies of the token table and of the head that is tied to it are trained apart"
            } else {
                ""
            };
            let copied = given("modules_to_save", list(&tuning.copied), "--lora-modules-to-save");
            all.push(copied.why(format!("{why}{apart}")));
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
        let lora = tuning.lora.as_ref().map(|lora| {
            Value::map()
                .with("rank", lora.rank)
                .with("alpha", lora.alpha)
                .with("dropout", lora.dropout)
                .with("targets", texts(lora.targets.names()))
                .with("target_parameters", texts(&lora.stacks))
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

/// Why parameters have not the copies they are to have. Those that are tied have the names of both.
fn copy_problems(copied: &[Pattern], params: &[ParamInfo], shared: bool) -> Diagnostics {
    const FLAG: &str = "--lora-modules-to-save";
    let names: Vec<&str> = params.iter().flat_map(all_names).collect();
    let mut problems = unmatched(FLAG, copied, &names);
    problems.extend(beyond(FLAG, copied, &names));
    let tables = params.iter().filter(|param| shared && !param.tied.is_empty());
    let mut tables: Vec<&str> = tables.flat_map(all_names).collect();
    tables.retain(|name| copied.iter().any(|copy| copy.matches(name)));
    if let Some(table) = tables.first() {
        problems.push(
            Diagnostic::error("T0313", format!("{FLAG}: {table}, which several modules read, is not copied"))
                .why("not modelled: PEFT copies it for the module of that name alone, and the others go on reading the original")
                .help(format!("--train-only {table}: it is trained for all of them, beside the adapters")),
        );
    }
    problems
}

/// All names of a parameter.
fn all_names(param: &ParamInfo) -> impl Iterator<Item = &str> {
    std::iter::once(&param.name).chain(&param.tied).map(String::as_str)
}

/// Whether a parameter holds a matrix of every expert of a block.
fn is_stack(param: &ParamInfo) -> bool {
    matches!(param.kind, ParamKind::Expert { .. }) && param.shape.len() == 3
}

/// What stacks of experts are called in their blocks.
fn stack_names<'a>(stacks: &[&'a ParamInfo]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for param in stacks {
        let name = param.name.strip_suffix(".weight").unwrap_or(&param.name);
        let last = name.rsplit('.').next().unwrap_or(name);
        if !names.contains(&last) {
            names.push(last);
        }
    }
    names
}

/// What PEFT calls the maps of one expert, from when each was a module, and the stack that holds them now.
///
/// Source: huggingface/peft 0.21.2, `utils/transformers_weight_conversion.py`, `_MOE_TARGET_MODULE_MAPPING`.
const ONE_EXPERT: [(&str, &str); 6] = [
    ("gate_proj", "gate_up_proj"),
    ("up_proj", "gate_up_proj"),
    ("down_proj", "down_proj"),
    ("w1", "gate_up_proj"),
    ("w3", "gate_up_proj"),
    ("w2", "down_proj"),
];

/// Targets that are no linear maps but parts of stacks, with what to say in their place; and all the other targets.
fn of_one_expert(lora: &Lora, params: &[ParamInfo], maps: &[&str]) -> (Option<Diagnostic>, Vec<Pattern>) {
    let stacks: Vec<&ParamInfo> = params.iter().filter(|param| is_stack(param)).collect();
    let known = stack_names(&stacks);
    let held = |target: &&Pattern| {
        let text = target.to_string();
        let last = text.rsplit('.').next().unwrap_or_default();
        let stack = ONE_EXPERT.iter().find(|(name, _)| *name == last).map(|(_, stack)| *stack);
        stack.is_some_and(|stack| known.contains(&stack)) && !maps.iter().any(|map| target.matches(map))
    };
    let (inside, others): (Vec<&Pattern>, Vec<&Pattern>) = lora.targets.names().iter().partition(held);
    let others: Vec<Pattern> = others.into_iter().cloned().collect();
    if inside.is_empty() {
        return (None, others);
    }
    let maps = if others.is_empty() {
        "none".to_owned()
    } else {
        others.iter().map(Pattern::to_string).collect::<Vec<_>>().join(",")
    };
    let twice = 2 * lora.rank;
    let said =
        Diagnostic::error("T0324", format!("--lora-targets {}: maps of experts, which lie in stacks", list(&inside)))
            .why("PEFT 0.21 reads the gate and the map beside it as one adapter of twice the rank beside their stack")
            .help(format!("--lora-targets {maps} --lora-target-parameters gate_up_proj:{twice},down_proj"));
    (Some(said), others)
}

/// Why stacks of experts have not the adapters they are to have.
fn stack_problems(lora: &Lora, params: &[ParamInfo]) -> Diagnostics {
    const FLAG: &str = "--lora-target-parameters";
    let mut problems = Diagnostics::new();
    if lora.stacks.is_empty() {
        return problems;
    }
    let stacks: Vec<&ParamInfo> = params.iter().filter(|param| is_stack(param)).collect();
    let names: Vec<&str> = stacks.iter().map(|param| param.name.as_str()).collect();
    let mut unknown = Vec::new();
    let named: Vec<Pattern> = lora.stacks.iter().map(|stack| stack.name.clone()).collect();
    for wrong in named.iter().filter(|stack| !names.iter().any(|name| stack.matches(name))) {
        let Some(other) = params.iter().find(|param| wrong.matches(&param.name)) else {
            unknown.push(wrong.clone());
            continue;
        };
        let message = format!("{FLAG} {wrong}: {} is no stack of matrices", pattern(&other.name));
        let mut problem = Diagnostic::error("T0313", message)
            .why("PEFT takes what has two dimensions for one matrix and gives it one adapter, whatever it holds");
        if other.kind == ParamKind::Matrix {
            problem = problem.help(format!("--lora-targets {wrong}, for the linear map"));
        }
        if !stacks.is_empty() {
            problem = problem.help(format!("{FLAG} {}", stack_names(&stacks).join(",")));
        }
        problems.push(problem);
    }
    problems.extend(unmatched(FLAG, &unknown, &names));
    problems.extend(beyond(FLAG, &named, &names));
    let widest = stacks.iter().flat_map(|param| &param.shape[1..]).max().copied().unwrap_or(u64::MAX);
    for stack in lora.stacks.iter().filter(|stack| stack.rank.is_some_and(|rank| rank > widest)) {
        problems.push(
            Diagnostic::error("T0313", format!("{FLAG} {stack}: no map of an expert is wider than {widest}"))
                .why("an adapter of a rank beyond the map's own says nothing that the map cannot")
                .help(format!("{FLAG} {}", stack.name)),
        );
    }
    for (bad, flag) in [(lora.dropout > 0.0, "--lora-dropout"), (lora.magnitudes, "--dora")] {
        if bad {
            problems.push(
                Diagnostic::error("T0313", format!("{flag} with {FLAG}: PEFT refuses it"))
                    .why("it adds what the adapters of a stack make to the weights, where they have no inputs and no rows of their own")
                    .help(format!("leave {flag} away")),
            );
        }
    }
    problems
}

/// The module of a parameter.
fn module(param: &ParamInfo) -> &str {
    param.name.rsplit_once('.').map_or("", |(module, _)| module)
}

fn texts<T: ToString>(names: &[T]) -> Value {
    Value::List(names.iter().map(|name| name.to_string().into()).collect())
}

fn list<T: ToString>(names: &[T]) -> String {
    names.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

fn words(lora: &Lora) -> String {
    let maps = match &lora.targets {
        Targets::All => Some("all linear maps of blocks".to_owned()),
        Targets::Named(names) => (!names.is_empty()).then(|| list(names)),
    };
    let stacks = (!lora.stacks.is_empty()).then(|| format!("each expert of {}", list(&lora.stacks)));
    let targets = maps.into_iter().chain(stacks).collect::<Vec<_>>().join(" and ");
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
