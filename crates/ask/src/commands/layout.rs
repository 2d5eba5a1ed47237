//! `napkin layout MODEL --tp 8 --pp 4 -n 64 --export megatron > run.sh`.

use clap::Args;
use nn::offload::Offload;
use nn::optim::OptimizerKind;
use nn::step::{Precision, StepOptions};
use nn::{HeadLoss, Objective, Profile, Recompute};
use plan::cluster::network::NetworkKind;
use plan::handover::{self, Engine, Export, Run, Taken};
use plan::hardware::Hardware;
use plan::layout::answer;
use plan::layout::estimate::{Cluster, Estimate, Run as Measured};
use plan::layout::given::Given;
use plan::layout::report::{Request, report};
use plan::layout::search::Wanted;
use plan::layout::{self, ContextParallel, Layout as Divided, Schedule};
use plan::model::Model;
use plan::report::{Origin, Report};
use units::{Diagnostic, Diagnostics};

use crate::layout_args::{ClusterArgs, FromArgs, first, over};
use crate::model_args::ModelArgs;
use crate::parse::{Reader, count, some};
use crate::step::{GatheringArgs, stage, word};

/// How a run is divided over devices, to and from the engines people run.
#[derive(Debug, Args)]
pub struct Layout {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// Devices of the run
    #[arg(short = 'n', long, value_name = "N")]
    pub devices: Option<String>,
    /// The configuration that it is taken from
    #[command(flatten)]
    pub from: FromArgs,
    /// Write the configuration of megatron, torchtitan, deepspeed, fsdp or nanotron: to standard output, or to the file of -o
    #[arg(long, value_name = "ENGINE")]
    pub export: Option<String>,
    /// The accelerator: memory and time of the layout; with --gbs, the best of all
    #[arg(long, value_name = "NAME")]
    pub hw: Option<String>,
    /// The nodes
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Sequences of a step, over all replicas: the best layout is looked for, of those that have the parts given
    #[arg(long, value_name = "N")]
    pub gbs: Option<String>,
    /// Largest micro-batch that is tried [default: all that divide the sequences of a replica]
    #[arg(long, value_name = "N")]
    pub most_micro_batch: Option<String>,
    /// How many of the best layouts are shown [default: 5]
    #[arg(long, value_name = "N")]
    pub top: Option<String>,
    /// Steps of the run, where the configuration asks for them
    #[arg(long, value_name = "N")]
    pub steps: Option<String>,
    /// Tokens of a sequence [default: that of the file, or 4096 or what the model takes]
    #[arg(long, value_name = "N")]
    pub seq_len: Option<String>,
    /// fp32, bf16-master, bf16-master-fp32-grads, bf16-mixed, fp16-mixed, bf16-pure or fp8 [default: that of the file, or what
    /// the engine usually trains in]
    #[arg(long, value_name = "RECIPE")]
    pub precision: Option<String>,
    /// adamw, adam-8bit, muon, lion, ... [default: adamw]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// How head and loss run: whole, fused, parallel or chunked:8 [default: whole]
    #[arg(long, value_name = "FORM")]
    pub loss: Option<String>,
    /// How the run is divided; what is given holds before what a file says
    #[command(flatten)]
    pub degrees: Degrees,
}

/// The parts of a layout.
#[derive(Debug, Args)]
#[command(next_help_heading = "Layout")]
pub struct Degrees {
    /// Replicas of the model [default: what the devices leave]
    #[arg(long, value_name = "N")]
    pub dp: Option<String>,
    /// Ranks that share matrices
    #[arg(long, value_name = "N")]
    pub tp: Option<String>,
    /// Divide what lies between shared matrices along the sequence
    #[arg(long)]
    pub sp: bool,
    /// Ranks that share a sequence
    #[arg(long, value_name = "N")]
    pub cp: Option<String>,
    /// Exchange heads for positions instead of sending keys and values around
    #[arg(long)]
    pub cp_all_to_all: bool,
    /// Ranks that share the experts of a block
    #[arg(long, value_name = "N")]
    pub ep: Option<String>,
    /// Ranks that share the matrices of one expert
    #[arg(long, value_name = "N")]
    pub etp: Option<String>,
    /// Pipeline stages
    #[arg(long, value_name = "N")]
    pub pp: Option<String>,
    /// Runs of blocks on each pipeline rank
    #[arg(long, value_name = "N")]
    pub virtual_stages: Option<String>,
    /// gpipe, 1f1b, interleaved or zero-bubble [default: 1f1b, or interleaved with several virtual stages]
    #[arg(long, value_name = "NAME")]
    pub schedule: Option<String>,
    /// Blocks of each stage in the order of the model, such as 7,8,8,7 [default: as even as can be]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub blocks: Vec<String>,
    /// 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters are divided over the replicas
    #[arg(long, value_name = "STAGE")]
    pub zero: Option<String>,
    /// Ranks that these are divided over, the others holding copies [default: all]
    #[arg(long, value_name = "N")]
    pub shard: Option<String>,
    /// What is whole for a while
    #[command(flatten)]
    pub gathering: GatheringArgs,
    /// Sequences of a micro-batch
    #[arg(long, value_name = "N")]
    pub micro_batch: Option<String>,
    /// Micro-batches of a step on one replica [default: 1, or the pipeline stages]
    #[arg(long, value_name = "N")]
    pub grad_accum: Option<String>,
    /// none, selective or full
    #[arg(long, value_name = "POLICY")]
    pub recompute: Option<String>,
    /// What lies on the host: activations, optimizer or both
    #[arg(long, value_name = "WHAT")]
    pub offload: Option<String>,
}

/// All that the flags and the file say.
struct Question {
    model: Model,
    layout: Divided,
    devices: Option<u64>,
    devices_per_node: u64,
    steps: Option<u64>,
    seq_len: (u64, Origin),
    precision: (Precision, Origin),
    optimizer: OptimizerKind,
    loss: HeadLoss,
    /// Whose configuration is written.
    engine: Option<Engine>,
    /// Who runs it.
    runs: Engine,
    warnings: Vec<Diagnostic>,
    hardware: Option<Hardware>,
    network: &'static NetworkKind,
    /// Sequences of a step, where no layout is given.
    search: Option<u64>,
    most_micro_batch: u64,
    top: usize,
    /// What of a layout is not looked for.
    given: Given,
    /// What the layout takes, once that is answered.
    estimate: Option<Estimate>,
}

impl Question {
    /// The run on the device that is named, if one is.
    fn run(&self) -> Result<Option<Measured<'_>>, Diagnostics> {
        let Some(hardware) = &self.hardware else { return Ok(None) };
        let usual = StepOptions::usual(self.seq_len.0, Profile::Fused, self.precision.0);
        let objective = Objective { head: self.loss, ..usual.objective };
        let step = StepOptions { objective, optimizer: self.optimizer, ..usual };
        let cluster = Cluster { hardware, per_node: self.devices_per_node, network: self.network };
        Measured::new(&self.model, step, Some(self.runs), cluster).map(Some)
    }

    /// The best of all layouts, where none is given.
    fn best(&mut self) -> Result<Option<Report>, Diagnostics> {
        let (Some(global_batch), Some(devices)) = (self.search, self.devices) else { return Ok(None) };
        let Some(run) = self.run()? else { return Ok(None) };
        let capacity = run.cluster.hardware.capacity();
        let wanted = Wanted {
            devices,
            global_batch,
            capacity,
            micro_batch: self.most_micro_batch,
            engine: run.engine,
            most: self.top,
            given: self.given,
            allocator: true,
        };
        let (report, found) = answer::best(&run, &wanted)?;
        match found.best.into_iter().next() {
            Some((layout, estimate)) => (self.layout, self.estimate) = (layout, Some(estimate)),
            None if self.engine.is_some() => {
                let problem = Diagnostic::error("T0478", "no layout fits: there is none to write");
                return Err(Diagnostics::from(problem.help("the same without --export says what is too large")));
            }
            None => {}
        }
        Ok(Some(report))
    }

    fn export(&self, engine: Engine) -> Result<Export, Diagnostics> {
        let run = Run {
            name: &self.model.name,
            model: &self.model.spec,
            seq_len: self.seq_len.0,
            precision: self.precision.0,
            optimizer: self.optimizer,
            loss: self.loss,
            devices_per_node: self.devices_per_node,
            steps: self.steps,
            memory: self.estimate.as_ref().map(Estimate::total),
            step_time: self.estimate.as_ref().map(Estimate::seconds),
        };
        handover::export(engine, &self.layout, &run)
    }

    /// What is said of the layout, or of the best one.
    fn answer(&mut self) -> Result<Report, Diagnostics> {
        if let Some(report) = self.best()? {
            return Ok(report);
        }
        let request = Request {
            model: &self.model,
            layout: &self.layout,
            devices: self.devices,
            seq_len: self.seq_len,
            precision: self.precision,
        };
        if let Some(engine) = self.engine {
            // What the engine cannot express is said before the layout is traced.
            self.export(engine)?;
        }
        let mut report = report(&request)?;
        self.estimate = self.run()?.map(|run| answer::add(&mut report, &run, &self.layout)).transpose()?;
        report.warnings.extend(self.warnings.iter().cloned());
        Ok(report)
    }
}

impl Layout {
    /// The configuration, and what to warn about.
    pub fn configuration(&self, read: Reader<'_>) -> Result<(String, Diagnostics), Diagnostics> {
        let mut question = self.question(read)?;
        let Some(engine) = question.engine else { return Ok(Default::default()) };
        let report = question.answer()?;
        let export = question.export(engine)?;
        Ok((export.text, report.warnings.into_iter().chain(export.warnings).collect()))
    }

    /// Answers it; with `--export`, the configuration is in the result.
    pub fn report(&self, read: Reader<'_>) -> Result<Report, Diagnostics> {
        let mut question = self.question(read)?;
        let mut report = question.answer()?;
        if let Some(engine) = question.engine {
            let export = question.export(engine)?;
            report.warnings.extend(export.warnings);
            report.result.insert("engine", engine.name());
            report.result.insert("configuration", export.text);
        }
        Ok(report)
    }

    /// Whether a layout is looked for.
    pub fn searches(&self) -> bool {
        self.hw.is_some() && self.gbs.is_some() && self.from.engine().is_none()
    }

    fn question(&self, mut read: Reader<'_>) -> Result<Question, Diagnostics> {
        let model = self.model.read(&mut read);
        let devices = read.flag_with("--devices", self.devices.as_deref(), some);
        let steps = read.flag_with("--steps", self.steps.as_deref(), some);
        let seq_len = read.flag_with("--seq-len", self.seq_len.as_deref(), some);
        let precision = word::<Precision>(&mut read, "--precision", self.precision.as_deref());
        let optimizer = word::<OptimizerKind>(&mut read, "--optimizer", self.optimizer.as_deref());
        let loss = word::<HeadLoss>(&mut read, "--loss", self.loss.as_deref());
        let engine = word::<Engine>(&mut read, "--export", self.export.as_deref());
        let hardware = read.hardware(self.hw.as_deref());
        let cluster = self.cluster.read(&mut read);
        let gbs = read.flag_with("--gbs", self.gbs.as_deref(), some);
        let most_micro_batch = read.flag_with("--most-micro-batch", self.most_micro_batch.as_deref(), some);
        let top = read.flag_with("--top", self.top.as_deref(), some);
        // With the sequences of a step, the rest of a layout is looked for; without them it is the one that is given.
        let searches = self.searches();
        let given = !searches && (self.degrees.given() || self.from.engine().is_some());
        if self.hw.is_some() && !given {
            if self.gbs.is_none() {
                let problem = Diagnostic::error("", "`--gbs` is needed to look for the best layout");
                read.problem(problem.help("--gbs 1024").help("--dp 8, or another degree, for a layout of your own"));
            }
            read.required(devices, self.devices.is_some(), "-n", "64");
            read.no_effect(&self.degrees.not_searched(), "the best layout is looked for");
        } else {
            let idle = [
                ("--gbs", self.gbs.is_some()),
                ("--most-micro-batch", self.most_micro_batch.is_some()),
                ("--top", self.top.is_some()),
            ];
            let why = if given { "a layout is given" } else { "no device is named by --hw" };
            read.no_effect(&idle, why);
        }
        if self.hw.is_none() {
            let step = [("--optimizer", self.optimizer.is_some()), ("--loss", self.loss.is_some())];
            let idle = if engine.is_some() { &[][..] } else { &step };
            read.no_effect(&[&self.cluster.given()[..1], idle].concat(), "no device is named by --hw");
        }
        let taken = self.from.read(&mut read, model.as_ref(), devices);
        let (layout, searched) = if searches {
            (Divided::default(), self.degrees.searched(&mut read))
        } else {
            (self.degrees.read(&mut read, taken.as_ref(), devices), Given::default())
        };
        if !searches {
            self.degrees.idle(&mut read, &layout);
        }
        let devices_of_run = devices.unwrap_or(layout.devices());
        self.cluster.whole_nodes(&mut read, devices_of_run);
        let longest = model.as_ref().and_then(|model| model.spec.max_positions).unwrap_or(4096).min(4096);
        let seq_len = first(seq_len, taken.as_ref().and_then(|taken| taken.seq_len), longest);
        if let Some(model) = model.as_ref().filter(|_| given || self.hw.is_none()) {
            // With what is wrong with other flags, not after it.
            read.take_all(layout::check(&layout, &model.spec, seq_len.0, devices));
        }
        let model = read.finish(model)?;
        // Where no engine is named, the one whose layouts these are.
        let runs = engine.or(self.from.engine()).unwrap_or(Engine::Megatron);
        let usual = StepOptions::usual(seq_len.0, Profile::Fused, runs.usual_precision());
        let file = taken.as_ref();
        let (network, devices_per_node) = cluster.ok_or_else(Diagnostics::new)?;
        Ok(Question {
            layout,
            devices,
            devices_per_node,
            steps,
            seq_len,
            precision: first(precision, file.and_then(|taken| taken.precision), usual.precision),
            optimizer: first(optimizer, file.and_then(|taken| taken.optimizer), usual.optimizer).0,
            loss: first(loss, file.and_then(|taken| taken.loss), runs.usual_loss()).0,
            engine,
            runs,
            network,
            search: gbs.filter(|_| searches),
            given: searched,
            hardware,
            most_micro_batch: most_micro_batch.unwrap_or(u64::MAX),
            estimate: None,
            top: top.map_or(5, |top| usize::try_from(top).unwrap_or(usize::MAX)),
            warnings: taken.map(|taken| taken.warnings).unwrap_or_default(),
            model,
        })
    }
}

impl Degrees {
    /// Whether any part of a layout is given.
    fn given(&self) -> bool {
        let words = [
            &self.dp,
            &self.tp,
            &self.cp,
            &self.ep,
            &self.etp,
            &self.pp,
            &self.virtual_stages,
            &self.schedule,
            &self.zero,
            &self.shard,
            &self.micro_batch,
            &self.grad_accum,
            &self.recompute,
            &self.offload,
        ];
        let gathering = self.gathering.given().iter().any(|(_, given)| *given);
        let switches = self.sp || self.cp_all_to_all || gathering || !self.blocks.is_empty();
        switches || words.into_iter().any(Option::is_some)
    }

    /// Flags that say nothing where the rest of a layout is looked for, each with whether it was given.
    fn not_searched(&self) -> Vec<(&'static str, bool)> {
        let own = [("--blocks", !self.blocks.is_empty()), ("--shard", self.shard.is_some())];
        own.into_iter().chain(self.gathering.given()).collect()
    }

    /// The parts that are given of a layout whose rest is looked for.
    fn searched(&self, read: &mut Reader<'_>) -> Given {
        let mut number = |flag, text: &Option<String>| read.flag_with(flag, text.as_deref(), some);
        let numbers = Given {
            dp: number("--dp", &self.dp),
            tp: number("--tp", &self.tp),
            cp: number("--cp", &self.cp),
            ep: number("--ep", &self.ep),
            etp: number("--etp", &self.etp),
            pp: number("--pp", &self.pp),
            virtual_stages: number("--virtual-stages", &self.virtual_stages),
            micro_batch: number("--micro-batch", &self.micro_batch),
            grad_accum: number("--grad-accum", &self.grad_accum),
            ..Given::default()
        };
        Given {
            sp: self.sp.then_some(true),
            context: self.cp_all_to_all.then_some(ContextParallel::AllToAll),
            schedule: word(read, "--schedule", self.schedule.as_deref()),
            zero: read.flag_with("--zero", self.zero.as_deref(), stage),
            recompute: word(read, "--recompute", self.recompute.as_deref()),
            offload: word(read, "--offload", self.offload.as_deref()),
            ..numbers
        }
    }

    /// Refuses flags that the layout has no use for.
    fn idle(&self, read: &mut Reader<'_>, layout: &Divided) {
        let schedule = self.schedule.is_some() && layout.pp == 1;
        let idle = [
            ("--shard", self.shard.is_some() && layout.zero == 0, "zero 0 divides nothing over replicas"),
            ("--cp-all-to-all", self.cp_all_to_all && layout.cp == 1, "no ranks share a sequence without --cp"),
            ("--schedule", schedule, "there is no pipeline without --pp"),
        ];
        for (flag, is_idle, why) in idle {
            read.no_effect(&[(flag, is_idle)], why);
        }
    }

    /// What the flags say, over what a file says.
    fn read(&self, read: &mut Reader<'_>, taken: Option<&Taken>, devices: Option<u64>) -> Divided {
        let mut layout = taken.map(|taken| taken.layout.clone()).unwrap_or_default();
        let mut set = |flag, text: &Option<String>, value: &mut u64| {
            if let Some(given) = read.flag_with(flag, text.as_deref(), some) {
                *value = given;
            }
        };
        set("--tp", &self.tp, &mut layout.tp);
        set("--cp", &self.cp, &mut layout.cp);
        set("--ep", &self.ep, &mut layout.ep);
        set("--etp", &self.etp, &mut layout.etp);
        set("--pp", &self.pp, &mut layout.pp);
        set("--virtual-stages", &self.virtual_stages, &mut layout.virtual_stages);
        set("--micro-batch", &self.micro_batch, &mut layout.micro_batch);
        if taken.is_none() {
            layout.grad_accum = layout.pp;
        }
        set("--grad-accum", &self.grad_accum, &mut layout.grad_accum);
        // Replicas are what the devices leave, those of the file where it has a layout of its own.
        let divided = [&self.tp, &self.cp, &self.pp].iter().any(|degree| degree.is_some());
        match (taken, devices) {
            (None, Some(devices)) if self.dp.is_none() => layout.fill(devices),
            (Some(taken), _) if self.dp.is_none() && divided => {
                let (devices, batch) = (taken.layout.devices(), taken.layout.global_batch());
                layout.fill(devices);
                let at_once = layout.dp.saturating_mul(layout.micro_batch);
                if self.grad_accum.is_none() && batch.is_multiple_of(at_once) {
                    layout.grad_accum = batch / at_once;
                }
            }
            _ => set("--dp", &self.dp, &mut layout.dp),
        }
        if let Some(zero) = read.flag_with("--zero", self.zero.as_deref(), stage) {
            layout.zero = zero;
        }
        layout.shard = read.flag_with("--shard", self.shard.as_deref(), some).or(layout.shard);
        layout.sp |= self.sp;
        layout.gathering = self.gathering.over(read, layout.gathering, layout.zero, layout.grad_accum);
        if self.cp_all_to_all {
            layout.context = ContextParallel::AllToAll;
        }
        if !self.blocks.is_empty() {
            let blocks = self.blocks.iter().filter_map(|text| read.flag_with("--blocks", Some(text.trim()), count));
            layout.blocks = Some(blocks.collect());
        }
        if layout.virtual_stages > 1 {
            layout.schedule = Schedule::Interleaved;
        }
        over(read, "--schedule", self.schedule.as_deref(), &mut layout.schedule);
        over::<Recompute>(read, "--recompute", self.recompute.as_deref(), &mut layout.recompute);
        over::<Offload>(read, "--offload", self.offload.as_deref(), &mut layout.offload);
        layout
    }
}
