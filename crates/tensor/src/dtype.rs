//! Element types of tensors, their sizes in bytes, and which type two operands meet in.
//!
//! The promotion table is `PyTorch`'s for two tensors that both have dimensions (`torch.promote_types`, checked cell by
//! cell against torch 2.15); the pairs that it refuses are refused here too, because a silent cast to or from fp8, or
//! between unsigned and signed integers of unlike width, is a decision about range that belongs to the caller.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// The type of one tensor element.
///
/// The order of the variants (and so of `Ord`) is only a stable order for reports; it is not the promotion order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16: 5 exponent and 10 mantissa bits, largest finite value 65504.
    F16,
    /// bfloat16: the upper half of binary32, 8 exponent and 7 mantissa bits.
    BF16,
    /// OCP 8-bit float E4M3 as `PyTorch`'s `float8_e4m3fn`: no infinity, largest finite value 448.
    F8E4M3,
    /// OCP 8-bit float E5M2: IEEE-like with infinity, largest finite value 57344.
    F8E5M2,
    /// Signed 64-bit integer, the type of token ids and indices.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 16-bit integer, the usual storage of token files.
    U16,
    /// Unsigned 8-bit integer.
    U8,
    /// Truth value, one byte per element as in the rest of the field (not one bit).
    Bool,
}

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [Self; 12] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I64,
        Self::I32,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::Bool,
    ];

    /// Storage of one element, in bytes. A bool takes a whole byte.
    pub const fn size_in_bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 | Self::U16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Short name used in every report and accepted back by [`FromStr`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// True for the six floating-point types, fp8 included.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16) || self.is_fp8()
    }

    /// True for the two 8-bit floating-point types.
    pub const fn is_fp8(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E5M2)
    }

    /// True for the five integer types. `Bool` is not an integer here.
    pub const fn is_int(self) -> bool {
        matches!(self, Self::I64 | Self::I32 | Self::U32 | Self::U16 | Self::U8)
    }

    /// True for `Bool` only.
    pub const fn is_bool(self) -> bool {
        matches!(self, Self::Bool)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad` so that callers can align columns with the usual width flags.
        f.pad(self.name())
    }
}

/// The dtype in which an operation on tensors of dtypes `a` and `b` is carried out.
///
/// Symmetric. `.` marks a refused pair ([`PromoteError`]):
///
/// ```text
///         f64   f32   f16   bf16  f8e4m3 f8e5m2 i64   i32   u32   u16   u8    bool
/// f64     f64   f64   f64   f64   .      .      f64   f64   f64   f64   f64   f64
/// f32           f32   f32   f32   .      .      f32   f32   f32   f32   f32   f32
/// f16                 f16   f32   .      .      f16   f16   f16   f16   f16   f16
/// bf16                      bf16  .      .      bf16  bf16  bf16  bf16  bf16  bf16
/// f8e4m3                          f8e4m3 .      .     .     .     .     .     .
/// f8e5m2                                 f8e5m2 .     .     .     .     .     .
/// i64                                           i64   i64   .     .     i64   i64
/// i32                                                 i32   .     .     i32   i32
/// u32                                                       u32   .     .     .
/// u16                                                             u16   .     .
/// u8                                                                    u8    u8
/// bool                                                                        bool
/// ```
///
/// In words: `bool` is lowest; an integer meets a float in that float, whatever the widths (so `i64 + f16` is `f16`);
/// `f16` and `bf16` meet in `f32`, the smallest type that holds both; `u8` fits every signed type; `u16` and `u32` meet
/// floats and themselves only; fp8 meets only itself. Scalars do not take part: a Rust number given to an op adopts
/// the tensor's dtype.
///
/// # Errors
///
/// [`PromoteError`] for the refused pairs; its message says which explicit cast to write.
pub const fn promote(a: DType, b: DType) -> Result<DType, PromoteError> {
    if a as u8 == b as u8 {
        return Ok(a);
    }
    if a.is_fp8() || b.is_fp8() {
        return Err(PromoteError { left: a, right: b });
    }
    match (a.is_float(), b.is_float()) {
        (true, true) => Ok(wider_float(a, b)),
        (true, false) => Ok(a),
        (false, true) => Ok(b),
        (false, false) => promote_exact(a, b),
    }
}

/// Two unlike floats of 16 bits or more. Only f16 with bf16 needs a third type.
const fn wider_float(a: DType, b: DType) -> DType {
    if matches!(a, DType::F64) || matches!(b, DType::F64) { DType::F64 } else { DType::F32 }
}

/// Two unlike types out of the integers and bool.
const fn promote_exact(a: DType, b: DType) -> Result<DType, PromoteError> {
    use DType::{Bool, I32, I64, U8};
    match (a, b) {
        (I64, I32 | U8 | Bool) | (I32 | U8 | Bool, I64) => Ok(I64),
        (I32, U8 | Bool) | (U8 | Bool, I32) => Ok(I32),
        (U8, Bool) | (Bool, U8) => Ok(U8),
        _ => Err(PromoteError { left: a, right: b }),
    }
}

/// Two dtypes that do not mix without an explicit cast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PromoteError {
    /// Dtype of the first operand.
    pub left: DType,
    /// Dtype of the second operand.
    pub right: DType,
}

impl fmt::Display for PromoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { left, right } = self;
        write!(f, "dtypes {left} and {right} do not promote implicitly: ")?;
        if left.is_fp8() || right.is_fp8() {
            f.write_str(
                "fp8 has no range to spare, so cast the fp8 operand (for example to bf16 or f32) and apply its scale",
            )
        } else {
            f.write_str("cast every u16 or u32 operand first, for example to i64, which holds both")
        }
    }
}

impl Error for PromoteError {}

/// A dtype name that is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseDTypeError {
    /// The text as given.
    pub text: String,
}

impl fmt::Display for ParseDTypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown dtype `{}`: one of ", self.text)?;
        for (i, dtype) in DType::ALL.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{dtype}")?;
        }
        Ok(())
    }
}

impl Error for ParseDTypeError {}

impl FromStr for DType {
    type Err = ParseDTypeError;

    /// Reads the spellings of `PyTorch`, `config.json` files, safetensors and papers, in any case, with or without a
    /// leading `torch.`. A bare `fp8` or `float8` means E4M3, the type of weights and activations.
    ///
    /// The variants `float8_e4m3fnuz` and `float8_e5m2fnuz` (another bias and another NaN) are different formats and
    /// are refused.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.trim().to_ascii_lowercase();
        let name = lower.strip_prefix("torch.").unwrap_or(&lower);
        Ok(match name {
            "f64" | "fp64" | "float64" | "double" => Self::F64,
            "f32" | "fp32" | "float32" | "float" | "single" => Self::F32,
            "f16" | "fp16" | "float16" | "half" => Self::F16,
            "bf16" | "bfloat16" => Self::BF16,
            "f8e4m3" | "f8_e4m3" | "f8e4m3fn" | "f8_e4m3fn" | "fp8e4m3" | "fp8_e4m3" | "fp8e4m3fn" | "fp8_e4m3fn"
            | "float8e4m3" | "float8_e4m3" | "float8e4m3fn" | "float8_e4m3fn" | "e4m3" | "e4m3fn" | "fp8"
            | "float8" | "f8" => Self::F8E4M3,
            "f8e5m2" | "f8_e5m2" | "fp8e5m2" | "fp8_e5m2" | "float8e5m2" | "float8_e5m2" | "e5m2" => Self::F8E5M2,
            "i64" | "int64" | "long" => Self::I64,
            "i32" | "int32" | "int" => Self::I32,
            "u32" | "uint32" => Self::U32,
            "u16" | "uint16" => Self::U16,
            "u8" | "uint8" | "byte" => Self::U8,
            "bool" | "boolean" => Self::Bool,
            _ => {
                return Err(ParseDTypeError { text: text.to_owned() });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.promote_types` of torch 2.15 over `DType::ALL` x `DType::ALL`, `.` where torch raises.
    const TORCH_PROMOTE: &str = "
        f64 f64 f64 f64 . . f64 f64 f64 f64 f64 f64
        f64 f32 f32 f32 . . f32 f32 f32 f32 f32 f32
        f64 f32 f16 f32 . . f16 f16 f16 f16 f16 f16
        f64 f32 f32 bf16 . . bf16 bf16 bf16 bf16 bf16 bf16
        . . . . f8e4m3 . . . . . . .
        . . . . . f8e5m2 . . . . . .
        f64 f32 f16 bf16 . . i64 i64 . . i64 i64
        f64 f32 f16 bf16 . . i64 i32 . . i32 i32
        f64 f32 f16 bf16 . . . . u32 . . .
        f64 f32 f16 bf16 . . . . . u16 . .
        f64 f32 f16 bf16 . . i64 i32 . . u8 u8
        f64 f32 f16 bf16 . . i64 i32 . . u8 bool";

    #[test]
    fn promotion_is_torchs() {
        let mut cells = TORCH_PROMOTE.split_whitespace();
        for a in DType::ALL {
            for b in DType::ALL {
                let expected = cells.next().expect("12 x 12 cells");
                let got = promote(a, b).map_or(".", DType::name);
                assert_eq!(got, expected, "{a} with {b}");
            }
        }
        assert_eq!(cells.next(), None);
    }

    #[test]
    fn refusals_say_what_to_cast() {
        let fp8 = promote(DType::F8E4M3, DType::F32).expect_err("fp8 never promotes");
        assert!(fp8.to_string().contains("cast the fp8 operand"), "{fp8}");
        let ints = promote(DType::I32, DType::U16).expect_err("u16 meets only itself");
        assert!(ints.to_string().contains("for example to i64"), "{ints}");
    }

    #[test]
    fn names_and_spellings_parse() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        for (text, dtype) in [
            ("float32", DType::F32),
            ("FP32", DType::F32),
            ("torch.bfloat16", DType::BF16),
            ("half", DType::F16),
            ("fp16", DType::F16),
            ("float8_e4m3fn", DType::F8E4M3),
            ("F8_E4M3", DType::F8E4M3),
            ("e4m3", DType::F8E4M3),
            ("fp8", DType::F8E4M3),
            ("float8_e5m2", DType::F8E5M2),
            ("long", DType::I64),
            (" int64 ", DType::I64),
            ("uint16", DType::U16),
        ] {
            assert_eq!(text.parse(), Ok(dtype), "{text}");
        }
        for text in ["", "tf32", "float8_e4m3fnuz", "fp4", "complex64"] {
            assert!(text.parse::<DType>().is_err(), "{text}");
        }
        let message = "fp4".parse::<DType>().expect_err("fp4").to_string();
        assert!(message.starts_with("unknown dtype `fp4`: one of f64, f32"), "{message}");
    }

    #[test]
    fn kinds_partition_the_types() {
        for dtype in DType::ALL {
            let kinds = [dtype.is_float(), dtype.is_int(), dtype.is_bool()];
            assert_eq!(kinds.iter().filter(|k| **k).count(), 1, "{dtype}");
        }
        let bytes: u64 = DType::ALL.iter().map(|d| d.size_in_bytes()).sum();
        assert_eq!(bytes, 8 + 4 + 2 + 2 + 1 + 1 + 8 + 4 + 4 + 2 + 1 + 1);
    }
}
