//! The cheapest accelerators that end a run by a deadline: of each in the table, as many as the work and the states take.

use nn::optim::Kind as Rule;
use units::{Bytes, Diagnostic, Diagnostics, Mfu, Seconds, Tokens};

use super::RECIPE;
use crate::formulas;
use crate::hardware::{Hardware, Kind, Precision, table};
use crate::phrase;
use crate::report::{Assumption, Cell, Column, Origin, Report, Row, Table, Value, Verdict};
use crate::states::ParameterBytes;
use crate::time::USUAL_MFU;
use crate::work::Work;

/// The question.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Work of one token.
    pub work: Work,
    /// How many tokens.
    pub tokens: Tokens,
    /// When the run has to end.
    pub deadline: Seconds,
    /// Utilization of every device; `None`: the middle of the usual.
    pub mfu: Option<Mfu>,
    /// Arithmetic of the matrix products.
    pub precision: Precision,
    /// US dollars for one device and hour, by the name of the device.
    pub prices: Vec<(String, f64)>,
}

/// The devices of one kind that are enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// The device.
    pub hardware: &'static Hardware,
    /// How many.
    pub devices: u64,
    /// Whether the states ask for more of them than the work does.
    pub for_states: bool,
    /// How long they take.
    pub time: Seconds,
    /// What that costs, where the price is known.
    pub cost: Option<f64>,
}

impl Offer {
    /// Time of one device that the run takes.
    pub fn device_days(&self) -> f64 {
        self.time.days() * self.devices as f64
    }
}

/// Most offers that are shown to people.
const SHOWN: usize = 12;

/// More devices than this are no offer.
const MOST_DEVICES: f64 = 16_777_216.0;

impl Request {
    /// An offer of every accelerator with a rate for the arithmetic: those with a price first, the cheapest first, then the others
    /// by device-days.
    ///
    /// # Errors
    /// If there is no work, no time, or no accelerator that could do it.
    pub fn offers(&self) -> Result<Vec<Offer>, Diagnostics> {
        let mut problems = Diagnostics::new();
        if self.tokens.is_zero() {
            problems.push(Diagnostic::error("", "no tokens to train on").help("--tokens 15T"));
        }
        if self.deadline == Seconds::ZERO {
            problems.push(Diagnostic::error("", "no run ends in no time").help("--deadline 14d"));
        }
        if self.mfu == Some(Mfu::ZERO) {
            problems.push(Diagnostic::error("", "at an MFU of 0 the run never ends").help("--mfu 0.4"));
        }
        if problems.has_errors() {
            return Err(problems);
        }
        let mut offers: Vec<Offer> = table().iter().filter_map(|hardware| self.offer(hardware)).collect();
        if offers.is_empty() {
            let message = format!("no accelerator of the table ends this run in time in {}", self.precision.name());
            return Err(Diagnostic::error("T0489", message).help("a later --deadline, or another --dtype").into());
        }
        offers.sort_by(|a, b| {
            let unpriced = a.cost.is_none().cmp(&b.cost.is_none());
            let cost = a.cost.zip(b.cost).map_or(std::cmp::Ordering::Equal, |(a, b)| a.total_cmp(&b));
            unpriced.then(cost).then(a.device_days().total_cmp(&b.device_days())).then(a.devices.cmp(&b.devices))
        });
        Ok(offers)
    }

    fn mfu(&self) -> f64 {
        self.mfu.map_or(USUAL_MFU[1], Mfu::get)
    }

    fn offer(&self, hardware: &'static Hardware) -> Option<Offer> {
        if hardware.kind == Kind::Cpu {
            return None;
        }
        let flop = (self.tokens * self.work.flop_per_token()).as_f64();
        let rate = hardware.peak(self.precision)?.rate.get() * self.mfu();
        let for_work = (flop / rate / self.deadline.get()).ceil();
        let for_states = (self.states().get() as f64 / hardware.capacity().get() as f64).ceil();
        let devices = for_work.max(for_states).max(1.0);
        let time = Seconds::new(flop / rate / devices).ok()?;
        let price = self.prices.iter().find(|(name, _)| *name == hardware.name).map(|(_, price)| *price);
        (devices <= MOST_DEVICES).then(|| Offer {
            hardware,
            devices: devices as u64,
            for_states: for_states > for_work,
            time,
            cost: price.map(|price| price * time.hours() * devices),
        })
    }

    /// Bytes of parameters, gradients and states; nothing where only the work is known.
    fn states(&self) -> Bytes {
        let each = ParameterBytes::of(RECIPE, Rule::AdamW).map_or(0, |each| each.total());
        Bytes(self.work.parameters.map_or(0, |parameters| parameters.get().saturating_mul(each)))
    }

    /// Answers it.
    ///
    /// # Errors
    /// As [`offers`](Self::offers).
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let offers = self.offers()?;
        let priced = offers.iter().any(|offer| offer.cost.is_some());
        let Some(first) = offers.first() else { return Err(Diagnostics::new()) };
        let cell_days = |days: f64| Cell::Short(days.ceil() as u128);
        let on = |offer: &Offer| phrase![offer.devices, " × ", offer.hardware.display.as_str()];
        let spent = match first.cost {
            Some(cost) => phrase![Cell::Dollars(cost)],
            None => phrase![cell_days(first.device_days()), " device-days"],
        };
        let mut report = Report::new("afford", on(first)).qualified(phrase![first.time]).qualified(spent);
        report.verdict = Verdict::Answered;
        let mut columns = vec![
            Column::left("accelerator"),
            Column::right("devices"),
            Column::right("time"),
            Column::right("device-days"),
        ];
        if priced {
            columns.push(Column::right("cost"));
        }
        let title = if priced { "the cheapest first" } else { "the fewest device-days first" };
        let mut rows = Table::new(title, columns);
        for offer in offers.iter().take(SHOWN) {
            let mut cells: Vec<Cell> = vec![
                offer.hardware.display.as_str().into(),
                offer.devices.into(),
                offer.time.into(),
                cell_days(offer.device_days()),
            ];
            if priced {
                cells.push(offer.cost.map_or(Cell::Empty, Cell::Dollars));
            }
            let row = Row::new(cells);
            rows.rows.push(if offer.for_states { row.note("as many as the states take") } else { row });
        }
        report.blocks.push(rows.into());
        let more = offers.len().saturating_sub(SHOWN);
        if more > 0 {
            report.notes.push(phrase![Cell::Count(more as u128), " more with --json"]);
        }
        if offers.iter().any(|offer| offer.cost.is_none()) {
            let how = "--price h100-sxm=2.50 (US dollars for one device and hour) ranks by what a run costs";
            report.notes.push(phrase!["the hardware table holds no prices: ", how]);
        }
        report.inputs = Value::map()
            .with("model", self.work.inputs())
            .with("tokens", self.tokens)
            .with("deadline_seconds", self.deadline)
            .with("precision", self.precision.name());
        let offer = |offer: &Offer| {
            Value::map()
                .with("hardware", offer.hardware.name.as_str())
                .with("devices", offer.devices)
                .with("for_states", offer.for_states)
                .with("seconds", offer.time)
                .with("device_days", offer.device_days())
                .with("cost_usd", offer.cost)
        };
        report.result = Value::map()
            .with("flop", self.tokens * self.work.flop_per_token())
            .with("state_bytes", self.states())
            .with("offers", Value::List(offers.iter().map(offer).collect()));
        let flop = self.tokens * self.work.flop_per_token();
        for offer in offers.iter().take(SHOWN) {
            let Some(peak) = offer.hardware.peak(self.precision) else { continue };
            let name = offer.hardware.display.as_str();
            let share = || Cell::Number { value: self.mfu(), decimals: 2 };
            let (id, words) = if offer.for_states {
                ("states-devices", phrase![self.states(), " ÷ ", offer.hardware.capacity()])
            } else {
                ("devices", phrase![flop, " ÷ (", peak.rate, " × ", share(), " × ", self.deadline, ")"])
            };
            report.derivations.push(formulas::derive(format!("devices ({name})"), id, words, offer.devices));
            let words = phrase![flop, " ÷ (", offer.devices, " × ", peak.rate, " × ", share(), ")"];
            report.derivations.push(formulas::derive(format!("time ({name})"), "time", words, offer.time));
        }
        let (from, why) = match self.mfu {
            Some(_) => (Origin::Given, ""),
            None => (Origin::Default, "the middle of what well-run training reaches, alike on all of them"),
        };
        let value = Cell::Number { value: self.mfu(), decimals: 2 };
        report.assumptions.push(Assumption::new("mfu", "MFU", value, from).why(why).flag("--mfu"));
        let states = phrase![RECIPE.name(), " over all devices: ", self.states(), "; activations are not in it"];
        report.assumptions.push(Assumption::new("states", "states", "fit", Origin::Derived).why(states));
        report.assumptions.extend(self.work.assumptions.iter().cloned());
        report.warnings.extend(self.work.warnings.iter().cloned());
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Params;

    fn request(prices: &[(&str, f64)]) -> Request {
        Request {
            work: Work::dense("dense:70B", Params(70_000_000_000)),
            tokens: Tokens(15_000_000_000_000),
            deadline: "143.9 d".parse().unwrap(),
            mfu: Mfu::new(0.5).ok(),
            precision: Precision::Bf16,
            prices: prices.iter().map(|(name, price)| ((*name).to_owned(), *price)).collect(),
        }
    }

    /// The arithmetic of the lecture, backwards: 6 × 70e9 × 15e12 FLOP in 143.9 days at 50 % of 989.5 TFLOP/s are 1,024 H100.
    #[test]
    fn the_lecture_backwards() {
        let offers = request(&[]).offers().unwrap();
        let h100 = offers.iter().find(|offer| offer.hardware.name == "h100-sxm").unwrap();
        assert!((1024..=1025).contains(&h100.devices), "{h100:?}");
        assert!(offers.is_sorted_by(|a, b| a.device_days() <= b.device_days()));
        assert!(offers.iter().all(|offer| offer.time.get() <= 143.9 * 86_400.0 * (1.0 + 1e-12)));
    }

    #[test]
    fn the_cheapest_by_price_comes_first() {
        let offers = request(&[("a100-sxm-80gb", 5.0), ("h100-sxm", 2.0)]).offers().unwrap();
        let priced = offers.iter().filter(|offer| offer.cost.is_some()).count();
        let names: Vec<&str> = offers[..priced].iter().map(|offer| offer.hardware.name.as_str()).collect();
        // 312 TFLOP/s at five dollars are dearer than 989.5 at two.
        assert_eq!(names, ["h100-sxm", "a100-sxm-80gb"]);
        let h100 = &offers[0];
        // Two dollars an hour.
        assert!((h100.cost.unwrap() / (h100.device_days() * 48.0) - 1.0).abs() < 1e-12);
        assert!(offers[priced..].iter().all(|offer| offer.cost.is_none()));
    }

    /// 70e9 parameters of 18 bytes take 1.26 TB, whatever time there is.
    #[test]
    fn states_ask_for_devices() {
        let offers = Request { deadline: "100000 d".parse().unwrap(), ..request(&[]) }.offers().unwrap();
        let h100 = offers.iter().find(|offer| offer.hardware.name == "h100-sxm").unwrap();
        assert!(h100.for_states);
        assert_eq!(h100.devices, (70e9 * 18.0 / h100.hardware.capacity().get() as f64).ceil() as u64);
        assert!(Request { deadline: Seconds::ZERO, ..request(&[]) }.offers().is_err());
    }
}
