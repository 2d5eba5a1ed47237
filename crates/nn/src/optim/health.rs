//! What rounding did to an update: weights that did not move, decay that had no effect, means that stand still.

use super::update::Update;
use super::{Hyper, Kind, adam, lion, muon, simple};
use std::fmt;
use tensor::{Result, Tensor};
use units::Diagnostic;

/// Numbers of elements, of all parameters together, after an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// Weights whose update was not zero.
    pub updated: u64,
    /// Of these, weights that are what they were: the update was less than half a spacing.
    pub vanished: u64,
    /// Weights that decay was to move.
    pub decayed: u64,
    /// Of these, weights that decay alone leaves as they are.
    pub undecayed: u64,
    /// Elements of running means that are not zero.
    pub means: u64,
    /// Of these, elements that stay as they are when they decay: without a gradient they would never fall.
    pub stuck: u64,
    /// The parameter of whose updates the largest part vanished, and that part.
    pub worst: Option<(String, f64)>,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of {} updates {} vanished; decay moved {} of {} weights; {} of {} means cannot decay",
            self.updated,
            self.vanished,
            self.decayed - self.undecayed,
            self.decayed,
            self.stuck,
            self.means
        )
    }
}

/// Share of lost elements from which on it is worth a word.
const WORTH_SAYING: f64 = 0.5;

impl Health {
    /// What is wrong, and what to do about it; nothing where less than half of the elements are concerned.
    pub fn warnings(&self) -> Vec<Diagnostic> {
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let mut all = Vec::new();
        let vanished = share(self.vanished, self.updated);
        if vanished >= WORTH_SAYING {
            let mut warning = Diagnostic::warning("T0652", format!("{} of the updates vanished", percent(vanished)))
                .why("they are less than half a spacing of the weight in the dtype it is stored in")
                .help("--precision bf16-master")
                .help("stochastic rounding");
            if let Some((name, part)) = &self.worst {
                warning = warning.effect(format!("`{name}` kept {} of its weights", percent(*part)));
            }
            all.push(warning);
        }
        let undecayed = share(self.undecayed, self.decayed);
        if undecayed >= WORTH_SAYING {
            let said = format!("weight decay has no effect on {} of the weights", percent(undecayed));
            let why = "lr × decay of a weight is less than half a spacing of it";
            all.push(Diagnostic::warning("T0653", said).why(why).help("--precision bf16-master"));
        }
        let stuck = share(self.stuck, self.means);
        if stuck >= WORTH_SAYING {
            let said = format!("{} of the running means cannot decay", percent(stuck));
            let why = "1 - beta of a mean is less than half a spacing of it";
            all.push(Diagnostic::warning("T0654", said).why(why).help("beta2 0.95").help("--precision bf16-master"));
        }
        all
    }
}

/// Elements that something was to change, and how many of them it left as they were.
type Pair = [Tensor; 2];

/// Counts of one parameter, as tensors: they are read once, after the update of all.
pub(super) struct Counts {
    name: String,
    updated: Option<Pair>,
    decayed: Option<Pair>,
    means: Vec<Pair>,
}

/// Which elements are not zero.
fn nonzero(t: &Tensor) -> Result<Tensor> {
    t.not_equal(&t.runtime().zeros(&[], t.dtype())?)
}

/// Elements that are not zero, and those of them that stay what they are when multiplied by `factor`.
fn unmoved(t: &Tensor, factor: f64) -> Result<Pair> {
    let counted = nonzero(t)?;
    let same = t.mul_scalar(factor)?.equal(t)?.logical_and(&counted)?;
    Ok([counted.sum_all()?, same.sum_all()?])
}

/// The running means of a rule, and their decays.
fn decays(rule: Kind, h: &Hyper) -> Vec<(&'static str, f64)> {
    match rule {
        Kind::Momentum => vec![(simple::MOMENTUM, h.beta1)],
        Kind::RmsProp => vec![(simple::SQUARES, h.beta2)],
        Kind::Adam | Kind::AdamW => vec![(adam::MEAN, h.beta1), (adam::SQUARES, h.beta2)],
        Kind::Muon => vec![(muon::MOMENTUM, h.momentum)],
        Kind::Lion => vec![(lion::MEAN, h.beta2)],
        // A sum does not decay; a growing decay and bytes are not told by a factor.
        Kind::Sgd | Kind::AdaGrad | Kind::Adafactor | Kind::Adam8bit => Vec::new(),
    }
}

impl Counts {
    /// Looks at a parameter after its update. `before` is what it was, or `None` where weights are rounded at random:
    /// those that do not move are right in the mean.
    pub fn of(name: &str, update: &Update<'_>, before: Option<&Tensor>) -> Result<Self> {
        let means: Vec<(&Tensor, f64)> = decays(update.rule, &update.hyper)
            .into_iter()
            .filter_map(|(slot, factor)| Some((update.state.find(slot)?, factor)))
            .collect();
        let updated = before.map(|before| -> Result<Pair> {
            // The step of a rule with a mean of gradients is zero where that is.
            let moved = nonzero(match (update.rule, means.first()) {
                (Kind::RmsProp, _) | (_, None) => update.grad,
                (_, Some((mean, _))) => mean,
            })?;
            let same = update.weight().equal(before)?.logical_and(&moved)?;
            Ok([moved.sum_all()?, same.sum_all()?])
        });
        let decayed = before.zip(update.decay_factor()).map(|(before, factor)| unmoved(before, factor));
        let means = means.into_iter().map(|(mean, factor)| unmoved(mean, factor)).collect::<Result<_>>()?;
        Ok(Self { name: name.to_owned(), updated: updated.transpose()?, decayed: decayed.transpose()?, means })
    }
}

impl Health {
    /// Reads the counts of all parameters.
    ///
    /// # Errors
    /// On the meta device.
    pub(super) fn of(counts: &[Counts]) -> Result<Self> {
        let read = |pair: &Pair| Ok::<_, tensor::Error>((pair[0].item()? as u64, pair[1].item()? as u64));
        let mut all = Self::default();
        for one in counts {
            if let Some((updated, vanished)) = one.updated.as_ref().map(read).transpose()? {
                all.updated += updated;
                all.vanished += vanished;
                let part = vanished as f64 / updated.max(1) as f64;
                if vanished > 0 && all.worst.as_ref().is_none_or(|(_, worst)| part > *worst) {
                    all.worst = Some((one.name.clone(), part));
                }
            }
            if let Some((decayed, undecayed)) = one.decayed.as_ref().map(read).transpose()? {
                all.decayed += decayed;
                all.undecayed += undecayed;
            }
            for (means, stuck) in one.means.iter().map(read).collect::<Result<Vec<_>>>()? {
                all.means += means;
                all.stuck += stuck;
            }
        }
        Ok(all)
    }
}
