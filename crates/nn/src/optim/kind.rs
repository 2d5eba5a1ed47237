//! Names of the rules and of the ways to carry them out.

use super::{adafactor, adam, adam8bit, lion, muon, simple};
use crate::optim::state::Slot;
use crate::param::ParamKind;
use std::fmt;
use std::str::FromStr;
use tensor::DType;

/// The update rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `w -= lr g`
    Sgd,
    /// A running sum of gradients takes the place of the gradient.
    Momentum,
    /// Each weight's rate falls with its sum of squared gradients.
    AdaGrad,
    /// The sum becomes a running mean.
    RmsProp,
    /// Running means of gradient and square, corrected for their start.
    Adam,
    /// Adam with weight decay apart from the gradient.
    AdamW,
    /// The mean of squares of a matrix as a product of a row and a column.
    Adafactor,
    /// AdamW whose running means take one byte each.
    Adam8bit,
    /// Orthogonalised momentum for hidden matrices, AdamW for the rest.
    Muon,
    /// The sign of a running mean.
    Lion,
}

/// How the update is carried out; decides the transient bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Implementation {
    /// One kernel per parameter, no temporaries.
    Fused,
    /// Small ops, one parameter at a time: up to two temporaries of the largest parameter.
    ForLoop,
    /// Small ops over all parameters at once: a full extra set of temporaries.
    ForEach,
}

/// An update rule with its implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OptimizerKind {
    /// Rule.
    pub kind: Kind,
    /// Implementation.
    pub implementation: Implementation,
}

impl Kind {
    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Momentum => "sgd-momentum",
            Self::AdaGrad => "adagrad",
            Self::RmsProp => "rmsprop",
            Self::Adam => "adam",
            Self::AdamW => "adamw",
            Self::Adafactor => "adafactor",
            Self::Adam8bit => "adam-8bit",
            Self::Muon => "muon",
            Self::Lion => "lion",
        }
    }

    /// All rules.
    pub const ALL: [Self; 10] = [
        Self::Sgd,
        Self::Momentum,
        Self::AdaGrad,
        Self::RmsProp,
        Self::Adam,
        Self::AdamW,
        Self::Adafactor,
        Self::Adam8bit,
        Self::Muon,
        Self::Lion,
    ];

    /// Names of its states where each is as large as the parameter, whatever the parameter. `None` where they depend on
    /// shape and use of the parameter.
    pub const fn uniform_slots(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Sgd => Some(&[]),
            Self::Momentum => Some(&[simple::MOMENTUM]),
            Self::AdaGrad => Some(&[simple::SUM]),
            Self::RmsProp => Some(&[simple::SQUARES]),
            Self::Adam | Self::AdamW => Some(&[adam::MEAN, adam::SQUARES]),
            Self::Lion => Some(&[lion::MEAN]),
            Self::Adafactor | Self::Adam8bit | Self::Muon => None,
        }
    }

    /// The rule that a parameter gets: Muon and 8-bit Adam leave some to `AdamW`.
    pub(super) fn of(self, kind: ParamKind, shape: &[u64]) -> Self {
        match self {
            Self::Muon if !muon::takes(kind, shape) => Self::AdamW,
            Self::Adam8bit if !adam8bit::takes(shape) => Self::AdamW,
            other => other,
        }
    }

    /// Whether each of its updates depends on all of a matrix, so that a device that holds a part of it cannot work alone.
    pub const fn needs_whole_matrices(self) -> bool {
        matches!(self, Self::Muon)
    }
}

impl OptimizerKind {
    /// The state tensors of a parameter of `dtype`, in the order in which they are made.
    ///
    /// With `master`, there is an f32 copy of a narrower parameter, and states are f32.
    pub fn slots(self, kind: ParamKind, shape: &[u64], dtype: DType, master: bool) -> Vec<Slot> {
        let rule = self.kind.of(kind, shape);
        let counted = matches!(rule, Kind::AdaGrad | Kind::RmsProp | Kind::Adam | Kind::AdamW | Kind::Adafactor);
        let mut slots = Vec::new();
        if counted && self.implementation != Implementation::Fused {
            slots.push(Slot::new(Slot::STEP, &[], DType::F32));
        }
        if master && dtype != DType::F32 {
            slots.push(Slot::new(Slot::MASTER, shape, DType::F32));
        }
        let wide = master || self.kind == Kind::Adam8bit;
        let dtype = if wide { DType::F32 } else { dtype };
        match rule {
            Kind::Adafactor => slots.extend(adafactor::slots(shape, dtype)),
            Kind::Adam8bit => slots.extend(adam8bit::slots(shape)),
            Kind::Muon => slots.push(Slot::new(muon::MOMENTUM, shape, dtype)),
            uniform => {
                let names = uniform.uniform_slots().unwrap_or_default();
                slots.extend(names.iter().map(|name| Slot::new(name, shape, dtype)));
            }
        }
        slots
    }

    /// Whether one kernel updates a parameter under `rule`, writing the rounded master copy to the parameter as it goes.
    pub(super) fn is_one_kernel(self, rule: Kind) -> bool {
        let kernels = matches!(rule, Kind::Adam | Kind::AdamW | Kind::Adam8bit | Kind::Lion);
        kernels && self.implementation == Implementation::Fused
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.implementation {
            Implementation::Fused => "-fused",
            Implementation::ForLoop => "-forloop",
            Implementation::ForEach => "-foreach",
        };
        write!(f, "{}{suffix}", self.kind.name())
    }
}

/// Parses `adamw`, `adamw-foreach`, `adamw_forloop`, `sgd_momentum`, ...; the implementation is `None` if not said.
///
/// # Errors
/// A message naming the valid forms.
pub fn parse(text: &str) -> Result<(Kind, Option<Implementation>), String> {
    let lower = text.to_ascii_lowercase().replace('_', "-");
    let (name, implementation) = [
        ("-fused", Implementation::Fused),
        ("-forloop", Implementation::ForLoop),
        ("-foreach", Implementation::ForEach),
    ]
    .iter()
    .find_map(|&(suffix, i)| lower.strip_suffix(suffix).map(|name| (name.to_owned(), Some(i))))
    .unwrap_or((lower, None));
    let kind = match name.as_str() {
        "momentum" => Some(Kind::Momentum),
        "adamw-8bit" | "adam8bit" | "adamw8bit" => Some(Kind::Adam8bit),
        name => Kind::ALL.into_iter().find(|k| k.name() == name),
    };
    kind.map(|k| (k, implementation)).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
        format!("unknown optimizer `{text}`: valid are {}, each with -fused, -forloop or -foreach", names.join(", "))
    })
}

impl FromStr for OptimizerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(|(kind, i)| Self { kind, implementation: i.unwrap_or(Implementation::Fused) })
    }
}
