//! Bytes of parameters, gradients and optimizer states: per parameter by precision recipe and optimizer, per device by
//! ZeRO stage.
//!
//! These are the formulas that a ledger of a traced model is checked against, and all that a bare parameter count allows.

use std::fmt;
use std::str::FromStr;

use nn::optim::{Implementation, Kind, OptimizerKind, Slot};
use nn::spec::Tuning;
use nn::step::{ParamInfo, Precision};
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
}

impl ParameterBytes {
    /// What a recipe and an optimizer make of it; `None` if the optimizer's states depend on the shapes of parameters.
    pub fn of(recipe: Precision, optimizer: Kind) -> Option<Self> {
        let slots = optimizer.uniform_slots()?;
        let parameter = recipe.param_dtype().size_in_bytes();
        let gradient = recipe.grad_dtype().size_in_bytes();
        let master = if recipe.has_master() { 4 } else { 0 };
        let slot = if recipe.has_master() { 4 } else { parameter };
        Some(Self { parameter, gradient, master, slot, slots })
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
        sharded(zero, self.master + self.optimizer(), self.gradient, self.parameter)
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

/// Bytes of all parameters of a model, their gradients and states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelBytes {
    /// Parameters.
    pub parameters: u64,
    /// Gradients of those that are trained.
    pub gradients: u64,
    /// Master copies.
    pub masters: u64,
    /// Optimizer states.
    pub optimizer: u64,
}

impl ModelBytes {
    /// What a recipe and an optimizer make of these parameters, tensor by tensor.
    pub fn of(params: &[ParamInfo], tuning: &Tuning, recipe: Precision, optimizer: Kind) -> Self {
        let rule = OptimizerKind { kind: optimizer, implementation: Implementation::Fused };
        let mut all = Self::default();
        for param in params {
            let dtype = if param.trainable { recipe.param_dtype() } else { recipe.frozen_dtype(tuning) };
            all.parameters += param.packed_bytes.unwrap_or(param.elements * dtype.size_in_bytes());
            if !param.trainable {
                continue;
            }
            all.gradients += param.elements * recipe.grad_dtype().size_in_bytes();
            for slot in rule.slots(param.kind, &param.shape, recipe.param_dtype(), recipe.has_master()) {
                let bytes = if slot.name == Slot::MASTER { &mut all.masters } else { &mut all.optimizer };
                *bytes += slot.bytes();
            }
        }
        all
    }

    /// Bytes of everything.
    pub const fn total(&self) -> u64 {
        self.parameters + self.gradients + self.masters + self.optimizer
    }

    /// Bytes that are divided over the devices.
    pub fn sharded(&self, zero: Zero) -> u64 {
        sharded(zero, self.masters + self.optimizer, self.gradients, self.parameters)
    }

    /// Bytes that every device holds.
    pub fn replicated(&self, zero: Zero) -> u64 {
        self.total() - self.sharded(zero)
    }

    /// Bytes on one of `dp` devices.
    pub fn on_device(&self, zero: Zero, dp: u64) -> Bytes {
        formulas::state_bytes(Params(1), self.replicated(zero), self.sharded(zero), dp)
    }
}

/// What a stage divides of states, gradients and parameters.
fn sharded(zero: Zero, states: u64, gradients: u64, parameters: u64) -> u64 {
    let parts = [(Zero::States, states), (Zero::Gradients, gradients), (Zero::Parameters, parameters)];
    parts.into_iter().filter(|(from, _)| zero >= *from).map(|(_, bytes)| bytes).sum()
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
            ("fp32", "lion", 12),
            ("bf16-master", "lion", 12),
        ] {
            let bytes = ParameterBytes::of(recipe.parse().unwrap(), nn::optim::parse(optimizer).unwrap().0).unwrap();
            assert_eq!(bytes.total(), total, "{recipe} {optimizer}");
            for zero in Zero::ALL {
                assert_eq!(bytes.replicated(*zero) + bytes.sharded(*zero), total);
            }
        }
    }

    /// plan-07: 23,572,403,200 parameters on 8 devices.
    #[test]
    fn zero_stages() {
        let bytes = ParameterBytes::of(Precision::Bf16Master, Kind::AdamW).unwrap();
        let gib: Vec<String> = Zero::ALL
            .iter()
            .map(|zero| format!("{:.1}", bytes.on_device(Params(23_572_403_200), *zero, 8).as_gib()))
            .collect();
        assert_eq!(gib, ["351.3", "120.7", "82.3", "43.9"]);
    }

    /// Where states depend on shapes, by hand: a matrix of 64 x 128, a table of 64 x 100, a vector of 128.
    #[test]
    fn bytes_by_shape() {
        use nn::ParamKind;
        let param = |shape: &[u64], kind| ParamInfo {
            name: String::new(),
            shape: shape.to_vec(),
            elements: shape.iter().product(),
            kind,
            tied: Vec::new(),
            trainable: true,
            replicated: false,
            share: nn::Share::Whole,
            packed_bytes: None,
        };
        let params = [
            param(&[64, 128], ParamKind::Matrix),
            param(&[64, 100], ParamKind::Embedding),
            param(&[128], ParamKind::Vector),
        ];
        let n = 64 * 128 + 64 * 100 + 128;
        for (recipe, optimizer, masters, states) in [
            (Precision::Fp32, Kind::AdamW, 0, 8 * n),
            (Precision::Fp32, Kind::Adafactor, 0, 4 * (64 + 128 + 64 + 100 + 128)),
            (Precision::Bf16Pure, Kind::Adafactor, 0, 2 * (64 + 128 + 64 + 100 + 128)),
            (Precision::Bf16Master, Kind::Adafactor, 4 * n, 4 * (64 + 128 + 64 + 100 + 128)),
            // A byte for each element and 4 for each block of 256; the vector keeps f32.
            (Precision::Fp32, Kind::Adam8bit, 0, 2 * (64 * 128 + 64 * 100 + 4 * (32 + 25)) + 8 * 128),
            (Precision::Bf16Pure, Kind::Adam8bit, 0, 2 * (64 * 128 + 64 * 100 + 4 * (32 + 25)) + 8 * 128),
            (Precision::Fp32, Kind::Muon, 0, 4 * 64 * 128 + 8 * (64 * 100 + 128)),
            (Precision::Bf16Pure, Kind::Muon, 0, 2 * 64 * 128 + 4 * (64 * 100 + 128)),
        ] {
            let bytes = ModelBytes::of(&params, &Tuning::default(), recipe, optimizer);
            assert_eq!((bytes.masters, bytes.optimizer), (masters, states), "{recipe} {}", optimizer.name());
            assert_eq!((bytes.parameters, bytes.gradients), {
                let (p, g) = (recipe.param_dtype().size_in_bytes(), recipe.grad_dtype().size_in_bytes());
                (p * n, g * n)
            });
        }
    }

    #[test]
    fn unknown_names_say_what_is_near() {
        let error = "bf16_mixd".parse::<Precision>().unwrap_err();
        assert!(error.starts_with("unknown precision `bf16_mixd`: valid are fp32, bf16-master,"), "{error}");
        let error = "4".parse::<Zero>().unwrap_err();
        assert_eq!(error.help, ["0, 1, 2, 3"]);
    }
}
