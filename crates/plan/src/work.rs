//! How much there is to compute for one token, under each convention of counting.

use units::{Diagnostic, Flops, Params};

use crate::formulas;
use crate::report::{Assumption, Value};

/// A way to count the FLOP of a token. A utilization means nothing without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Convention {
    /// Traced, with exactly the query and key pairs that the mask leaves.
    Causal,
    /// Traced, with the full square of attention.
    Full,
    /// Six for each parameter; no attention.
    SixN,
    /// A number the user gave.
    Given,
}

impl Convention {
    /// The name in JSON and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Causal => "causal",
            Self::Full => "full",
            Self::SixN => "6N",
            Self::Given => "given",
        }
    }
}

/// The work of one trained token, forward and backward, without recomputation.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What the user called the model, such as `dense:70B`.
    pub model: String,
    /// Parameters, where they are known.
    pub parameters: Option<Params>,
    /// Those that one token is multiplied with or looked up in, where they are fewer.
    pub active: Option<Params>,
    /// FLOP of one token under each convention; the first is the one that answers use.
    pub per_token: Vec<(Convention, Flops)>,
    /// How much of the first is attention scores and values, where it is known.
    pub attention: Option<Flops>,
    /// Tokens of the sequences that attention is counted over, where it is.
    pub seq_len: Option<u64>,
    /// Share of the processed tokens that are no padding, where it is known.
    pub useful: Option<f64>,
    /// What the count rests on.
    pub assumptions: Vec<Assumption>,
    /// What to warn about.
    pub warnings: Vec<Diagnostic>,
}

impl Work {
    /// A bare parameter count: `6 N`, and nothing known of attention.
    pub fn dense(model: impl Into<String>, parameters: Params) -> Self {
        let per_token = vec![(Convention::SixN, formulas::flop_per_token(parameters))];
        Self { parameters: Some(parameters), ..Self::known(model, per_token) }
    }

    /// FLOP of one token as the user counts it.
    pub fn given(per_token: Flops) -> Self {
        let per_token = vec![(Convention::Given, per_token)];
        Self::known("given", per_token)
    }

    fn known(model: impl Into<String>, per_token: Vec<(Convention, Flops)>) -> Self {
        let (assumptions, warnings) = (Vec::new(), Vec::new());
        Self {
            model: model.into(),
            parameters: None,
            active: None,
            per_token,
            attention: None,
            seq_len: None,
            useful: None,
            assumptions,
            warnings,
        }
    }

    /// The convention that answers use.
    pub fn convention(&self) -> Convention {
        self.per_token.first().map_or(Convention::Given, |(convention, _)| *convention)
    }

    /// FLOP of one token under that convention.
    pub fn flop_per_token(&self) -> Flops {
        self.per_token.first().map_or(Flops::ZERO, |(_, flop)| *flop)
    }

    /// What went into the report, for programs.
    pub fn inputs(&self) -> Value {
        Value::map()
            .with("name", self.model.as_str())
            .with("parameters", self.parameters)
            .with("flop_per_token", self.flop_per_token())
            .with("convention", self.convention().name())
    }
}
