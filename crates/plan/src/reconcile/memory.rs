//! From the bytes a prediction allocates to those that witnesses outside of the engine saw, gap by gap.

use units::Bytes;

use crate::report::{Cell, Column, Row, Table, Value};

macro_rules! parts {
    ($(#[$doc:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $key:literal, $label:literal, $place:literal, $why:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$what])* $variant,)*
        }

        impl $name {
            /// All of them, in the order they are printed.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Name in records and in JSON.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$variant => $key),* }
            }

            const fn words(self) -> [&'static str; 3] {
                match self { $(Self::$variant => [$label, $place, $why]),* }
            }
        }
    };
}

parts! {
    /// What lies on the heap beside the elements of tensors.
    HeapPart {
        /// Blocks are whole cache lines.
        Rounding = "rounding", "rounding to 64 B", "allocator", "tensors begin at cache lines";
        /// Free blocks that wait for the next request.
        Cached = "cached", "free blocks kept", "allocator", "freed by one tensor, for the next";
        /// Room in segments that no tensor has had yet.
        Untouched = "untouched", "room never used", "allocator", "asked for, but not backed by memory yet";
        /// Packed operands of matrix products.
        Packing = "packing", "packed panels", "matrix products", "one workspace per thread, kept";
        /// Memory that other kernels work in.
        Scratch = "scratch", "kernel scratch", "attention, norms", "one block per thread, kept";
        /// What stands behind tensors beside their elements.
        Bookkeeping = "bookkeeping", "tape and handles", "autograd", "counted node by node";
        /// What the kernel at work allocated and freed again: indices, rows being summed.
        Lists = "lists", "lists of the kernel", "this op", "freed when its kernel is done";
        /// Modules, names, optimizer groups, readers of data.
        Model = "model", "modules and names", "model", "counted while it was built";
        /// What earlier steps left.
        Earlier = "earlier", "left by earlier steps", "optimizer, loop", "counted before this step began";
        /// What was there before the model.
        Before = "before", "program itself", "config, tables", "counted before the model was built";
    }
}

parts! {
    /// What is resident beside the elements of tensors.
    ResidentPart {
        /// Beyond the peak of the tensors: rounding and gaps between blocks.
        Reserved = "reserved", "allocator's reserve", "allocator", "rounding, gaps between blocks";
        /// The rest of the heap, as its witness counts it.
        Heap = "heap", "heap beside tensors", "heap witness", "kernels, tape, program: as after the steps";
        /// Pages that the system's allocator keeps for small blocks, less those that are alive.
        Kept = "kept", "free lists", "system's allocator", "pages of small blocks that are free";
        /// The program's own code and constants.
        Program = "program", "program", "code, constants", "pages of its file that were used";
        /// Code of shared libraries.
        Libraries = "libraries", "libraries", "code", "pages of their files that were used";
        /// Data read through maps.
        Data = "data", "data files", "token files", "pages that were read";
        /// Stacks of all threads.
        Stacks = "stacks", "stacks", "threads", "what was used of them";
        /// Pages that the system's kernel puts into each process.
        System = "system", "system pages", "kernel", "clock and system calls";
    }
}

/// The heap at its fullest in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Counted by the allocator of the program, which knows nothing of tensors.
    pub counted: Bytes,
    /// Which op of the step it was in.
    pub op: u64,
    /// Bytes of tensors then, as the meter has them.
    pub tensors: Bytes,
    /// What else there was; what was given back between two counts is less than nothing.
    pub parts: Vec<(HeapPart, i64)>,
}

/// The process after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Bytes in main memory, as the system says.
    pub now: Bytes,
    /// The most so far.
    pub peak: Bytes,
    /// Bytes that the allocator of tensors has used so far.
    pub reserved: Bytes,
    /// What else there is; [`ResidentPart::Reserved`] follows from the prediction and is not among them.
    pub parts: Vec<(ResidentPart, Bytes)>,
}

/// One line on the way from predicted to measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Name for programs.
    pub key: &'static str,
    words: [&'static str; 3],
    /// Bytes that it adds.
    pub bytes: i128,
}

impl Gap {
    /// Name for people.
    pub const fn label(&self) -> &'static str {
        self.words[0]
    }
}

/// The way from predicted to measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gaps {
    /// Where it begins.
    pub predicted: Bytes,
    /// Where it ends.
    pub measured: Bytes,
    /// What lies between, as far as it has a name.
    pub named: Vec<Gap>,
}

impl Gaps {
    /// From the predicted peak to the heap.
    pub fn of_heap(predicted: Bytes, heap: &Heap) -> Self {
        let moment = signed(heap.tensors) - signed(predicted);
        let words = ["tensors at that moment", "step", "the heap is fullest at another op"];
        let moment = (moment != 0).then_some(gap("moment", words, moment));
        let parts = heap.parts.iter().map(|(part, bytes)| gap(part.key(), part.words(), (*bytes).into()));
        Self { predicted, measured: heap.counted, named: moment.into_iter().chain(parts).collect() }
    }

    /// From the predicted peak to what is resident.
    pub fn of_process(predicted: Bytes, process: &Resident) -> Self {
        let part = ResidentPart::Reserved;
        let reserved = gap(part.key(), part.words(), signed(process.reserved) - signed(predicted));
        let parts = process.parts.iter().map(|(part, bytes)| gap(part.key(), part.words(), signed(*bytes)));
        Self { predicted, measured: process.now, named: std::iter::once(reserved).chain(parts).collect() }
    }

    /// What has no name.
    pub fn unexplained(&self) -> i128 {
        signed(self.measured) - signed(self.predicted) - self.named.iter().map(|gap| gap.bytes).sum::<i128>()
    }

    /// Measured above predicted, as a share of predicted.
    pub fn excess(&self) -> f64 {
        share(signed(self.measured) - signed(self.predicted), self.predicted)
    }

    /// What has no name, as a share of what was measured.
    pub fn unexplained_share(&self) -> f64 {
        share(self.unexplained(), self.measured)
    }

    /// All lines, biggest first.
    pub fn table(&self, title: &str, ends: &str) -> Table {
        let columns = [Column::left("gap"), Column::right("bytes"), Column::left("where"), Column::left("why")];
        let mut table = Table::new(title, columns);
        table.rows.push(Row::new(["predicted peak".into(), self.predicted.into(), "tensors".into(), Cell::Empty]));
        let mut named: Vec<_> = self.named.iter().filter(|gap| gap.bytes != 0).collect();
        named.sort_by_key(|gap| std::cmp::Reverse(gap.bytes.abs()));
        for gap in named {
            let [label, place, why] = gap.words;
            table.rows.push(Row::new([label.into(), Cell::BytesChange(gap.bytes), place.into(), why.into()]));
        }
        let unexplained = format!("{:.3} %", self.unexplained_share() * 100.0);
        table.rows.push(Row::new([
            "unexplained".into(),
            Cell::BytesChange(self.unexplained()),
            unexplained.into(),
            Cell::Empty,
        ]));
        table.total = Some(Row::new([ends.into(), self.measured.into(), Cell::Change(self.excess()), Cell::Empty]));
        table
    }

    /// All of it, for programs.
    pub fn value(&self) -> Value {
        let named = self.named.iter().fold(Value::map(), |map, gap| map.with(gap.key, gap.bytes));
        Value::map()
            .with("predicted_bytes", self.predicted)
            .with("measured_bytes", self.measured)
            .with("gaps_bytes", named)
            .with("unexplained_bytes", self.unexplained())
            .with("unexplained_share", self.unexplained_share())
            .with("excess_share", self.excess())
    }
}

const fn gap(key: &'static str, words: [&'static str; 3], bytes: i128) -> Gap {
    Gap { key, words, bytes }
}

fn signed(bytes: Bytes) -> i128 {
    i128::from(bytes.get())
}

fn share(part: i128, of: Bytes) -> f64 {
    if of.get() == 0 { 0.0 } else { part as f64 / of.get() as f64 }
}
