//! What a budget trains best: compute, and parameters and tokens by published scaling laws. The ways back are in [`hardware`],
//! the cheapest devices for a deadline, and in [`soonest`], the shortest time for a budget.
//!
//! A law says the loss of `N` parameters trained on `D` tokens, `E + A/N^α + B/D^β`; of all pairs with `6 N D = C` one has the
//! least. Laws differ, and that is the uncertainty of the answer.

pub mod budget;
pub mod hardware;
pub mod soonest;

use nn::optim::Kind;
use nn::step::Precision;
use std::sync::OnceLock;
use units::{Diagnostic, Diagnostics, Flops, Mfu, Params, Seconds, Tokens};

use crate::fleet::Fleet;
use crate::formulas;
use crate::phrase;
use crate::report::{Assumption, Block, Cell, Column, Derivation, KeyValue, Origin, Report, Row, Table, Value};
use crate::states::ParameterBytes;
use crate::time::USUAL_MFU;

pub use budget::Budget;

/// The recipe whose states are said.
const RECIPE: Precision = Precision::Bf16MasterFp32Grads;

/// A published scaling law.
#[derive(Clone, Debug, PartialEq)]
pub struct Law {
    /// Stable name.
    pub name: &'static str,
    /// Who says so.
    pub display: &'static str,
    /// How tokens follow from parameters.
    pub form: Form,
    /// Where.
    pub source: &'static str,
}

/// What a law says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// The loss.
    Loss {
        /// What no model gets below.
        floor: f64,
        /// Numerator of the term of parameters.
        a: f64,
        /// Its exponent.
        alpha: f64,
        /// Numerator of the term of tokens.
        b: f64,
        /// Its exponent.
        beta: f64,
    },
    /// So many tokens for each parameter.
    Ratio(f64),
}

/// The best pair for a compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Parameters.
    pub parameters: f64,
    /// Tokens.
    pub tokens: f64,
    /// Loss, where the law says it.
    pub loss: Option<f64>,
}

impl Best {
    /// Whether both are counts: at least one, and few enough for 64 bits.
    pub fn is_countable(&self) -> bool {
        let is_count = |number: f64| (1.0..u64::MAX as f64).contains(&number);
        is_count(self.parameters) && is_count(self.tokens)
    }
}

impl Form {
    /// The loss of a pair.
    pub fn loss(self, parameters: f64, tokens: f64) -> Option<f64> {
        match self {
            Self::Loss { floor, a, alpha, b, beta } => Some(floor + a / parameters.powf(alpha) + b / tokens.powf(beta)),
            Self::Ratio(_) => None,
        }
    }

    /// The pair of least loss with `6 N D` of this compute: where a little more of either lowers it by as much,
    /// `α A / N^α = β B / D^β`.
    pub fn best(self, flop: f64) -> Best {
        let product = flop / 6.0;
        let parameters = match self {
            Self::Loss { a, alpha, b, beta, .. } => {
                (alpha * a / (beta * b)).powf(1.0 / (alpha + beta)) * product.powf(beta / (alpha + beta))
            }
            Self::Ratio(ratio) => (product / ratio).sqrt(),
        };
        let tokens = product / parameters;
        Best { parameters, tokens, loss: self.loss(parameters, tokens) }
    }
}

/// The laws, the one that is answered first.
pub fn laws() -> &'static [Law] {
    static LAWS: OnceLock<Vec<Law>> = OnceLock::new();
    LAWS.get_or_init(|| include_str!("../../../data/scaling_laws.csv").lines().skip(1).filter_map(law).collect())
}

/// A row; nothing for what is none, which a test looks for.
fn law(line: &'static str) -> Option<Law> {
    let (numbers, source) = line.split_once('"')?;
    let cells: Vec<&str> = numbers.split(',').collect();
    let number = |i: usize| cells.get(i)?.parse::<f64>().ok();
    let form = match number(7) {
        Some(ratio) => Form::Ratio(ratio),
        None => Form::Loss { floor: number(2)?, a: number(3)?, alpha: number(4)?, b: number(5)?, beta: number(6)? },
    };
    let source = source.split_once('"')?.0;
    Some(Law { name: cells.first()?, display: cells.get(1)?, form, source })
}

/// The question.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The devices.
    pub fleet: Fleet,
    /// For how long.
    pub time: Seconds,
    /// At which utilization; `None`: the middle of the usual.
    pub mfu: Option<Mfu>,
    /// US dollars for one device and hour.
    pub price: Option<f64>,
}

impl Request {
    /// Answers it.
    ///
    /// # Errors
    /// If the device has no rate for the arithmetic, or the budget is nothing.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let usual = Mfu::new(USUAL_MFU[1]).map_err(|error| Diagnostic::error("", error.to_string()))?;
        let mfu = self.mfu.unwrap_or(usual);
        let peak = self.fleet.total_peak()?;
        let flop = peak.get() * mfu.get() * self.time.get();
        let all: Vec<(&Law, Best)> = laws().iter().map(|law| (law, law.form.best(flop))).collect();
        if !all.iter().all(|(_, best)| best.is_countable()) {
            let message = format!("{flop:.3e} FLOP train no number of parameters and tokens that can be counted");
            let problem = Diagnostic::error("T0489", message).why("at least one of each, and at most 2^64");
            return Err(Diagnostics::from(problem.help("--budget '64 h100-sxm for 14 days'")));
        }
        let [(_, first), ..] = all.as_slice() else {
            return Err(Diagnostics::from(Diagnostic::error("T0489", "there are no scaling laws")));
        };
        let parameters = |best: &Best| Params(best.parameters.round() as u64);
        let tokens = |best: &Best| Tokens(best.tokens.round() as u64);
        let work = Flops(flop.round() as u128);
        let least = all.iter().map(|(_, best)| best.parameters).fold(f64::INFINITY, f64::min);
        let most = all.iter().map(|(_, best)| best.parameters).fold(0.0, f64::max);
        let mut report =
            Report::new("afford", phrase![parameters(first), " parameters on ", tokens(first), " tokens"]).qualified(
                phrase![Params(least.round() as u64), " to ", Params(most.round() as u64), " by other laws; ", work],
            );
        let hours = self.time.hours() * self.fleet.devices as f64;
        let mut rows = vec![
            KeyValue::new("compute", work).note(phrase![self.fleet.name(), " × ", self.time, " × ", mfu, " MFU"]),
            KeyValue::new("device-hours", Cell::Short(hours.round() as u128)),
        ];
        if let Some(price) = self.price {
            rows.push(KeyValue::new("cost", Cell::Dollars(hours * price)));
        }
        report.blocks.push(Block::key_values("", rows));
        let columns = [
            Column::left("scaling law"),
            Column::right("parameters"),
            Column::right("tokens"),
            Column::right("per parameter"),
            Column::right("loss"),
        ];
        let mut table = Table::new("", columns);
        for (law, best) in &all {
            table.rows.push(Row::new([
                Cell::from(law.display),
                parameters(best).into(),
                tokens(best).into(),
                Cell::Number { value: best.tokens / best.parameters, decimals: 1 },
                best.loss.map_or(Cell::Empty, |loss| Cell::Number { value: loss, decimals: 3 }),
            ]));
        }
        report.blocks.push(table.into());
        let each = ParameterBytes::of(RECIPE, Kind::AdamW).map_or(0, |each| each.total());
        let states = each as f64 * first.parameters / self.fleet.devices as f64;
        let capacity = self.fleet.hardware.capacity();
        let bytes = units::Bytes(states.round() as u64);
        let fits = phrase![if bytes < capacity { "of " } else { "do not fit in the " }, capacity, " of a device"];
        let row = KeyValue::new("states", bytes)
            .note(phrase![each, " bytes per parameter (", RECIPE.name(), ") over all devices: "].and(fits));
        report.blocks.push(Block::key_values("", [row]));
        let law = |(law, best): &(&Law, Best)| {
            Value::map()
                .with("law", law.name)
                .with("parameters", best.parameters)
                .with("tokens", best.tokens)
                .with("loss", best.loss)
                .with("source", law.source)
        };
        report.result = Value::map()
            .with("flop", work)
            .with("device_hours", hours)
            .with("cost_usd", self.price.map(|price| price * hours))
            .with("laws", Value::List(all.iter().map(law).collect()));
        report.derivations = self.derivations(work, mfu, &all)?;
        report.assumptions.extend(self.fleet.assumptions());
        let from = if self.mfu.is_some() { Origin::Given } else { Origin::Default };
        let value = Cell::Number { value: mfu.get(), decimals: 2 };
        report.assumptions.push(Assumption::new("mfu", "MFU", value, from).flag("--mfu"));
        report.assumptions.push(
            Assumption::new("recipe", "states", RECIPE.name(), Origin::Default)
                .why(phrase!["of AdamW, over all devices; activations are not in it"]),
        );
        report.assumptions.push(
            Assumption::new("flop_per_token", "FLOP per token", "6 per parameter", Origin::Derived)
                .why("as the laws count; attention is not in it"),
        );
        Ok(report)
    }

    /// Compute, and what each law makes of it.
    fn derivations(&self, work: Flops, mfu: Mfu, all: &[(&Law, Best)]) -> Result<Vec<Derivation>, Diagnostic> {
        let peak = self.fleet.peak()?.rate;
        let share = Cell::Number { value: mfu.get(), decimals: 2 };
        let compute = phrase![self.fleet.devices, " × ", peak, " × ", share, " × ", self.time];
        let mut derived = vec![
            formulas::derive("compute", "compute", compute, work),
            formulas::derive(
                "device-hours",
                "device-hours",
                phrase![self.fleet.devices, " × ", self.time],
                Cell::Short((self.time.hours() * self.fleet.devices as f64).round() as u128),
            ),
        ];
        let number = |value: f64, decimals| Cell::Number { value, decimals };
        for (law, best) in all {
            let (parameters, tokens) = (Params(best.parameters.round() as u64), Tokens(best.tokens.round() as u64));
            let (id, words) = match law.form {
                Form::Loss { a, alpha, b, beta, .. } => {
                    let over = phrase![" / ", number(alpha + beta, 4), ")"];
                    let first = phrase![
                        "(",
                        number(alpha, 4),
                        " × ",
                        number(a, 2),
                        " ÷ (",
                        number(beta, 4),
                        " × ",
                        number(b, 2)
                    ];
                    let second =
                        phrase!["))^(1"].and(over.clone()).and(" × (").and(work).and(" ÷ 6)^(").and(number(beta, 4));
                    ("optimal-parameters", first.and(second).and(over))
                }
                Form::Ratio(ratio) => ("optimal-ratio", phrase!["√(", work, " ÷ (6 × ", number(ratio, 0), "))"]),
            };
            let of = format!("parameters ({})", law.display);
            let by = formulas::derive(of, id, words, parameters);
            derived.push(Derivation { source: law.source.to_owned(), ..by });
            let of = format!("tokens ({})", law.display);
            derived.push(formulas::derive(of, "optimal-tokens", phrase![work, " ÷ (6 × ", parameters, ")"], tokens));
        }
        Ok(derived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pair that the closed form gives is the best of all, tried one by one.
    #[test]
    fn no_other_pair_has_less_loss() {
        assert_eq!(laws().len(), 3);
        for law in laws() {
            for flop in [1e19, 5.76e23, 1e26] {
                let best = law.form.best(flop);
                assert!((6.0 * best.parameters * best.tokens / flop - 1.0).abs() < 1e-12);
                let Some(least) = best.loss else { continue };
                for step in -200..=200 {
                    let parameters = best.parameters * (f64::from(step) / 40.0).exp();
                    let loss = law.form.loss(parameters, flop / 6.0 / parameters).unwrap();
                    assert!(loss >= least - 1e-12, "{}: {parameters}", law.name);
                }
            }
        }
    }

    #[test]
    fn pairs_are_counts() {
        let all = |flop: f64| laws().iter().map(|law| law.form.best(flop).is_countable()).collect::<Vec<_>>();
        assert_eq!(all(1e22), [true; 3]);
        for flop in [0.0, 1e-270, 5.0, 1e45, f64::INFINITY, f64::NAN] {
            assert_eq!(all(flop), [false; 3], "{flop}");
        }
    }

    /// Source: Hoffmann et al. 2022, section 3.4: approach 3 predicts 40 B parameters at the compute of Gopher, 5.76e23 FLOP.
    /// Besiroglu et al. 2024: about 20 tokens for each parameter there, as the other approaches and Chinchilla itself have it.
    #[test]
    fn laws_say_what_their_papers_say() {
        let of = |name: &str| laws().iter().find(|law| law.name == name).unwrap().form.best(5.76e23);
        let hoffmann = of("hoffmann-3");
        assert!((30e9..45e9).contains(&hoffmann.parameters), "{hoffmann:?}");
        let refit = of("refit");
        assert!((15.0..26.0).contains(&(refit.tokens / refit.parameters)), "{refit:?}");
        let twenty = of("twenty");
        assert!((69e9..70e9).contains(&twenty.parameters), "{twenty:?}");
    }
}
