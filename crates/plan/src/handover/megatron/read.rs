//! A layout out of Megatron-LM's arguments.

use nn::HeadLoss;
use nn::context::Recompute;
use nn::optim::{self, Implementation, OptimizerKind};
use nn::step::Precision;
use units::{Diagnostic, Diagnostics};

use super::{model, stages, words};
use crate::handover::options::{self, Kind};
use crate::handover::reading::{Around, Taken, Values};
use crate::handover::settings::Setting;
use crate::handover::shape::Shape;
use crate::handover::{Engine, has_experts};
use crate::layout::{ContextParallel, Layout, Schedule};

/// Options of the launcher that say nothing of the run but how its processes find each other.
const LAUNCHER: &[&str] = &[
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--standalone",
    "--max-restarts",
    "--log-dir",
    "--tee",
    "--redirects",
    "--local-ranks-filter",
    "--rdzv-id",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-conf",
    "--module",
];

/// Most blocks that stages may be given.
const MOST_STAGES: u64 = 1 << 16;

/// Reads the arguments out of a command line or a script.
///
/// # Errors
/// `T0494` to `T0496`.
pub fn read(text: &str, around: &Around<'_>) -> Result<Taken, Diagnostics> {
    let mut values = Values::new(Engine::Megatron, text, around)?;
    let launched = arguments(text, &mut values);
    // What is not read leaves all else open.
    values.stop()?;
    let layers = around.model.depth() as u64;
    let shape = Shape::of(around.model).ok();
    let sparse = has_experts(around.model);
    let mut layout = Layout { tp: values.degree("--tensor-model-parallel-size"), ..Layout::default() };
    layout.pp = values.degree("--pipeline-model-parallel-size");
    layout.cp = values.degree("--context-parallel-size");
    layout.sp = values.is("--sequence-parallel");
    layout.context = context(&mut values);
    layout.ep = values.degree("--expert-model-parallel-size");
    let etp = values.some("--expert-tensor-parallel-size");
    layout.etp = if sparse { etp.unwrap_or(layout.tp) } else { 1 };
    pipeline(&mut values, &mut layout, layers);
    let shared = layout.tp.saturating_mul(layout.cp).saturating_mul(layout.pp);
    if let Some(dp) = values.replicas(launched, shared) {
        layout.dp = dp;
    }
    sharding(&mut values, &mut layout);
    batches(&mut values, &mut layout);
    recompute(&mut values, &mut layout);
    offload(&mut values, &mut layout);
    let precision = precision(&mut values);
    let seq_len = values.some("--seq-length");
    model::compare(&mut values, shape.as_ref());
    // Overlap is what the engine does wherever it can; the flags say so.
    values.skip(&["--overlap-grad-reduce", "--overlap-param-gather", "--train-iters", "--ckpt-format"]);
    let (optimizer, loss) = (optimizer(&mut values), Some(loss(&mut values)));
    Ok(Taken { optimizer, loss, ..values.finish(&layout, seq_len, Some(precision))? })
}

/// The update, whose kernels are fused.
fn optimizer(values: &mut Values<'_>) -> Option<OptimizerKind> {
    let kind = match values.word("--optimizer")?.as_str() {
        "sgd" if values.number("--sgd-momentum") == Some(0.0) => optim::Kind::Sgd,
        "sgd" => optim::Kind::Momentum,
        "muon" | "dist_muon" => optim::Kind::Muon,
        _ => optim::Kind::AdamW,
    };
    Some(OptimizerKind { kind, implementation: Implementation::Fused })
}

/// Logits are in f32 unless the loss is that of Transformer Engine.
fn loss(values: &mut Values<'_>) -> HeadLoss {
    let (fused, form) = (values.is("--cross-entropy-loss-fusion"), values.word("--cross-entropy-fusion-impl"));
    if fused && form.as_deref() == Some("te") { HeadLoss::Whole } else { HeadLoss::Parallel }
}

/// Takes options with their values from the words of a script; gives the devices that its launcher starts.
fn arguments(text: &str, values: &mut Values<'_>) -> Option<u64> {
    let table = options::of(Engine::Megatron);
    let (words, open) = words::of(text);
    if let Some(open) = open {
        values.unreadable(open..open + 1, "this quote is never closed", "close it, or leave it out");
    }
    let known = |word: &words::Word| option(&word.text).is_some_and(|(name, _)| table.get(name).is_some());
    if !words.iter().any(known) {
        let help = "a script that starts Megatron-LM, or its arguments in quotes: '--tensor-model-parallel-size 8 ...'";
        values.unreadable(0..0, "no argument of Megatron-LM is in it", help);
    }
    let (mut per_node, mut nodes) = (None, None);
    let mut at = 0;
    while at < words.len() {
        let word = &words[at];
        at += 1;
        let Some((name, inline)) = option(&word.text) else { continue };
        let mut following: Vec<&str> = inline.into_iter().collect();
        let mut end = word.span.end;
        if inline.is_none() {
            while let Some(next) = words.get(at).filter(|next| option(&next.text).is_none()) {
                // A word that is no value of this option (the program, say) ends its values.
                let many = table.get(name).is_some_and(|known| known.kind == Kind::List);
                let none = table.get(name).is_some_and(|known| known.kind == Kind::Flag);
                if none || (!many && !following.is_empty()) {
                    break;
                }
                following.push(&next.text);
                end = next.span.end;
                at += 1;
            }
        }
        let launcher = name.replace('_', "-");
        match (launcher.as_str(), following.first()) {
            ("--nproc-per-node", value) => per_node = value.and_then(|text| text.parse::<u64>().ok()),
            ("--nnodes", value) => nodes = value.and_then(|text| text.parse::<u64>().ok()),
            (name, _) if LAUNCHER.contains(&name) => {}
            _ => {
                let kind = table.get(name).map(|known| known.kind);
                values.add(name, setting(kind, &following), word.span.start..end);
            }
        }
    }
    per_node?.checked_mul(nodes.unwrap_or(1))
}

/// An option and the value in the same word.
fn option(word: &str) -> Option<(&str, Option<&str>)> {
    if !word.starts_with("--") || word.len() < 3 {
        return None;
    }
    Some(word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value))))
}

/// The value of an option of some kind; what cannot be read stays text, which the table then refuses.
fn setting(kind: Option<Kind>, words: &[&str]) -> Setting {
    let word = words.first().copied().unwrap_or("");
    match kind {
        Some(Kind::Flag) if words.is_empty() => Setting::Bool(true),
        Some(Kind::Int) => word.parse().map_or_else(|_| word.into(), Setting::Int),
        Some(Kind::Float) => {
            word.parse::<f64>().ok().filter(|value| value.is_finite()).map_or_else(|| word.into(), Setting::Float)
        }
        Some(Kind::List) => Setting::List(words.iter().map(|word| Setting::from(*word)).collect()),
        _ => Setting::from(words.join(" ")),
    }
}

fn context(values: &mut Values<'_>) -> ContextParallel {
    let name = "--cp-comm-type";
    let Some(words) = values.words(name) else { return ContextParallel::Ring };
    values.skip(&["--hierarchical-context-parallel-sizes"]);
    let mut kinds = words.clone();
    kinds.dedup();
    match kinds.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["p2p"] => ContextParallel::Ring,
        ["a2a"] => ContextParallel::AllToAll,
        ["allgather"] => {
            values.nearest(
                name,
                "a ring",
                "all keys and values of a sequence lie on every rank at once, which is not counted",
            );
            ContextParallel::Ring
        }
        _ => {
            values.nearest(name, "a ring", "blocks that exchange heads, or do both, move other bytes");
            ContextParallel::Ring
        }
    }
}

fn pipeline(values: &mut Values<'_>, layout: &mut Layout, layers: u64) {
    let forms = [
        "--num-layers-per-virtual-pipeline-stage",
        "--num-virtual-stages-per-pipeline-rank",
        "--pipeline-model-parallel-layout",
    ];
    let given: Vec<&str> = forms.into_iter().filter(|name| values.value(name).is_some()).collect();
    if given.len() > 1 {
        let text = format!("{} are given together", given.join(" and "));
        values.problem(given[1], Diagnostic::error("T0496", text).help(format!("`{}` alone", given[0])));
    }
    let per_stage = values.some(forms[0]);
    let count = values.some(forms[1]);
    let custom = values.word(forms[2]);
    let first = values.some("--decoder-first-pipeline-num-layers");
    let last = values.some("--decoder-last-pipeline-num-layers");
    let embedding = u64::from(values.is("--account-for-embedding-in-pipeline-split"));
    let loss = u64::from(values.is("--account-for-loss-in-pipeline-split"));
    values.skip(&["--no-overlap-p2p-communication"]);
    if let Some(text) = custom {
        match stages::read(&text).filter(|stages| (stages.blocks.len() as u64).is_multiple_of(layout.pp)) {
            Some(stages) => {
                if !stages.usual {
                    values.nearest(
                        forms[2],
                        "embedding on the first stage and loss on the last",
                        "a stage of their own would hold them",
                    );
                }
                layout.virtual_stages = stages.blocks.len() as u64 / layout.pp;
                layout.blocks = Some(stages.blocks);
            }
            None => values.problem(
                forms[2],
                Diagnostic::error("T0494", format!("`{}` is no layout of {} stages", forms[2], layout.pp))
                    .help("such as Et*3|t*4|t*4|t*3L: a multiple of the pipeline size of stages, separated by |"),
            ),
        }
    } else {
        let slots = layers.saturating_add(embedding).saturating_add(loss);
        let per_rank = slots / layout.pp;
        layout.virtual_stages = match (count, per_stage) {
            (Some(count), _) => count,
            (None, Some(blocks)) if per_rank.is_multiple_of(blocks) && per_rank > 0 => per_rank / blocks,
            (None, Some(blocks)) => {
                let text = format!("{blocks} blocks of a virtual stage do not divide the {per_rank} of a rank");
                values.problem(forms[0], Diagnostic::error("T0496", text).help("a divisor"));
                1
            }
            (None, None) => 1,
        };
        let stages = layout.pp.saturating_mul(layout.virtual_stages);
        if stages > MOST_STAGES {
            values.problems.push(Diagnostic::error("T0496", format!("{stages} pipeline stages")).help("fewer"));
            layout.virtual_stages = 1;
        } else if first.is_some() || last.is_some() {
            layout.blocks = uneven(layout, layers, first, last);
            if layout.blocks.is_none() {
                let text = format!("{layers} blocks do not make such first and last stages");
                values
                    .problems
                    .push(Diagnostic::error("T0496", text).help("numbers that leave the others as many each"));
            }
        } else if embedding + loss > 0 && layout.pp > 1 {
            let each = slots / stages;
            let mut blocks = vec![each; stages as usize];
            blocks[0] = each.saturating_sub(embedding);
            if let Some(end) = blocks.last_mut() {
                *end = end.saturating_sub(loss);
            }
            layout.blocks = Some(blocks);
        }
    }
    layout.schedule = if layout.virtual_stages > 1 { Schedule::Interleaved } else { Schedule::OneFOneB };
}

/// Blocks of each stage where the first and the last rank have numbers of their own, divided over their virtual stages.
///
/// Source: `get_num_layers_to_build` of megatron-core 0.16.1.
fn uneven(layout: &Layout, layers: u64, first: Option<u64>, last: Option<u64>) -> Option<Vec<u64>> {
    let fixed = [first, last].into_iter().flatten().try_fold(0u64, u64::checked_add)?;
    let others = layout.pp.checked_sub(first.is_some() as u64 + last.is_some() as u64)?;
    let rest = layers.checked_sub(fixed)?;
    let each =
        if others == 0 { (rest == 0).then_some(0)? } else { rest.is_multiple_of(others).then_some(rest / others)? };
    let of_rank = |rank: u64| match rank {
        0 => first.unwrap_or(each),
        rank if rank + 1 == layout.pp => last.unwrap_or(each),
        _ => each,
    };
    let stages = layout.virtual_stages;
    (0..layout.pp * stages)
        .map(|stage| of_rank(stage % layout.pp))
        .map(|blocks| blocks.is_multiple_of(stages).then_some(blocks / stages))
        .collect()
}

fn sharding(values: &mut Values<'_>, layout: &mut Layout) {
    let distributed = values.is("--use-distributed-optimizer");
    let fsdp = values.is("--use-megatron-fsdp");
    let torch = values.is("--use-torch-fsdp2");
    let strategy = values.word("--data-parallel-sharding-strategy");
    if torch && (fsdp || distributed) {
        let text = "`--use-torch-fsdp2` beside another way to shard";
        values.problem("--use-torch-fsdp2", Diagnostic::error("T0496", text).help("one of them"));
    }
    layout.zero = if torch {
        layout.gathering.reshard = !values.is("--torch-fsdp2-no-reshard-after-forward");
        3
    } else if fsdp {
        match strategy.as_deref() {
            Some("optim") => 1,
            Some("optim_grads") => 2,
            Some("optim_grads_params") => 3,
            _ => 0,
        }
    } else {
        u8::from(distributed)
    };
    if let Some(copies) = values.some("--num-distributed-optimizer-instances").filter(|copies| *copies > 1) {
        let replicas = layout.dp.saturating_mul(layout.cp);
        if replicas.is_multiple_of(copies) {
            layout.shard = Some(replicas / copies);
        } else {
            let text = format!("{copies} copies of the optimizer do not divide {replicas} replicas");
            values.problem("--num-distributed-optimizer-instances", Diagnostic::error("T0496", text).help("a divisor"));
        }
    }
}

fn batches(values: &mut Values<'_>, layout: &mut Layout) {
    let Some(micro) = values.some("--micro-batch-size") else {
        if values.value("--micro-batch-size").is_none() {
            let problem = Diagnostic::error("T0495", "`--micro-batch-size` is not given");
            values.problems.push(problem.help("--micro-batch-size 1"));
        }
        return;
    };
    layout.micro_batch = micro;
    let at_once = micro.saturating_mul(layout.dp);
    if let Some(global) = values.some("--global-batch-size") {
        layout.grad_accum = values.accumulation("--global-batch-size", global, at_once);
    }
    if values.value("--rampup-batch-size").is_some() {
        values.nearest("--rampup-batch-size", "its last batch", "steps before that are smaller");
    }
}

fn recompute(values: &mut Values<'_>, layout: &mut Layout) {
    let granularity = values.word("--recompute-granularity");
    let old = values.is("--recompute-activations");
    let method = values.word("--recompute-method");
    let layers = values.some("--recompute-num-layers");
    let modules = values.words("--recompute-modules");
    layout.recompute = match granularity.as_deref() {
        Some("full") => Recompute::Full,
        Some(_) => Recompute::Selective,
        None if old => Recompute::Selective,
        None => Recompute::None,
    };
    match layout.recompute {
        Recompute::Full if method.as_deref() == Some("block") => {
            let name = "--recompute-method";
            values.nearest(name, "all blocks", "blocks of a stage beyond `--recompute-num-layers` keep what they make: memory is underestimated, time overestimated");
        }
        Recompute::Full if layers.is_some_and(|n| n > 1) => {
            let name = "--recompute-num-layers";
            values.nearest(name, "1", "fewer inputs are kept, and more is alive while several blocks are run again");
        }
        Recompute::Selective if modules.as_ref().is_some_and(|modules| modules[..] != ["core_attn"]) => {
            values.nearest(
                "--recompute-modules",
                "core_attn",
                "other modules that are run again keep less and take longer",
            );
        }
        _ => {}
    }
}

fn offload(values: &mut Values<'_>, layout: &mut Layout) {
    layout.offload.optimizer = values.is("--optimizer-cpu-offload");
    if layout.offload.optimizer {
        values.skip(&["--use-precision-aware-optimizer"]);
        if values.number("--optimizer-offload-fraction").is_some_and(|share| share < 1.0) {
            values.nearest("--optimizer-offload-fraction", "1", "what stays on the device is not counted there");
        }
    }
    layout.offload.activations = values.int("--cpu-offloading-num-layers").is_some_and(|layers| layers > 0);
    if layout.offload.activations {
        values.nearest("--cpu-offloading-num-layers", "all blocks", "the activations of the others stay on the device");
    }
}

fn precision(values: &mut Values<'_>) -> Precision {
    let (bf16, fp16) = (values.is("--bf16"), values.is("--fp16"));
    let narrow = values.is("--grad-reduce-in-bf16");
    values.skip(&["--accumulate-allreduce-grads-in-fp32"]);
    if bf16 && fp16 {
        values.problem(
            "--fp16",
            Diagnostic::error("T0496", "`--bf16` and `--fp16` are given together").help("one of them"),
        );
    }
    if values.word("--fp8-format").is_some() {
        values.nearest(
            "--fp8-format",
            "precision fp8",
            "weights are bf16 beside f32 masters: two bytes more for every parameter",
        );
        values.skip(&["--fp8-recipe"]);
        return Precision::Fp8;
    }
    if fp16 {
        values.nearest(
            "--fp16",
            "precision fp16-mixed",
            "weights are f16 beside f32 masters: two bytes more for every parameter",
        );
        return Precision::Fp16Mixed;
    }
    match (bf16, narrow) {
        (true, false) => Precision::Bf16MasterFp32Grads,
        (true, true) => Precision::Bf16Master,
        (false, _) => Precision::Fp32,
    }
}
