//! `napkin afford`: the model a budget trains best, the cheapest hardware for a deadline, the shortest time for a budget.

use clap::Args;
use nn::Profile;
use nn::step::{Precision as Recipe, StepOptions};
use plan::afford::{self, Budget, hardware, soonest};
use plan::fleet::Fleet;
use plan::handover::Engine;
use plan::hardware::Precision;
use plan::layout::estimate::{Cluster, Run};
use plan::report::{Assumption, Origin, Report};
use units::{Diagnostic, Diagnostics, Mfu, Seconds, Tokens};

use crate::layout_args::{ClusterArgs, first};
use crate::parse::{Reader, days, dollars, some};
use crate::step::{WorkArgs, word};

/// The model that a budget trains best; with a model, the cheapest hardware for a deadline or the shortest time for a budget.
#[derive(Debug, Args)]
pub struct Afford {
    /// The model that is trained, where it is known
    #[command(flatten)]
    pub work: WorkArgs,
    /// What there is to spend: '64 h100-sxm for 14 days', '5000 device-days' or '$50000'
    #[arg(long, value_name = "BUDGET")]
    pub budget: Option<String>,
    /// When the run has to end, such as 14d
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<String>,
    /// Tokens to train on
    #[arg(long, value_name = "N")]
    pub tokens: Option<String>,
    /// The accelerator that a budget is spent on
    #[arg(long, value_name = "NAME")]
    pub hw: Option<String>,
    /// The nodes
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Sequences of a step, over all replicas [default: 1024]
    #[arg(long, value_name = "N")]
    pub gbs: Option<String>,
    /// Number formats of the run [default: bf16-master-fp32-grads]
    #[arg(long, value_name = "RECIPE")]
    pub precision: Option<String>,
    /// Utilization [default: 0.4, the middle of the usual]
    #[arg(long, value_name = "SHARE")]
    pub mfu: Option<String>,
    /// US dollars for one device and hour: 2.50, or for one of several devices h100-sxm=2.50
    #[arg(long, value_name = "USD")]
    pub price: Vec<String>,
    /// Arithmetic of the matrix products [default: bf16]
    #[arg(long, value_name = "DTYPE")]
    pub dtype: Option<String>,
}

/// What the flags say that several questions share.
struct Said {
    mfu: Option<Mfu>,
    prices: Vec<(Option<String>, f64)>,
    precision: Option<Precision>,
    tokens: Option<Tokens>,
    deadline: Option<Seconds>,
}

impl Said {
    /// The price of the one device there is.
    fn price(&self) -> Option<f64> {
        self.prices.first().map(|(_, price)| *price)
    }
}

impl Afford {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let budget = self.budget.as_deref().map(|text| read.take(text.parse::<Budget>()));
        let said = Said {
            mfu: read.flag::<Mfu>("--mfu", self.mfu.as_deref()),
            prices: read.flags("--price", &self.price, price),
            precision: read.flag::<Precision>("--dtype", self.dtype.as_deref()),
            tokens: read.flag::<Tokens>("--tokens", self.tokens.as_deref()),
            deadline: read.flag_with("--deadline", self.deadline.as_deref(), days),
        };
        let knows_work = self.work.model.is_some() || self.work.flops_per_token.is_some();
        match (budget, knows_work) {
            (Some(budget), false) => self.largest(read, budget, &said),
            (Some(budget), true) => self.soonest(read, budget, &said),
            (None, true) if self.deadline.is_some() => self.cheapest(read, said),
            _ => {
                read.problem(
                    Diagnostic::error("", "what is there to spend, or to reach?")
                        .help("--budget '64 h100-sxm for 14 days': the model that it trains best")
                        .help("llama-3.1-8b --tokens 1T --deadline 14d: the cheapest hardware")
                        .help("llama-3.1-8b --tokens 1T --hw h100-sxm --budget '5000 device-days': the shortest time"),
                );
                read.finish(None)
            }
        }
    }

    /// The model that a budget trains best.
    fn largest(&self, mut read: Reader<'_>, budget: Option<Budget>, said: &Said) -> Result<Report, Diagnostics> {
        let idle = [
            ("--tokens", self.tokens.is_some()),
            ("--gbs", self.gbs.is_some()),
            ("--precision", self.precision.is_some()),
        ];
        read.no_effect(&idle, "no model is named");
        read.no_effect(&self.cluster.given(), "no model is named");
        let fleet = match budget {
            Some(Budget::Fleet { devices, name, time }) => {
                let idle = [("--deadline", self.deadline.is_some()), ("--hw", self.hw.is_some())];
                read.no_effect(&idle, "the budget says which devices, and for how long");
                Some((name, devices, time))
            }
            Some(budget) => {
                let hw = read.required(self.hw.clone(), self.hw.is_some(), "--hw", "h100-sxm");
                let time = read.required(said.deadline, self.deadline.is_some(), "--deadline", "14d");
                let spend = read.take(budget.device_time(said.price()));
                hw.zip(time).zip(spend).and_then(|((name, time), spend)| {
                    // As many as the budget keeps busy until then.
                    let devices = (spend.get() / time.get()).floor();
                    if devices >= 1.0 && devices < u64::MAX as f64 {
                        return Some((name, devices as u64, time));
                    }
                    let message = format!("a budget of {spend} of one device does not last for {time}");
                    read.problem(Diagnostic::error("T0489", message).help("an earlier --deadline"));
                    None
                })
            }
            None => None,
        };
        let request = fleet.and_then(|(name, devices, time)| {
            let hardware = read.hardware(Some(&name))?;
            let fleet = Fleet {
                hardware,
                devices,
                devices_given: true,
                precision: said.precision.unwrap_or(Precision::Bf16),
                precision_given: said.precision.is_some(),
            };
            Some(afford::Request { fleet, time, mfu: said.mfu, price: said.price() })
        });
        read.finish(request)?.report()
    }

    /// The cheapest hardware for a deadline.
    fn cheapest(&self, mut read: Reader<'_>, said: Said) -> Result<Report, Diagnostics> {
        let idle =
            [("--hw", self.hw.is_some()), ("--gbs", self.gbs.is_some()), ("--precision", self.precision.is_some())];
        read.no_effect(&idle, "all accelerators of the table are looked at, each at the same utilization");
        read.no_effect(&self.cluster.given(), "all accelerators of the table are looked at");
        let work = self.work.read(&mut read);
        let tokens = read.required(said.tokens, self.tokens.is_some(), "--tokens", "1T");
        let mut prices = Vec::new();
        for (name, price) in said.prices {
            let Some(name) = name else {
                let problem = Diagnostic::error("", format!("--price {price} is of no device"));
                read.problem(problem.help(format!("--price h100-sxm={price}")));
                continue;
            };
            prices.extend(read.hardware(Some(&name)).map(|hardware| (hardware.name, price)));
        }
        let all = work.zip(tokens).zip(said.deadline);
        let ((work, tokens), deadline) = read.finish(all)?;
        let precision = said.precision.unwrap_or(Precision::Bf16);
        hardware::Request { work, tokens, deadline, mfu: said.mfu, precision, prices }.report()
    }

    /// The shortest time for a budget.
    fn soonest(&self, mut read: Reader<'_>, budget: Option<Budget>, said: &Said) -> Result<Report, Diagnostics> {
        let idle = [
            ("--mfu", self.mfu.is_some()),
            ("--dtype", self.dtype.is_some()),
            ("--flops-per-token", self.work.flops_per_token.is_some()),
        ];
        read.no_effect(&idle, "the time of a step is predicted, layout by layout");
        let model = self.work.model.as_deref().and_then(|name| self.work.reading.read(&mut read, name));
        let tokens = read.required(said.tokens, self.tokens.is_some(), "--tokens", "1T");
        let gbs = read.flag_with("--gbs", self.gbs.as_deref(), some);
        let seq_len = read.flag_with("--seq-len", self.work.seq_len.as_deref(), some);
        let recipe = word::<Recipe>(&mut read, "--precision", self.precision.as_deref());
        let cluster = self.cluster.read(&mut read);
        let hardware = if let Some(Budget::Fleet { name, .. }) = &budget {
            read.no_effect(&[("--hw", self.hw.is_some())], "the budget says which devices");
            read.hardware(Some(name))
        } else {
            let hardware = read.hardware(self.hw.as_deref());
            read.required(hardware, self.hw.is_some(), "--hw", "h100-sxm")
        };
        let spend = budget.and_then(|budget| read.take(budget.device_time(said.price())));
        let all = model.zip(tokens).zip(cluster).zip(hardware.zip(spend));
        let (((model, tokens), (network, per_node)), (hardware, spend)) = read.finish(all)?;
        let longest = model.spec.max_positions.unwrap_or(4096).min(4096);
        let (seq_len, len_from) = first(seq_len, None, longest);
        let (recipe, recipe_from) = first(recipe, None, Recipe::Bf16MasterFp32Grads);
        let (gbs, gbs_from) = first(gbs, None, 1024);
        let step = StepOptions::usual(seq_len, Profile::Fused, recipe);
        let taken = vec![
            Assumption::new("global_batch", "sequences of a step", gbs, gbs_from).flag("--gbs"),
            Assumption::new("seq_len", "sequence length", Tokens(seq_len), len_from).flag("--seq-len"),
            Assumption::new("precision", "precision", recipe.name(), recipe_from).flag("--precision"),
            Assumption::new("optimizer", "optimizer", step.optimizer.to_string(), Origin::Default),
            Assumption::new("most_micro_batch", "micro-batch", "at most 2", Origin::Default)
                .why("larger ones are not looked at"),
        ];
        let cluster = Cluster { hardware: &hardware, per_node, network };
        let run = Run::new(&model, step, Some(Engine::Megatron), cluster)?;
        let request = soonest::Request {
            run: &run,
            tokens,
            global_batch: gbs,
            micro_batch: 2,
            spend,
            deadline: said.deadline,
            price: said.price(),
            said: taken,
        };
        request.report()
    }
}

/// A price, perhaps of a device that is named.
fn price(text: &str) -> Result<(Option<String>, f64), Diagnostic> {
    match text.split_once('=') {
        Some((name, price)) => Ok((Some(name.trim().to_owned()), dollars(price)?)),
        None => Ok((None, dollars(text)?)),
    }
}
