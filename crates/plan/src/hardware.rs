//! The hardware table: what each accelerator can do, from whom that is known, and since when.
//!
//! Every number comes from `data/hardware/NAME.toml`, compiled into the program. Rates are per device *as the runtime
//! counts devices*, so one MI250X module is two of them. Dense, sparse, fp16-accumulate and measured rates are kept
//! apart: only a dense one is a [`Peak`], so nothing else can become the denominator of a utilization.
//!
//! ```
//! # use napkin_plan as plan;
//! use plan::hardware::{self, Precision};
//!
//! let h100 = hardware::find("H100 SXM")?;
//! let peak = h100.peak(Precision::Bf16).expect("in the table");
//! assert_eq!(peak.rate.get(), 989.5e12);
//! assert_eq!(h100.capacity_reported().map(|bytes| bytes.get()), Some(85_520_809_984));
//!
//! let error = hardware::find("h100").unwrap_err();
//! assert_eq!(error.to_string(), "`--hw h100` is ambiguous: h100-sxm, h100-pcie, h100-nvl");
//! # Ok::<(), hardware::HardwareError>(())
//! ```

mod data;
mod error;
mod lookup;
mod table;
mod write;

use std::fmt;
use std::str::FromStr;

use tensor::DType;
use units::{Bytes, BytesPerSecond, FlopPerByte, FlopPerSecond};

pub use error::HardwareError;
pub use lookup::find;
pub use table::table;
pub use write::to_toml;

/// A kind of arithmetic that a device has a rate for.
///
/// `fp32` and `fp64` are the plain vector units. Matrix units have their own entries, because a program only reaches
/// them when it asks for that arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// 64-bit floats on the vector units.
    Fp64,
    /// 64-bit floats on the matrix units.
    Fp64Tensor,
    /// 32-bit floats on the vector units ([`Unit::Matrix`] where a device computes them only there).
    Fp32,
    /// 32-bit floats at full precision on the matrix units.
    Fp32Tensor,
    /// 32-bit storage, 10-bit mantissa in the multiplication.
    Tf32,
    /// 16-bit brain floats, accumulated in fp32.
    Bf16,
    /// 16-bit IEEE floats, accumulated in fp32.
    Fp16,
    /// 8-bit floats, accumulated in fp32.
    Fp8,
    /// 8-bit integers, accumulated in 32-bit ones.
    Int8,
    /// 4-bit floats with block scales.
    Fp4,
}

impl Precision {
    /// Every precision, widest first.
    pub const ALL: [Self; 10] = [
        Self::Fp64,
        Self::Fp64Tensor,
        Self::Fp32,
        Self::Fp32Tensor,
        Self::Tf32,
        Self::Bf16,
        Self::Fp16,
        Self::Fp8,
        Self::Int8,
        Self::Fp4,
    ];

    /// The arithmetic that products of tensors of `dtype` are made in; integers are made into 32-bit floats first.
    pub const fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self::Fp64,
            DType::BF16 => Self::Bf16,
            DType::F16 => Self::Fp16,
            DType::F8E4M3 | DType::F8E5M2 => Self::Fp8,
            DType::F32 | DType::I64 | DType::I32 | DType::U32 | DType::U16 | DType::U8 | DType::Bool => Self::Fp32,
        }
    }

    /// The name used in data files and on the command line, such as `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp64 => "fp64",
            Self::Fp64Tensor => "fp64_tensor",
            Self::Fp32 => "fp32",
            Self::Fp32Tensor => "fp32_tensor",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Fp4 => "fp4",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reads the names of this table and those that tensors and configurations use (`f32`, `float16`, `f8e4m3`, ...).
impl FromStr for Precision {
    type Err = HardwareError;

    fn from_str(text: &str) -> Result<Self, HardwareError> {
        Ok(match text.trim().to_ascii_lowercase().as_str() {
            "fp64" | "f64" | "float64" | "double" => Self::Fp64,
            "fp64_tensor" => Self::Fp64Tensor,
            "fp32" | "f32" | "float32" | "float" => Self::Fp32,
            "fp32_tensor" => Self::Fp32Tensor,
            "tf32" => Self::Tf32,
            "bf16" | "bfloat16" => Self::Bf16,
            "fp16" | "f16" | "float16" | "half" => Self::Fp16,
            "fp8" | "f8e4m3" | "f8e5m2" | "float8_e4m3fn" | "float8_e5m2" | "e4m3" | "e5m2" => Self::Fp8,
            "int8" | "i8" => Self::Int8,
            "fp4" | "nvfp4" | "mxfp4" => Self::Fp4,
            _ => {
                return Err(HardwareError::UnknownPrecision { text: text.to_owned() });
            }
        })
    }
}

/// The part of a device that reaches a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Plain arithmetic units.
    Vector,
    /// Matrix units: tensor cores, matrix cores, systolic arrays.
    Matrix,
}

/// Where a number comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The document.
    pub document: String,
    /// When it was published (`2023` or `2023-03`), or, for documents without a date, when it was `read`.
    pub date: String,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.document, self.date)
    }
}

/// A dense peak: what a utilization is measured against.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// The arithmetic.
    pub precision: Precision,
    /// The rate of one device, in FLOP/s (operations per second for integers).
    pub rate: FlopPerSecond,
    /// Which units reach it.
    pub unit: Unit,
    /// Where it comes from.
    pub source: Source,
    /// Always true: no other kind of rate is a `Peak`. It is there to be printed.
    pub dense: bool,
}

/// Why a rate is no dense peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Counts the zeros of structured sparsity as work.
    Sparse,
    /// Accumulates in fp16, which training does not.
    Fp16Accumulate,
    /// Was measured on large matrix multiplications: a ceiling to compare with.
    Measured,
}

/// A rate that is not a dense peak, kept so that it can be shown and recognised.
///
/// It gives out a plain number and no [`FlopPerSecond`], so that it does not fit where a denominator is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherRate {
    /// The arithmetic.
    pub precision: Precision,
    /// What kind of rate it is.
    pub variant: Variant,
    /// Where it comes from.
    pub source: Source,
    tera: f64,
}

impl OtherRate {
    /// A rate of one device, in TFLOP/s.
    pub const fn new(precision: Precision, variant: Variant, source: Source, tera: f64) -> Self {
        Self { precision, variant, source, tera }
    }

    /// The rate of one device in TFLOP/s, for printing and comparing.
    pub const fn tera(&self) -> f64 {
        self.tera
    }
}

/// The memory of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The technology, such as `HBM3`.
    pub kind: String,
    /// The size on the datasheet, in bytes.
    pub nominal: Bytes,
    /// The size that the runtime reports, in bytes, where it is known.
    pub reported: Option<(Bytes, Source)>,
    /// Peak bandwidth, in bytes per second.
    pub bandwidth: BytesPerSecond,
    /// Where size and bandwidth come from.
    pub source: Source,
}

/// What a link connects a device with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The other devices of its node, rack or pod.
    Node,
    /// Other nodes, where the network is a part of the product.
    Network,
    /// The host processor.
    Host,
}

/// A way out of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The technology, such as `nvlink`, `infinity-fabric`, `ici`, `roce` or `pcie-gen5-x16`.
    pub kind: String,
    /// What it connects with.
    pub scope: Scope,
    /// Bandwidth of all its lanes together in one direction, in bytes per second. Datasheets often print both
    /// directions added, which is twice as much.
    pub per_direction: BytesPerSecond,
    /// How many devices it joins, this one included.
    pub devices: Option<u32>,
    /// What the number hides, such as the topology.
    pub note: Option<String>,
    /// Where it comes from.
    pub source: Source,
}

/// A processor, whose peak is computed instead of quoted.
#[derive(Clone, Debug, PartialEq)]
pub struct Cpu {
    /// Physical cores.
    pub cores: u32,
    /// Clock while all cores compute, in GHz.
    pub clock_ghz: f64,
    /// Width of a vector register, in bits.
    pub vector_bits: u32,
    /// FLOP per cycle and core, by precision.
    pub flop_per_cycle: Vec<(Precision, f64)>,
    /// Where FLOP per cycle comes from.
    pub source: Source,
}

/// What the user knows about a processor. What is `None` keeps the generic value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOverrides {
    /// Physical cores.
    pub cores: Option<u32>,
    /// Clock while all cores compute, in GHz.
    pub clock_ghz: Option<f64>,
    /// FLOP per cycle and core in fp32; the other precisions keep their ratio to it.
    pub flop_per_cycle: Option<f64>,
    /// Memory, in bytes.
    pub memory: Option<Bytes>,
    /// Memory bandwidth, in bytes per second.
    pub bandwidth: Option<BytesPerSecond>,
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A graphics processor.
    Gpu,
    /// A Google tensor processing unit.
    Tpu,
    /// Another accelerator: Gaudi, Trainium.
    Npu,
    /// A processor.
    Cpu,
}

impl Kind {
    /// The name used in data files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Tpu => "tpu",
            Self::Npu => "npu",
            Self::Cpu => "cpu",
        }
    }
}

/// One accelerator or processor.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// Canonical name, such as `h100-sxm`; unique in the table.
    pub name: String,
    /// Name for people, such as `H100 SXM`.
    pub display: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// Who makes it.
    pub vendor: String,
    /// What kind of device it is.
    pub kind: Kind,
    /// Form factor, such as `SXM5` or `PCIe`.
    pub form_factor: String,
    /// Architecture, such as `Hopper`.
    pub architecture: String,
    /// What the runtime counts as one device. Every number of this entry is for one of these.
    pub device: String,
    /// Devices in one package: 2 for an MI250X module.
    pub devices_per_package: u32,
    /// True if the entry describes no particular product, so that its numbers are assumptions to be printed.
    pub assumed: bool,
    /// What a reader of the numbers should know.
    pub notes: Vec<String>,
    /// Memory of one device.
    pub memory: Memory,
    /// Ways out of one device.
    pub links: Vec<Link>,
    /// How a processor's peaks are computed; `None` for accelerators.
    pub cpu: Option<Cpu>,
    peaks: Vec<Peak>,
    others: Vec<OtherRate>,
}

impl Hardware {
    /// Reads an entry of the form of the files in `data/hardware`.
    ///
    /// # Errors
    /// [`HardwareError::File`] for what is missing, unknown or out of range.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, HardwareError> {
        data::read(text).map_err(|problem| HardwareError::File { file: file.to_owned(), problem })
    }

    /// A processor of which everything was measured.
    ///
    /// # Errors
    /// [`HardwareError::BadOverride`] if a rate is no positive number.
    pub fn measured_cpu(
        display: &str,
        architecture: &str,
        cpu: Cpu,
        memory: Memory,
        others: Vec<OtherRate>,
    ) -> Result<Self, HardwareError> {
        positive("clock", cpu.clock_ghz)?;
        positive("memory bandwidth", memory.bandwidth.get())?;
        for (_, flop) in &cpu.flop_per_cycle {
            positive("FLOP per cycle", *flop)?;
        }
        Ok(Self {
            name: "this-cpu".to_owned(),
            display: display.to_owned(),
            aliases: Vec::new(),
            vendor: "measured".to_owned(),
            kind: Kind::Cpu,
            form_factor: "host".to_owned(),
            architecture: architecture.to_owned(),
            device: "all cores of the machine".to_owned(),
            devices_per_package: 1,
            assumed: false,
            notes: Vec::new(),
            memory,
            links: Vec::new(),
            peaks: cpu.peaks()?,
            cpu: Some(cpu),
            others,
        })
    }

    /// The dense peak of one device for this arithmetic, if it has one.
    pub fn peak(&self, precision: Precision) -> Option<&Peak> {
        self.peaks.iter().find(|peak| peak.precision == precision)
    }

    /// All dense peaks, widest arithmetic first.
    pub fn peaks(&self) -> &[Peak] {
        &self.peaks
    }

    /// The rates that are no dense peaks: sparse, fp16-accumulate, measured.
    pub fn other_rates(&self) -> &[OtherRate] {
        &self.others
    }

    /// One of the rates that are no dense peaks.
    pub fn other_rate(&self, variant: Variant, precision: Precision) -> Option<&OtherRate> {
        self.others.iter().find(|rate| rate.variant == variant && rate.precision == precision)
    }

    /// The rates of this device that lie within 1 % of `rate` and are no dense peaks: what somebody who used `rate` as
    /// a peak may have read by mistake.
    pub fn recognise(&self, rate: FlopPerSecond) -> impl Iterator<Item = &OtherRate> {
        let tera = rate.get() / 1e12;
        self.others.iter().filter(move |other| (other.tera - tera).abs() <= 0.01 * other.tera)
    }

    /// The memory that the runtime reports, in bytes. `None` where no reading is known; it is never guessed.
    pub fn capacity_reported(&self) -> Option<Bytes> {
        self.memory.reported.as_ref().map(|(bytes, _)| *bytes)
    }

    /// The memory on the datasheet, in bytes.
    pub const fn capacity_nominal(&self) -> Bytes {
        self.memory.nominal
    }

    /// The memory to plan with, in bytes: as reported if that is known, else nominal.
    pub fn capacity(&self) -> Bytes {
        self.capacity_reported().unwrap_or(self.memory.nominal)
    }

    /// Peak memory bandwidth of one device, in bytes per second.
    pub const fn bandwidth(&self) -> BytesPerSecond {
        self.memory.bandwidth
    }

    /// The intensity at which computing and moving take equally long, in FLOP per byte.
    pub fn ridge_point(&self, precision: Precision) -> Option<FlopPerByte> {
        self.peak(precision).map(|peak| peak.rate / self.memory.bandwidth)
    }

    /// The link to the other devices of the node, rack or pod.
    pub fn node_link(&self) -> Option<&Link> {
        self.link(Scope::Node)
    }

    /// The first link of this scope.
    pub fn link(&self, scope: Scope) -> Option<&Link> {
        self.links.iter().find(|link| link.scope == scope)
    }

    /// The same device with a peak that the user gives, in FLOP/s per device; it replaces what the table says.
    #[must_use]
    pub fn with_peak(mut self, precision: Precision, rate: FlopPerSecond) -> Self {
        let source = Source { document: "given by the user".to_owned(), date: "this run".to_owned() };
        let peak = Peak { precision, rate, unit: self.unit_of(precision, false), source, dense: true };
        self.peaks.retain(|old| old.precision != precision);
        self.peaks.push(peak);
        self.peaks.sort_by_key(|peak| peak.precision);
        self
    }

    /// The generic processor of the table with what the user knows put in.
    ///
    /// # Errors
    /// [`HardwareError::BadOverride`] for zero cores, and for a clock, FLOP per cycle or memory that is no positive
    /// number.
    pub fn generic_cpu(overrides: CpuOverrides) -> Result<Self, HardwareError> {
        let mut hardware = find("cpu")?.clone();
        let Some(cpu) = &mut hardware.cpu else {
            return Err(HardwareError::Unknown { query: "cpu".to_owned(), near: Vec::new() });
        };
        if let Some(cores) = overrides.cores {
            positive("cores", f64::from(cores))?;
            cpu.cores = cores;
        }
        if let Some(ghz) = overrides.clock_ghz {
            cpu.clock_ghz = positive("clock", ghz)?;
        }
        if let Some(fp32) = overrides.flop_per_cycle {
            positive("FLOP per cycle", fp32)?;
            let generic = cpu.flop_per_cycle.iter().find(|(precision, _)| *precision == Precision::Fp32);
            let ratio = fp32 / generic.map_or(fp32, |(_, flop)| *flop);
            for (_, flop) in &mut cpu.flop_per_cycle {
                *flop *= ratio;
            }
            cpu.source = Source { document: "given by the user".to_owned(), date: "this run".to_owned() };
        }
        hardware.peaks = cpu.peaks()?;
        if let Some(memory) = overrides.memory {
            positive("memory", memory.as_f64())?;
            hardware.memory.nominal = memory;
        }
        if let Some(bandwidth) = overrides.bandwidth {
            positive("bandwidth", bandwidth.get())?;
            hardware.memory.bandwidth = bandwidth;
        }
        // What is left of the generic machine is still an assumption.
        hardware.assumed = overrides.cores.is_none()
            || overrides.clock_ghz.is_none()
            || overrides.flop_per_cycle.is_none()
            || overrides.memory.is_none()
            || overrides.bandwidth.is_none();
        Ok(hardware)
    }

    fn unit_of(&self, precision: Precision, fp32_on_matrix: bool) -> Unit {
        match precision {
            _ if self.kind == Kind::Cpu => Unit::Vector,
            Precision::Fp32 if fp32_on_matrix => Unit::Matrix,
            Precision::Fp64 | Precision::Fp32 => Unit::Vector,
            _ => Unit::Matrix,
        }
    }
}

impl Cpu {
    /// Peaks in FLOP/s: cores × clock × FLOP per cycle.
    fn peaks(&self) -> Result<Vec<Peak>, HardwareError> {
        self.flop_per_cycle
            .iter()
            .map(|&(precision, flop)| {
                let value = f64::from(self.cores) * self.clock_ghz * 1e9 * flop;
                let rate = FlopPerSecond::new(value).map_err(|_| HardwareError::BadOverride { what: "peak", value })?;
                Ok(Peak { precision, rate, unit: Unit::Vector, source: self.source.clone(), dense: true })
            })
            .collect()
    }
}

fn positive(what: &'static str, value: f64) -> Result<f64, HardwareError> {
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err(HardwareError::BadOverride { what, value }) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
