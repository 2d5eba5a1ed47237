//! A measured machine for people and for programs.

use super::{Bandwidth, Machine, Product, counted};
use plan::hardware::Precision;
use plan::phrase;
use plan::report::{Assumption, Block, Cell, Column, KeyValue, Origin, Phrase, Report, Row, Table, Value};
use tensor::DType;
use units::{BytesPerSecond, Diagnostic, FlopPerByte, FlopPerSecond};

fn rate(value: f64) -> Cell {
    FlopPerSecond::new(value).map_or(Cell::Empty, Cell::Rate)
}

impl Machine {
    /// The whole measurement.
    pub fn report(&self) -> Report {
        let fp32 = self.peak_of(Precision::Fp32, self.threads);
        let mut report = Report::new("bench", phrase![rate(fp32), " peak"]);
        report.headline.qualifiers = vec![self.peak_words(), phrase![self.name.as_str()]];
        report.blocks.push(self.machine().into());
        for (dtype, threads) in self.sweeps() {
            report.blocks.push(self.sweep(dtype, threads).into());
        }
        report.blocks.push(self.roofline());
        report.assumptions.extend(self.given.map(|given| {
            let why = phrase!["in fp32; the other types keep their ratio to it"];
            Assumption::new("peak", "peak", given, Origin::Given).why(why).flag("--peak")
        }));
        report.warnings = self.warnings();
        report.result = self.value();
        report
    }

    /// `2 × 3.70 GHz × 32 FLOP per cycle`.
    fn peak_words(&self) -> Phrase {
        if self.given.is_some() {
            return phrase!["fp32, given by --peak"];
        }
        let per_cycle = self.peak.flop_per_cycle();
        let fp32 = per_cycle.iter().find(|(p, _)| *p == Precision::Fp32).map_or(0.0, |(_, flop)| *flop);
        let (cores, ghz) = (self.peak.cores(), self.peak.all.clock / 1e9);
        let words = format!("fp32, {cores} × {ghz:.2} GHz × {fp32:.4} FLOP per cycle");
        // `32.0000` is a whole number.
        phrase![words.replace(".0000 FLOP", " FLOP")]
    }

    /// The ceilings.
    fn machine(&self) -> Table {
        let columns =
            [Column::left(""), Column::right("1 thread"), Column::right(counted(self.threads)), Column::left("")];
        let mut table = Table::new("ceilings of this machine", columns);
        let mut row = |name: &str, one: Cell, all: Cell, note: Phrase| {
            table.rows.push(Row::new([name.into(), one, all]).note(note));
        };
        let ghz = |hertz: f64| Cell::Text(format!("{:.2} GHz", hertz / 1e9));
        row(
            "clock",
            ghz(self.peak.one.clock),
            ghz(self.peak.all.clock),
            phrase!["a chain of additions, one per cycle"],
        );
        for (one, all) in self.peak.one.rates.iter().zip(&self.peak.all.rates) {
            let name = format!("{} multiply-adds", one.precision);
            let note = format!("in {} bits, registers only", one.vector_bits);
            row(&name, rate(one.best()), rate(all.best()), phrase![note]);
        }
        let bandwidth = |of: &dyn Fn(&Bandwidth) -> f64| {
            let cell = |b: Option<&Bandwidth>| {
                b.map_or(Cell::Empty, |b| BytesPerSecond::new(of(b)).map_or(Cell::Empty, Cell::Bandwidth))
            };
            (cell(self.bandwidth.first()), cell(self.bandwidth.last()))
        };
        let (one, all) = bandwidth(&Bandwidth::copy_rate);
        row("memory, copy", one, all, phrase!["read and written, vectors larger than the caches"]);
        let (one, all) = bandwidth(&Bandwidth::triad_rate);
        row("memory, triad", one, all, phrase!["two read, one written"]);
        table
    }

    /// Type and threads of each table of products.
    fn sweeps(&self) -> Vec<(DType, usize)> {
        let mut all: Vec<_> = self.products.iter().map(|p| (p.dtype, p.threads)).collect();
        all.dedup();
        all
    }

    fn sweep(&self, dtype: DType, threads: usize) -> Table {
        let columns = [
            Column::right("m = n = k"),
            Column::right("median"),
            Column::right("half the range"),
            Column::right("rate"),
            Column::right("of peak"),
            Column::left(""),
        ];
        let peak = self.peak_of(Precision::of(dtype), threads);
        let title = format!("{}, {}, peak {}", dtype.name(), counted(threads), rate_text(peak));
        let mut table = Table::new(title, columns);
        for product in self.products.iter().filter(|p| p.dtype == dtype && p.threads == threads) {
            let share = product.rate() / peak;
            table.rows.push(Row::new([
                product.n.into(),
                product.samples.median().into(),
                product.samples.spread().into(),
                rate(product.rate()),
                Cell::Percent(share),
                Cell::Bar(share),
            ]));
        }
        table
    }

    /// Where memory stops to be the limit.
    fn roofline(&self) -> Block {
        let bandwidth = self.bandwidth();
        let rows = [Precision::Fp32, Precision::Bf16, Precision::Fp16].map(|precision| {
            let ridge = self.peak_of(precision, self.threads) / bandwidth;
            KeyValue::new(precision.name(), FlopPerByte::new(ridge).map_or(Cell::Empty, Cell::Intensity))
                .note(phrase!["below it memory is the limit"])
        });
        Block::key_values(format!("ridge point, {}", counted(self.threads)), rows)
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        let mut all: Vec<Diagnostic> = self.products.iter().filter_map(slow_first).collect();
        if !self.left_out.is_empty() {
            let names: Vec<_> =
                self.left_out.iter().map(|(d, t, n)| format!("{n} in {}, {}", d.name(), counted(*t))).collect();
            all.push(
                Diagnostic::warning("T0801", format!("no time was left for {}", names.join("; ")))
                    .help("--seconds 300"),
            );
        }
        let above = self.products.iter().find(|p| p.rate() > self.peak_of(Precision::of(p.dtype), p.threads) * 1.02);
        if let Some(product) = above {
            let message = format!("{} at {} is above the peak", product.dtype.name(), product.n);
            all.push(
                Diagnostic::warning("T0802", message)
                    .why("the peak was measured while other programs ran, or it was given too low")
                    .help("run it again on a quiet machine")
                    .help("--peak 500GFLOP/s, if you know it"),
            );
        }
        if self.has_matrix_units {
            all.push(
                Diagnostic::warning("T0803", "this processor has matrix units (AMX), which were not measured")
                    .effect("its bf16 peak is higher than what is printed")
                    .help("--peak, if you know it"),
            );
        }
        all.extend(disturbed(self.products.iter().filter_map(|p| p.samples.busy(p.threads))));
        all
    }

    fn value(&self) -> Value {
        let precisions = [Precision::Fp32, Precision::Bf16, Precision::Fp16];
        let peaks = precisions.iter().map(|&p| {
            Value::map()
                .with("precision", p.name())
                .with("flop_per_second", self.peak_of(p, self.threads))
                .with("one_thread_flop_per_second", self.peak_of(p, 1))
                .with("ridge_point_flop_per_byte", self.peak_of(p, self.threads) / self.bandwidth())
        });
        Value::map()
            .with("processor", self.name.as_str())
            .with("threads", self.threads)
            .with("cores", self.peak.cores())
            .with("memory_bytes", self.memory)
            .with("given_peak_flop_per_second", self.given)
            .with("peaks", Value::List(peaks.collect()))
            .with("ceilings", Value::list([self.peak.one.value(), self.peak.all.value()]))
            .with("bandwidth", Value::list(self.bandwidth.iter().map(Bandwidth::value)))
            .with(
                "matmul",
                Value::list(self.products.iter().map(|p| {
                    p.value().with("share_of_peak", p.rate() / self.peak_of(Precision::of(p.dtype), p.threads))
                })),
            )
    }
}

/// Less of the processor than this, and others had a part of the result.
const BUSY: f64 = 0.9;

/// A warning if the processor did not work for us all the time.
pub(super) fn disturbed(busy: impl Iterator<Item = f64>) -> Option<Diagnostic> {
    let least = busy.fold(1.0, f64::min);
    let message = format!("threads worked {:.0} % of the time they were given", least * 100.0);
    (least < BUSY).then(|| {
        Diagnostic::warning("T0804", message)
            .why("other programs run, or there was too little work for so many threads")
            .effect("rates are lower than on a quiet machine; the peak is not, for it counts processor time")
    })
}

fn rate_text(value: f64) -> String {
    FlopPerSecond::new(value).map_or_else(|_| "unknown".to_owned(), |rate| rate.to_string())
}

fn slow_first(product: &Product) -> Option<Diagnostic> {
    let ratio = product.samples.slow_first()?;
    let (n, dtype, threads) = (product.n, product.dtype.name(), counted(product.threads));
    let message = format!("the first run at {n} in {dtype} with {threads} was {ratio:.1} × the median");
    Some(Diagnostic::warning("T0800", message).effect("it is kept in --json but not in the median"))
}
