//! Answers of `tokenize` and `inspect` for people and programs.

use plan::phrase;
use plan::report::{Assumption, Block, Cell, Column, KeyValue, Origin, Phrase, Report, Row, Table, Value, Verdict};
use units::Bytes;

use super::format::Vocabulary;
use super::inspect::{Inspection, Reading};
use super::tokenize::{Tokenize, Tokenized};

impl Tokenized {
    /// What was written, and from what. `request` is what was asked for.
    pub fn report(&self, request: &Tokenize) -> Report {
        let output = self.output.display().to_string();
        let mut report = Report::new("tokenize", phrase![self.tokens, " tokens in ", &*output]).qualified(phrase![
            &*self.vocabulary.tokenizer,
            ", ",
            self.dtype.name(),
            ", ",
            size(self.file_bytes)
        ]);
        let columns =
            [Column::left("text"), Column::right("bytes"), Column::right("tokens"), Column::right("bytes per token")];
        let row = |name: String, bytes: u64, tokens: u64| {
            Row::new([name.into(), bytes.into(), tokens.into(), ratio(bytes, tokens)])
        };
        let mut table = Table::new("", columns);
        let name = |path: &std::path::Path| path.display().to_string();
        table.rows = self.inputs.iter().map(|(path, bytes, tokens)| row(name(path), *bytes, *tokens)).collect();
        if self.inputs.len() > 1 {
            table.total = Some(row("all".to_owned(), self.text_bytes(), self.tokens));
        }
        report.blocks.push(table.into());
        let mut rows = vec![vocabulary(&self.vocabulary), KeyValue::new("documents", self.documents)];
        if self.replaced > 0 {
            rows.push(KeyValue::new("replaced", self.replaced).note("U+FFFD where there was no UTF-8"));
        }
        report.blocks.push(Block::key_values("", rows));

        let marked = match self.vocabulary.end_of_text.filter(|_| request.end_of_text) {
            Some(id) => format!("token {id} behind every document"),
            None => "no token behind a document".to_owned(),
        };
        report.assumptions = vec![
            Assumption::new("tokenizer", "tokenizer", &*self.vocabulary.tokenizer, Origin::Default)
                .why("the model must have the same vocabulary")
                .flag("--tokenizer"),
            Assumption::new("end_of_text", "documents", marked, Origin::Default)
                .why("a model learns from it where texts end")
                .flag("--end-of-text"),
        ];
        report.notes.push(phrase!["napkin inspect ", &*output]);
        let inputs = self.inputs.iter().map(|(path, bytes, tokens)| {
            Value::map().with("file", name(path)).with("bytes", *bytes).with("tokens", *tokens)
        });
        report.inputs = Value::map().with("texts", Value::list(inputs)).with("separator", request.separator.clone());
        report.result = Value::map()
            .with("file", output)
            .with("file_bytes", self.file_bytes)
            .with("dtype", self.dtype.name())
            .with("tokens", self.tokens)
            .with("text_bytes", self.text_bytes())
            .with("documents", self.documents)
            .with("replaced", self.replaced)
            .with("vocabulary", vocabulary_value(&self.vocabulary));
        report
    }
}

impl Inspection {
    /// What was found. The verdict is "no" if the file cannot be trained on as it is.
    pub fn report(&self) -> Report {
        let path = self.path.display().to_string();
        let kind = self.format.map_or("no tokens", super::Format::name);
        let mut report =
            match self.readings.first() {
                Some(reading) => Report::new("inspect", phrase![reading.count, " tokens in ", &*path])
                    .qualified(phrase![kind, ", ", reading.dtype.name(), ", ", size(self.file_bytes)]),
                None => Report::new("inspect", phrase!["no tokens in ", &*path]).qualified(phrase![
                    kind,
                    ", ",
                    size(self.file_bytes)
                ]),
            };
        if let [reading] = &self.readings[..] {
            report.blocks.push(Block::key_values("", self.rows(reading)));
        } else if !self.readings.is_empty() {
            report.blocks.push(self.both().into());
        }
        if let Some(reading) = self.readings.first() {
            report.blocks.push(self.most_frequent(reading).into());
        }
        report.warnings.clone_from(&self.problems.0);
        report.verdict = if self.is_usable() { Verdict::Answered } else { Verdict::No };
        report.inputs = Value::map().with("file", path).with("vocab_size", self.vocab_size);
        report.result = self.value();
        report
    }

    fn rows(&self, reading: &Reading) -> Vec<KeyValue> {
        let mut rows = vec![KeyValue::new("ids", range(reading)).note(phrase![reading.distinct, " different ones"])];
        if let Some(known) = &self.vocabulary {
            rows.push(vocabulary(known));
        }
        // Values beyond all vocabularies are not told apart, so there is no entropy to speak of.
        if reading.beyond == 0 {
            rows.push(self.entropy(reading));
        }
        rows.push(KeyValue::new("first", ids(reading)));
        if let Some(text) = &self.text {
            rows.push(KeyValue::new("as text", quoted(text)));
        }
        rows
    }

    fn entropy(&self, reading: &Reading) -> KeyValue {
        let entropy = Cell::Text(format!("{:.3} nats", reading.entropy));
        let mut note = phrase!["the loss of a model that knows only how often each id occurs"];
        if let Some(size) = self.vocab_size.or(self.vocabulary.as_ref().map(|vocabulary| vocabulary.size)) {
            let start = Cell::Number { value: (size as f64).ln(), decimals: 3 };
            note = note.and(phrase!["; ln ", size, " = ", start, " is that of one that knows nothing"]);
        }
        KeyValue::new("entropy", entropy).note(note)
    }

    /// The readings side by side, where the type is not known.
    fn both(&self) -> Table {
        let columns = [
            Column::left("read as"),
            Column::right("tokens"),
            Column::left("ids"),
            Column::right("different"),
            Column::left("first"),
        ];
        let mut table = Table::new("without a header, either is possible; the likelier first", columns);
        for reading in &self.readings {
            table.rows.push(Row::new([
                reading.dtype.name().into(),
                reading.count.into(),
                range(reading).into(),
                reading.distinct.into(),
                ids(reading).into(),
            ]));
        }
        table
    }

    fn most_frequent(&self, reading: &Reading) -> Table {
        let mut columns = vec![Column::right("id"), Column::right("count"), Column::right("share"), Column::left("")];
        if !self.tokens.is_empty() {
            columns.insert(1, Column::left("token"));
        }
        let mut table = Table::new("most frequent", columns);
        let largest = reading.top.first().map_or(1, |&(_, count)| count);
        for (index, &(id, count)) in reading.top.iter().enumerate() {
            let share = Cell::Percent(count as f64 / reading.count as f64);
            let bar = Cell::Bar(count as f64 / largest as f64);
            let mut cells = vec![Cell::from(id), count.into(), share, bar];
            if let Some(token) = self.tokens.get(index) {
                cells.insert(1, quoted(token).into());
            }
            table.rows.push(Row::new(cells));
        }
        table
    }

    fn value(&self) -> Value {
        let readings = self.readings.iter().map(|reading| {
            let top = reading.top.iter().map(|&(id, count)| Value::map().with("id", id).with("count", count));
            let above = reading.above.map(|(count, position, value)| {
                Value::map().with("count", count).with("first_position", position).with("first_value", value)
            });
            Value::map()
                .with("dtype", reading.dtype.name())
                .with("tokens", reading.count)
                .with("min", reading.min)
                .with("max", reading.max)
                .with("distinct", reading.distinct)
                .with("beyond_2_20", reading.beyond)
                .with("entropy_nats", reading.entropy)
                .with("out_of_vocabulary", above)
                .with("first", Value::list(reading.first.iter().copied()))
                .with("most_frequent", Value::list(top))
        });
        let codes = self.problems.iter().map(|problem| problem.code);
        Value::map()
            .with("usable", self.is_usable())
            .with("format", self.format.map(super::Format::name))
            .with("file_bytes", self.file_bytes)
            .with("offset_bytes", self.offset)
            .with("stated_tokens", self.stated)
            .with("vocabulary", self.vocabulary.as_ref().map(vocabulary_value))
            .with("readings", Value::list(readings))
            .with("text", self.text.clone())
            .with("problems", Value::list(codes))
    }
}

fn size(bytes: u64) -> Cell {
    Cell::Bytes(Bytes(bytes))
}

fn ratio(bytes: u64, tokens: u64) -> Cell {
    if tokens == 0 { Cell::Empty } else { Cell::Number { value: bytes as f64 / tokens as f64, decimals: 2 } }
}

fn range(reading: &Reading) -> String {
    format!("{} to {}", reading.min, reading.max)
}

fn ids(reading: &Reading) -> String {
    let ids: Vec<String> = reading.first.iter().map(i64::to_string).collect();
    ids.join(" ")
}

/// With escapes for what would break the line or drive the terminal.
fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fn vocabulary(known: &Vocabulary) -> KeyValue {
    let name = if known.tokenizer.is_empty() { "of an unnamed tokenizer" } else { &known.tokenizer };
    let end: Phrase = match known.end_of_text {
        Some(id) => phrase![name, ", end of text is ", u64::from(id)],
        None => phrase![name, ", without a token for the end of a text"],
    };
    KeyValue::new("vocabulary", known.size).note(end)
}

fn vocabulary_value(known: &Vocabulary) -> Value {
    Value::map()
        .with("tokenizer", &*known.tokenizer)
        .with("size", known.size)
        .with("crc32", known.crc32)
        .with("end_of_text", known.end_of_text)
}
