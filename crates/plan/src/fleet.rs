//! The devices of a run: which, how many, in which arithmetic.

use units::{Diagnostic, FlopPerSecond};

use crate::hardware::{Hardware, Peak, Precision, Variant};
use crate::phrase;
use crate::report::{Assumption, Cell, Origin, Value};

/// Equal devices that work together.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// One of them.
    pub hardware: Hardware,
    /// How many, as the runtime counts devices.
    pub devices: u64,
    /// True if the number was given, not assumed.
    pub devices_given: bool,
    /// The arithmetic of the matrix multiplications.
    pub precision: Precision,
    /// True if the arithmetic was given, not assumed.
    pub precision_given: bool,
}

impl Fleet {
    /// The dense peak of one device.
    ///
    /// # Errors
    /// `T0401` where the device has no rate for this arithmetic; the rates it has are listed.
    pub fn peak(&self) -> Result<&Peak, Diagnostic> {
        self.hardware.peak(self.precision).ok_or_else(|| {
            let known: Vec<_> = self.hardware.peaks().iter().map(|peak| peak.precision.name()).collect();
            let message = format!("{} has no dense peak for {}", self.hardware.display, self.precision);
            Diagnostic::error("T0401", message)
                .why("the hardware table holds only rates that a source states")
                .help(format!("--dtype {}", known.join(" | --dtype ")))
                .help("--peak 100TFLOP/s, if you know it")
        })
    }

    /// The same devices with a dense peak that the user knows.
    ///
    /// # Errors
    /// `T0402` for a rate that the table knows to be sparse: as a denominator it would halve every utilization.
    pub fn with_peak(mut self, rate: FlopPerSecond) -> Result<Self, Diagnostic> {
        let sparse = self.hardware.recognise(rate).find(|other| other.variant == Variant::Sparse);
        if let Some(sparse) = sparse {
            let message = format!("{rate} is the sparse {} rate of {}", sparse.precision, self.hardware.display);
            let dense = self.hardware.peak(sparse.precision).map(|peak| format!("its dense peak is {}", peak.rate));
            return Err(Diagnostic::error("T0402", message)
                .why("it counts the zeros of 2:4 sparsity as work, so a utilization of it is half of what it should be")
                .help(dense.unwrap_or_else(|| "give the dense peak".to_owned())));
        }
        self.hardware = self.hardware.with_peak(self.precision, rate);
        Ok(self)
    }

    /// The dense peak of all devices together.
    ///
    /// # Errors
    /// As [`peak`](Self::peak).
    pub fn total_peak(&self) -> Result<FlopPerSecond, Diagnostic> {
        Ok(self.peak()?.rate * self.devices as f64)
    }

    /// `1,024 × H100 SXM`.
    pub fn name(&self) -> String {
        format!("{} × {}", units::group_digits(u128::from(self.devices)), self.hardware.display)
    }

    /// What went into the report, for programs.
    pub fn inputs(&self) -> Value {
        Value::map()
            .with("name", self.hardware.name.as_str())
            .with("devices", self.devices)
            .with("precision", self.precision.name())
            .with("dense_peak_flop_per_second", self.hardware.peak(self.precision).map(|peak| peak.rate))
            .with("dense_peak_source", self.hardware.peak(self.precision).map(|peak| peak.source.to_string()))
    }

    /// What of it nobody said.
    pub fn assumptions(&self) -> Vec<Assumption> {
        let mut all = Vec::new();
        if !self.devices_given {
            all.push(Assumption::new("devices", "devices", self.devices, Origin::Default).flag("--devices"));
        }
        if !self.precision_given {
            let name = Cell::from(self.precision.name());
            let why = phrase!["arithmetic of the matrix multiplications"];
            all.push(Assumption::new("dtype", "dtype", name, Origin::Default).why(why).flag("--dtype"));
        }
        if self.hardware.assumed {
            let why = phrase!["no particular product: give what you know of yours"];
            let name = Cell::from(self.hardware.display.as_str());
            all.push(Assumption::new("hardware", "hardware", name, Origin::Default).why(why).flag("--peak"));
        }
        all
    }
}
