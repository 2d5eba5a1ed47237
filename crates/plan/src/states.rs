//! Bytes of parameters, gradients and optimizer states: per parameter by precision recipe and optimizer, per device by
//! ZeRO stage.
//!
//! These are the formulas that a ledger of a traced model is checked against, and all that a bare parameter count allows.

use std::fmt;
use std::str::FromStr;

use nn::optim::Kind;
use nn::step::Precision;
use units::{Bytes, Diagnostic, Params};

use crate::formulas;
use crate::nearest::nearest;

/// Names an enum for the command line: `name()`, `ALL`, `FromStr` with near matches, `Display`.
macro_rules! named {
    ($type:ident, $what:literal, $code:literal, $($variant:ident = $name:literal $(| $alias:literal)*),+ $(,)?) => {
        impl $type {
            /// Every one, in the order of listings.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name on the command line and in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = Diagnostic;

            fn from_str(text: &str) -> Result<Self, Diagnostic> {
                match text.trim().to_lowercase().replace('_', "-").as_str() {
                    $($name $(| $alias)* => Ok(Self::$variant),)+
                    other => {
                        let names = Self::ALL.iter().map(|one| one.name());
                        let near = nearest(other, names.clone());
                        let help = if near.is_empty() { names.collect() } else { near };
                        Err(Diagnostic::error($code, format!("`{}` is no {}", text.trim(), $what))
                            .help(help.join(", ")))
                    }
                }
            }
        }
    };
}

/// What ZeRO divides over the data-parallel devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zero {
    /// Nothing.
    #[default]
    None,
    /// Master copies and optimizer states.
    States,
    /// Gradients too.
    Gradients,
    /// Parameters too (fully sharded).
    Parameters,
}

named!(Zero, "ZeRO stage", "T0412", None = "0" | "none", States = "1", Gradients = "2", Parameters = "3" | "fsdp",);

/// Bytes that each parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterBytes {
    /// The parameter itself.
    pub parameter: u64,
    /// Its gradient.
    pub gradient: u64,
    /// Its master copy; 0 where the parameter is in 32 bits already.
    pub master: u64,
    /// One optimizer state.
    pub slot: u64,
    /// The names of the optimizer states.
    pub slots: &'static [&'static str],
    /// A copy in 16 bits that lives only while it is used, and is in no sum here.
    pub working_copy: u64,
}

impl ParameterBytes {
    /// What a recipe and an optimizer make of it.
    pub const fn of(recipe: Precision, optimizer: Kind) -> Self {
        let parameter = recipe.param_dtype().size_in_bytes();
        let gradient = recipe.grad_dtype().size_in_bytes();
        let master = if recipe.has_master() { 4 } else { 0 };
        let slot = if recipe.has_master() { 4 } else { parameter };
        let working_copy = match recipe.copies() {
            Some(low) => low.size_in_bytes(),
            None => 0,
        };
        Self { parameter, gradient, master, slot, slots: optimizer.slots(), working_copy }
    }

    /// Bytes of all optimizer states.
    pub const fn optimizer(&self) -> u64 {
        self.slot * self.slots.len() as u64
    }

    /// Bytes of everything.
    pub const fn total(&self) -> u64 {
        self.parameter + self.gradient + self.master + self.optimizer()
    }

    /// Bytes that are divided over the devices.
    pub fn sharded(&self, zero: Zero) -> u64 {
        let parts = [
            (Zero::States, self.master + self.optimizer()),
            (Zero::Gradients, self.gradient),
            (Zero::Parameters, self.parameter),
        ];
        parts.into_iter().filter(|(from, _)| zero >= *from).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes that every device holds.
    pub fn replicated(&self, zero: Zero) -> u64 {
        self.total() - self.sharded(zero)
    }

    /// Bytes on one of `dp` devices.
    pub fn on_device(&self, parameters: Params, zero: Zero, dp: u64) -> Bytes {
        formulas::state_bytes(parameters, self.replicated(zero), self.sharded(zero), dp)
    }

    /// The most parameters of which the states fit in `capacity` bytes on each of `dp` devices.
    pub fn largest(&self, capacity: Bytes, zero: Zero, dp: u64) -> Params {
        formulas::largest_parameters(capacity, self.replicated(zero), self.sharded(zero), dp)
    }

    /// `parameter 4 + gradient 4 + exp_avg 4 + exp_avg_sq 4`.
    pub fn sum_text(&self) -> String {
        let fixed = [("parameter", self.parameter), ("gradient", self.gradient), ("master", self.master)];
        let fixed = fixed.into_iter().filter(|(_, bytes)| *bytes > 0);
        let slots = self.slots.iter().map(|name| (*name, self.slot));
        fixed.chain(slots).map(|(name, bytes)| format!("{name} {bytes}")).collect::<Vec<_>>().join(" + ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes per parameter of the design document and of the cases plan-05, plan-07 and dtype-09.
    #[test]
    fn bytes_per_parameter() {
        for (recipe, optimizer, total) in [
            ("fp32", "adamw", 16),
            ("bf16-master", "adamw", 16),
            ("bf16_master_fp32_grads", "adamw", 18),
            ("bf16-mixed", "adam", 16),
            ("bf16-pure", "adamw", 8),
            ("fp32", "sgd", 8),
            ("fp32", "momentum", 12),
            ("fp32", "adagrad", 12),
            ("bf16-master", "rmsprop", 12),
        ] {
            let bytes = ParameterBytes::of(recipe.parse().unwrap(), nn::optim::parse(optimizer).unwrap().0);
            assert_eq!(bytes.total(), total, "{recipe} {optimizer}");
            for zero in Zero::ALL {
                assert_eq!(bytes.replicated(*zero) + bytes.sharded(*zero), total);
            }
        }
    }

    /// plan-07: 23,572,403,200 parameters on 8 devices.
    #[test]
    fn zero_stages() {
        let bytes = ParameterBytes::of(Precision::Bf16Master, Kind::AdamW);
        let gib: Vec<String> = Zero::ALL
            .iter()
            .map(|zero| format!("{:.1}", bytes.on_device(Params(23_572_403_200), *zero, 8).as_gib()))
            .collect();
        assert_eq!(gib, ["351.3", "120.7", "82.3", "43.9"]);
    }

    #[test]
    fn unknown_names_say_what_is_near() {
        let error = "bf16_mixd".parse::<Precision>().unwrap_err();
        assert!(error.starts_with("unknown precision `bf16_mixd`: valid are fp32, bf16-master,"), "{error}");
        let error = "4".parse::<Zero>().unwrap_err();
        assert_eq!(error.help, ["0, 1, 2, 3"]);
    }
}
