//! Linear maps.

use super::Piece;
use crate::param::ParamKind;

/// A linear map by module name.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// Module name.
    pub name: &'static str,
    /// Whether it has a bias.
    pub bias: bool,
    /// Whether the weight lies as `(in out)`.
    pub transposed: bool,
    /// The reference writes it as a product with a view of the weight and adds the bias in a step of its own (Falcon).
    pub loose: bool,
}

impl LinearSpec {
    /// A linear map with weight `(out in)`.
    pub const fn new(name: &'static str, bias: bool) -> Self {
        Self { name, bias, transposed: false, loose: false }
    }
}

/// A linear map with its sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct MapSpec {
    /// Module name and bias.
    pub map: LinearSpec,
    /// Inputs.
    pub input: u64,
    /// Outputs.
    pub output: u64,
    /// Sizes of the weight behind the outputs, where it is stored as the kernel of a convolution over patches that do not
    /// overlap: `channels height width`. Their product is `input`.
    pub kernel: Vec<u64>,
    /// What it counts as.
    pub kind: ParamKind,
}

impl MapSpec {
    /// A map that is stored as a matrix.
    pub fn new(name: &'static str, bias: bool, input: u64, output: u64) -> Self {
        Self { map: LinearSpec::new(name, bias), input, output, kernel: Vec::new(), kind: ParamKind::Matrix }
    }

    /// A map to scores, which counts as a head.
    pub fn head(name: &'static str, bias: bool, input: u64, output: u64) -> Self {
        Self { kind: ParamKind::Head, ..Self::new(name, bias, input, output) }
    }

    /// [`MapSpec::new`] as a piece.
    pub fn piece(name: &'static str, bias: bool, input: u64, output: u64) -> Piece {
        Piece::Linear(Self::new(name, bias, input, output))
    }
}
