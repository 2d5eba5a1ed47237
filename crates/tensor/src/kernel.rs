//! The boundary between ops and arithmetic.
//!
//! The plain kernels run over dense row-major arrays of one scalar type [`Num`]. Low-precision storage is widened to
//! f32 when it is read and rounded when it is written, so every kernel accumulates in at least f32. The same kernels
//! run over [`Counted`], which counts its own arithmetic: that is how the cost rules are proved.

use crate::arena::Buffer;
use crate::dtype::DType;
use crate::float_format::convert as ff;
use crate::layout::Layout;
use std::cell::Cell;
use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A dense row-major array of scalars.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    /// Sizes of the dimensions.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Vec<T>,
}

impl<T: Copy> Array<T> {
    /// All elements `value`.
    pub fn full(shape: &[u64], value: T) -> Self {
        let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let count = shape.iter().product();
        Self { shape, data: vec![value; count] }
    }

    /// Size of the last dimension (1 for a scalar).
    pub fn last(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// `(outer, size, inner)` around dimension `dim`: element `(o, i, j)` lies at `(o * size + i) * inner + j`.
    pub fn around(&self, dim: usize) -> (usize, usize, usize) {
        (self.shape[..dim].iter().product(), self.shape[dim], self.shape[dim + 1..].iter().product())
    }
}

/// An operand of a kernel: numbers in the compute type, or integers (indices, masks).
#[derive(Clone, Debug, PartialEq)]
pub enum Data<T> {
    /// Values in the compute type.
    Num(Array<T>),
    /// Integers and booleans beside float operands.
    Int(Array<i64>),
}

impl<T: Num> Data<T> {
    /// The values.
    ///
    /// # Panics
    /// If the operand is an integer one; the shape rule of the op has excluded it.
    pub fn num(&self) -> &Array<T> {
        match self {
            Self::Num(a) => a,
            Self::Int(_) => unreachable!("the shape rule admits only numbers here"),
        }
    }

    /// The integers; a float operand is truncated (only where the op allows either).
    pub fn ints(&self) -> Vec<i64> {
        match self {
            Self::Num(a) => a.data.iter().map(|x| x.to_f64() as i64).collect(),
            Self::Int(a) => a.data.clone(),
        }
    }

    /// The values, integers widened.
    pub fn to_num(&self) -> Array<T> {
        match self {
            Self::Num(a) => a.clone(),
            Self::Int(a) => {
                Array { shape: a.shape.clone(), data: a.data.iter().map(|&x| T::from_f64(x as f64)).collect() }
            }
        }
    }

    /// The values, to be written.
    pub fn num_mut(&mut self) -> &mut Array<T> {
        match self {
            Self::Num(a) => a,
            Self::Int(_) => unreachable!("the shape rule makes this output a number"),
        }
    }

    /// Shape.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Num(a) => &a.shape,
            Self::Int(a) => &a.shape,
        }
    }

    /// Writes element `i` from an integer.
    pub fn set_int(&mut self, i: usize, value: i64) {
        match self {
            Self::Num(a) => a.data[i] = T::from_f64(value as f64),
            Self::Int(a) => a.data[i] = value,
        }
    }
}

/// A scalar that kernels compute in.
///
/// Each method and operator is one elementwise FLOP in the cost rules; `from_f64`, `to_f64`, comparisons by
/// [`Num::greater`] and copies are none.
pub trait Num:
    Copy
    + Debug
    + Default
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// A constant.
    fn from_f64(x: f64) -> Self;
    /// The value.
    fn to_f64(self) -> f64;
    /// e^x.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Sine.
    fn sin(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
    /// Error function.
    fn erf(self) -> Self;
    /// x^y.
    fn pow(self, y: Self) -> Self;
    /// The larger one; NaN wins.
    fn max(self, other: Self) -> Self;
    /// Whether it is larger: a comparison, not arithmetic. NaN counts as the largest.
    fn greater(self, other: Self) -> bool {
        let (a, b) = (self.to_f64(), other.to_f64());
        a > b || (a.is_nan() && !b.is_nan())
    }
    /// Zero.
    fn zero() -> Self {
        Self::from_f64(0.0)
    }
    /// One.
    fn one() -> Self {
        Self::from_f64(1.0)
    }
}

macro_rules! float_num {
    ($t:ty, $erf:expr) => {
        impl Num for $t {
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            fn tanh(self) -> Self {
                <$t>::tanh(self)
            }
            fn sin(self) -> Self {
                <$t>::sin(self)
            }
            fn cos(self) -> Self {
                <$t>::cos(self)
            }
            fn erf(self) -> Self {
                erf(f64::from(self)) as $t
            }
            fn pow(self, y: Self) -> Self {
                <$t>::powf(self, y)
            }
            fn max(self, other: Self) -> Self {
                if other > self || other.is_nan() { other } else { self }
            }
        }
    };
}
float_num!(f32, erf);
float_num!(f64, erf);

/// Error function to full double precision: Taylor series near zero, continued fraction of erfc further out.
///
/// Source: Abramowitz and Stegun 7.1.6 and 7.1.14.
fn erf(x: f64) -> f64 {
    const TWO_OVER_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    if a > 6.0 {
        return x.signum();
    }
    if a < 3.0 {
        let (mut term, mut sum, square) = (a, a, a * a);
        for n in 1..200 {
            term *= 2.0 * square / f64::from(2 * n + 1);
            sum += term;
            if term < sum * 1e-17 {
                break;
            }
        }
        return x.signum() * TWO_OVER_SQRT_PI * (-square).exp() * sum;
    }
    let mut fraction = 0.0;
    for k in (1..=60).rev() {
        fraction = f64::from(k) * 0.5 / (a + fraction);
    }
    let erfc = (-a * a).exp() / (a + fraction) * TWO_OVER_SQRT_PI * 0.5;
    x.signum() * (1.0 - erfc)
}

impl Num for i64 {
    fn from_f64(x: f64) -> Self {
        x as Self
    }
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn exp(self) -> Self {
        f64::exp(self as f64) as Self
    }
    fn ln(self) -> Self {
        f64::ln(self as f64) as Self
    }
    fn sqrt(self) -> Self {
        f64::sqrt(self as f64) as Self
    }
    fn tanh(self) -> Self {
        f64::tanh(self as f64) as Self
    }
    fn sin(self) -> Self {
        f64::sin(self as f64) as Self
    }
    fn cos(self) -> Self {
        f64::cos(self as f64) as Self
    }
    fn erf(self) -> Self {
        erf(self as f64) as Self
    }
    fn pow(self, y: Self) -> Self {
        f64::powf(self as f64, y as f64) as Self
    }
    fn max(self, other: Self) -> Self {
        Ord::max(self, other)
    }
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// A scalar that counts every arithmetic operation made with it on this thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted(f64);

impl Counted {
    /// Runs `f` and returns how many operations it made.
    pub fn count<R>(f: impl FnOnce() -> R) -> (R, u64) {
        let before = COUNT.get();
        let out = f();
        (out, COUNT.get() - before)
    }

    fn tick(x: f64) -> Self {
        COUNT.set(COUNT.get() + 1);
        Self(x)
    }
}

macro_rules! counted_operator {
    ($($trait:ident $method:ident $op:tt),*) => {$(
        impl $trait for Counted {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                Self::tick(self.0 $op other.0)
            }
        }
    )*};
}
counted_operator!(Add add +, Sub sub -, Mul mul *, Div div /);

impl Neg for Counted {
    type Output = Self;
    fn neg(self) -> Self {
        Self::tick(-self.0)
    }
}

impl Num for Counted {
    fn from_f64(x: f64) -> Self {
        Self(x)
    }
    fn to_f64(self) -> f64 {
        self.0
    }
    fn exp(self) -> Self {
        Self::tick(self.0.exp())
    }
    fn ln(self) -> Self {
        Self::tick(self.0.ln())
    }
    fn sqrt(self) -> Self {
        Self::tick(self.0.sqrt())
    }
    fn tanh(self) -> Self {
        Self::tick(self.0.tanh())
    }
    fn sin(self) -> Self {
        Self::tick(self.0.sin())
    }
    fn cos(self) -> Self {
        Self::tick(self.0.cos())
    }
    fn erf(self) -> Self {
        Self::tick(erf(self.0))
    }
    fn pow(self, y: Self) -> Self {
        Self::tick(self.0.powf(y.0))
    }
    fn max(self, other: Self) -> Self {
        Self::tick(Num::max(self.0, other.0))
    }
}

/// Reads a strided tensor into a dense array. `as_ints` keeps integer dtypes as integers.
pub(crate) fn load<T: Num>(buffer: &Buffer, dtype: DType, layout: &Layout, as_ints: bool) -> Data<T> {
    fn gather<S: bytemuck::Pod, T>(buffer: &Buffer, layout: &Layout, convert: impl Fn(S) -> T) -> Array<T> {
        let source = buffer.slice::<S>();
        let data = layout.positions().map(|at| convert(source[at])).collect();
        Array { shape: layout.shape().iter().map(|&n| n as usize).collect(), data }
    }
    let as_ints = as_ints && !dtype.is_float();
    if as_ints {
        return Data::Int(match dtype {
            DType::I64 => gather(buffer, layout, |x: i64| x),
            DType::I32 => gather(buffer, layout, |x: i32| i64::from(x)),
            DType::U32 => gather(buffer, layout, |x: u32| i64::from(x)),
            DType::U16 => gather(buffer, layout, |x: u16| i64::from(x)),
            _ => gather(buffer, layout, |x: u8| i64::from(x)),
        });
    }
    Data::Num(match dtype {
        DType::F64 => gather(buffer, layout, |x: f64| T::from_f64(x)),
        DType::F32 => gather(buffer, layout, |x: f32| T::from_f64(f64::from(x))),
        DType::F16 => gather(buffer, layout, |x: u16| T::from_f64(half::f16::from_bits(x).to_f64())),
        DType::BF16 => gather(buffer, layout, |x: u16| T::from_f64(half::bf16::from_bits(x).to_f64())),
        DType::F8E4M3 => gather(buffer, layout, |x: u8| T::from_f64(f64::from(ff::f8e4m3_bits_to_f32(x)))),
        DType::F8E5M2 => gather(buffer, layout, |x: u8| T::from_f64(f64::from(ff::f8e5m2_bits_to_f32(x)))),
        DType::I64 => gather(buffer, layout, |x: i64| T::from_f64(x as f64)),
        DType::I32 => gather(buffer, layout, |x: i32| T::from_f64(f64::from(x))),
        DType::U32 => gather(buffer, layout, |x: u32| T::from_f64(f64::from(x))),
        DType::U16 => gather(buffer, layout, |x: u16| T::from_f64(f64::from(x))),
        DType::U8 | DType::Bool => gather(buffer, layout, |x: u8| T::from_f64(f64::from(x))),
    })
}

/// Writes a dense array into a strided tensor, rounding to the dtype.
pub(crate) fn store<T: Num>(buffer: &mut Buffer, dtype: DType, layout: &Layout, data: &Data<T>) {
    fn scatter<S: bytemuck::Pod, X: Copy>(buffer: &mut Buffer, layout: &Layout, data: &[X], convert: impl Fn(X) -> S) {
        let target = buffer.slice_mut::<S>();
        for (at, &x) in layout.positions().zip(data) {
            target[at] = convert(x);
        }
    }
    match data {
        Data::Int(a) => match dtype {
            DType::I64 => scatter(buffer, layout, &a.data, |x| x),
            DType::I32 => scatter(buffer, layout, &a.data, |x| x as i32),
            DType::U32 => scatter(buffer, layout, &a.data, |x| x as u32),
            DType::U16 => scatter(buffer, layout, &a.data, |x| x as u16),
            DType::Bool => scatter(buffer, layout, &a.data, |x| u8::from(x != 0)),
            _ => scatter(buffer, layout, &a.data, |x| x as u8),
        },
        Data::Num(a) => match dtype {
            DType::F64 => scatter(buffer, layout, &a.data, T::to_f64),
            DType::F32 => scatter(buffer, layout, &a.data, |x| x.to_f64() as f32),
            DType::F16 => scatter(buffer, layout, &a.data, |x| half::f16::from_f32(x.to_f64() as f32).to_bits()),
            DType::BF16 => scatter(buffer, layout, &a.data, |x| half::bf16::from_f32(x.to_f64() as f32).to_bits()),
            DType::F8E4M3 => scatter(buffer, layout, &a.data, |x| ff::f32_to_f8e4m3_bits_saturating(x.to_f64() as f32)),
            DType::F8E5M2 => scatter(buffer, layout, &a.data, |x| ff::f32_to_f8e5m2_bits(x.to_f64() as f32)),
            DType::I64 => scatter(buffer, layout, &a.data, |x| x.to_f64() as i64),
            DType::I32 => scatter(buffer, layout, &a.data, |x| x.to_f64() as i32),
            DType::U32 => scatter(buffer, layout, &a.data, |x| x.to_f64() as u32),
            DType::U16 => scatter(buffer, layout, &a.data, |x| x.to_f64() as u16),
            DType::U8 => scatter(buffer, layout, &a.data, |x| x.to_f64() as u8),
            DType::Bool => scatter(buffer, layout, &a.data, |x| u8::from(x.to_f64() != 0.0)),
        },
    }
}

/// In a kernel over i64 the integers *are* the numbers; elsewhere they stay beside the floats.
pub(crate) fn integers_as_numbers<T: Num>(data: Data<T>) -> Data<T> {
    let any: &dyn std::any::Any = &data;
    match any.downcast_ref::<Data<i64>>() {
        Some(Data::Int(a)) => {
            let number: Box<dyn std::any::Any> = Box::new(Data::<i64>::Num(a.clone()));
            *number.downcast::<Data<T>>().expect("T is i64 here")
        }
        _ => data,
    }
}

/// The inverse of [`integers_as_numbers`].
pub(crate) fn numbers_as_integers<T: Num>(data: Data<T>) -> Data<T> {
    let any: &dyn std::any::Any = &data;
    match any.downcast_ref::<Data<i64>>() {
        Some(Data::Num(a)) => Data::Int(Array { shape: a.shape.clone(), data: a.data.clone() }),
        _ => data,
    }
}
