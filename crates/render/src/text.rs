//! Reports for a terminal: the answer, then aligned rows, then what they rest on.

use plan::report::{Align, Assumption, Block, Cell, Derivation, KeyValue, Origin, Report, Row, Table};
use units::Diagnostics;

use crate::format::{self, Piece, Units, one_unit, phrase, piece};
use crate::width::{columns, left, right, wrap};

/// Columns of a bar that is full, where the terminal has room for it.
const BAR: usize = 40;
/// Fewest columns of a full bar: where there is room for less, there is none.
const SHORT_BAR: usize = 8;
/// Narrowest column of remarks; where less is left they go below.
const NARROW: usize = 28;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// Bold answers and dim remarks. Nothing depends on it.
    pub color: bool,
    /// GiB or GB.
    pub units: Units,
    /// The first line only.
    pub quiet: bool,
    /// No characters beyond ASCII.
    pub ascii: bool,
    /// Formulas with values and sources too.
    pub explain: bool,
    /// Deepest level of a tree that is printed, from 0; all of them if `None`.
    pub depth: Option<u8>,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { width: 100, color: false, units: Units::Iec, quiet: false, ascii: false, explain: false, depth: None }
    }
}

/// The report as text, with a line break at its end.
pub fn text(report: &Report, options: &TextOptions) -> String {
    let mut page = Page { out: String::new(), options };
    page.headline(report);
    if !options.quiet {
        for block in &report.blocks {
            page.gap();
            page.block(block);
        }
        if options.explain && !report.derivations.is_empty() {
            page.gap();
            page.derivations(&report.derivations);
        }
        if !report.assumptions.is_empty() {
            page.gap();
            page.assumptions(&report.assumptions);
        }
        if !report.notes.is_empty() {
            page.gap();
            for note in &report.notes {
                let note = phrase(note, options.units);
                page.remark("next  ", &note);
            }
        }
        for warning in &report.warnings {
            page.gap();
            page.line(&warning.to_string());
        }
    }
    if !options.quiet {
        for part in &report.parts {
            page.gap();
            page.line(&page.bold(&format!("== {}", part.kind)));
            page.out.push_str(&text(part, options));
        }
    }
    if options.ascii { format::ascii(&page.out) } else { page.out }
}

/// Problems as text, as the Rust compiler prints them, with a line break at the end.
pub fn problems_text(problems: &Diagnostics) -> String {
    format!("{problems}\n")
}

struct Page<'a> {
    out: String,
    options: &'a TextOptions,
}

impl Page<'_> {
    fn line(&mut self, text: &str) {
        self.out.push_str(text.trim_end());
        self.out.push('\n');
    }

    fn gap(&mut self) {
        self.out.push('\n');
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.options.color && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    fn dim(&self, text: &str) -> String {
        self.paint("2", text)
    }

    fn headline(&mut self, report: &Report) {
        let units = self.options.units;
        let answer = phrase(&report.headline.answer, units);
        let mut used = columns(&answer);
        let mut line = self.bold(&answer);
        for remark in &report.headline.qualifiers {
            let remark = phrase(remark, units);
            if !self.options.quiet && used + 3 + columns(&remark) > self.options.width {
                self.line(&line);
                let mut parts = wrap(&remark, self.options.width.saturating_sub(2).max(NARROW));
                let last = parts.pop().unwrap_or_default();
                for part in parts {
                    self.line(&format!("  {part}"));
                }
                line = format!("  {last}");
                used = 2 + columns(&last);
            } else {
                line.push_str("   ");
                line.push_str(&remark);
                used += 3 + columns(&remark);
            }
        }
        self.line(&line);
    }

    fn block(&mut self, block: &Block) {
        match block {
            Block::KeyValues { title, rows } => {
                self.title(title);
                self.key_values(rows);
            }
            Block::Table(table) => {
                self.title(&table.title);
                self.table(table);
            }
            Block::Text { title, lines } => {
                self.title(title);
                for line in lines {
                    let line = phrase(line, self.options.units);
                    for part in wrap(&line, self.options.width.saturating_sub(2).max(NARROW)) {
                        self.line(&format!("  {part}"));
                    }
                }
            }
        }
    }

    fn title(&mut self, title: &str) {
        if !title.is_empty() {
            let title = self.bold(title);
            self.line(&title);
        }
    }

    fn key_values(&mut self, rows: &[KeyValue]) {
        let units = self.options.units;
        let rows: Vec<_> =
            rows.iter().map(|row| (&row.key, piece(&row.value, units).joined(), phrase(&row.note, units))).collect();
        let keys = rows.iter().map(|(key, ..)| columns(key)).max().unwrap_or(0);
        let values =
            rows.iter().filter(|(.., note)| !note.is_empty()).map(|(_, value, _)| columns(value)).max().unwrap_or(0);
        for (key, value, note) in rows {
            let start = format!("  {}  {}", left(key, keys), left(&value, values));
            self.with_note(&start, &note);
        }
    }

    /// A line with a remark behind it: wrapped where it ends, or below where there is no room.
    fn with_note(&mut self, start: &str, note: &str) {
        let at = columns(start) + 3;
        let room = self.options.width.saturating_sub(at);
        if note.is_empty() {
            self.line(start);
        } else if room >= NARROW || columns(note) <= room {
            for (index, part) in wrap(note, room).iter().enumerate() {
                let part = self.dim(part);
                let start = if index == 0 { left(start, at) } else { " ".repeat(at) };
                self.line(&format!("{start}{part}"));
            }
        } else {
            self.line(start);
            for part in wrap(note, self.options.width.saturating_sub(6).max(NARROW)) {
                let part = self.dim(&part);
                self.line(&format!("      {part}"));
            }
        }
    }

    fn remark(&mut self, key: &str, text: &str) {
        let indent = columns(key);
        for (index, part) in wrap(text, self.options.width.saturating_sub(indent).max(NARROW)).iter().enumerate() {
            let start = if index == 0 { key.to_owned() } else { " ".repeat(indent) };
            self.line(&format!("{start}{part}"));
        }
    }

    fn table(&mut self, table: &Table) {
        let shown = |row: &&Row| self.options.depth.is_none_or(|depth| row.indent <= depth);
        let rows: Vec<&Row> = table.rows.iter().filter(shown).chain(&table.total).collect();
        let wanted = BAR.min(self.options.width * 2 / 5);
        let mut laid: Vec<Laid> = (0..table.columns.len()).map(|at| self.column(table, &rows, at, wanted)).collect();
        // Bars take what the other columns leave.
        let bars = |column: &usize| rows.iter().any(|row| matches!(row.cells.get(*column), Some(Cell::Bar(_))));
        for at in (0..laid.len()).filter(bars) {
            let (longest, over) = (laid[at].width(), width(&laid).saturating_sub(self.options.width));
            if over > 0 {
                let full = wanted * longest.saturating_sub(over) / longest.max(1);
                laid[at] = self.column(table, &rows, at, if full < SHORT_BAR { 0 } else { full });
            }
        }
        // Words at the end of a line are wrapped as remarks are.
        let mut words = None;
        let last = laid.pop_if(|last| {
            last.align == Align::Left && last.number >= NARROW && rows.iter().all(|row| row.note.0.is_empty())
        });
        if let Some(last) = last {
            if width(&laid) + 2 + last.width() > self.options.width && !laid.is_empty() {
                words = Some(last);
            } else {
                laid.push(last);
            }
        }
        let parts = parts(&laid, self.options.width);
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.gap();
            }
            let behind = if index + 1 == parts.len() { words.as_ref() } else { None };
            self.part(&rows, part, behind, index + 1 == parts.len());
        }
    }

    /// The columns of a table that stand beside each other, and `words` behind them.
    fn part(&mut self, rows: &[&Row], laid: &[&Laid], words: Option<&Laid>, notes: bool) {
        if laid.iter().copied().chain(words).any(|column| !column.name.is_empty()) {
            let names: Vec<String> = laid.iter().map(|column| column.heading()).collect();
            let behind = words.map_or_else(String::new, |words| format!("   {}", words.name));
            let heading = self.dim(format!("  {}{behind}", names.join("  ")).trim_end());
            self.line(&heading);
        }
        for (at, row) in rows.iter().enumerate() {
            let cells: Vec<String> = laid.iter().map(|column| column.cell(at)).collect();
            let start = format!("  {}", cells.join("  "));
            let note = match words {
                Some(words) => words.pieces[at].joined(),
                None if notes => phrase(&row.note, self.options.units),
                None => String::new(),
            };
            let start = if note.is_empty() { start.trim_end().to_owned() } else { start };
            self.with_note(&start, &note);
        }
    }

    /// A column of a table, in which a bar that is full has `bar` columns.
    fn column(&self, table: &Table, rows: &[&Row], at: usize, bar: usize) -> Laid {
        let column = &table.columns[at];
        let cells: Vec<&Cell> = rows.iter().map(|row| row.cells.get(at).unwrap_or(&Cell::Empty)).collect();
        let shared = if column.one_unit { one_unit(&cells, self.options.units) } else { None };
        let own = |cell: &&Cell| match cell {
            Cell::Bar(share) => Piece { number: format::bar(*share, bar), unit: String::new() },
            other => piece(other, self.options.units),
        };
        let mut pieces = shared.unwrap_or_else(|| cells.iter().map(own).collect());
        if at == 0 {
            for (piece, row) in pieces.iter_mut().zip(rows) {
                piece.number.insert_str(0, &"  ".repeat(usize::from(row.indent)));
            }
        }
        Laid::new(&column.name, column.align, pieces)
    }

    fn assumptions(&mut self, all: &[Assumption]) {
        self.title("assumed");
        let (short, long): (Vec<_>, Vec<_>) = all.iter().partition(|one| is_a_flag(one));
        let rows: Vec<(String, String)> = long
            .into_iter()
            .map(|one| {
                let why = phrase(&one.why, self.options.units);
                let flag = match (one.from, one.flag) {
                    (_, "") => String::new(),
                    (Origin::Given, flag) => format!("given by {flag}"),
                    (_, flag) => format!("({flag})"),
                };
                let space = if why.is_empty() || flag.is_empty() { "" } else { "  " };
                let name = format!("{} {}", one.label, piece(&one.value, self.options.units).joined());
                (name.trim_end().to_owned(), format!("{why}{space}{flag}"))
            })
            .collect();
        let names = rows.iter().map(|(name, _)| columns(name)).max().unwrap_or(0);
        for (name, why) in rows {
            self.with_note(&format!("  {}", left(&name, names)), &why);
        }
        // Plain choices as they would be typed.
        let (given, default): (Vec<_>, Vec<_>) = short.into_iter().partition(|one| one.from == Origin::Given);
        for (who, choices) in [("  default  ", default), ("  given    ", given)] {
            let typed = |one: &&Assumption| format!("{} {}", one.flag, piece(&one.value, self.options.units).joined());
            let text = choices.iter().map(typed).collect::<Vec<_>>().join(" · ");
            if !text.is_empty() {
                self.remark(who, &text);
            }
        }
    }

    fn derivations(&mut self, all: &[Derivation]) {
        self.title("explained");
        for (at, one) in all.iter().enumerate() {
            let units = self.options.units;
            let values = phrase(&one.substituted, units);
            let result = piece(&one.result, units).joined();
            let line = format!("{} = {} = {values} = {result}", one.of, one.expression);
            for (index, part) in wrap(&line, self.options.width.saturating_sub(4).max(NARROW)).iter().enumerate() {
                self.line(&format!("{}{part}", if index == 0 { "  " } else { "    " }));
            }
            // Said once behind all numbers of one formula.
            if all.get(at + 1).is_some_and(|next| (next.formula, &next.source) == (one.formula, &one.source)) {
                continue;
            }
            let note = format!("{} · {} · napkin explain {}", one.source, one.anchor, one.formula);
            for part in wrap(&note, self.options.width.saturating_sub(6).max(NARROW)) {
                let part = self.dim(&part);
                self.line(&format!("      {part}"));
            }
        }
    }
}

/// True for a choice of which there is no more to say than the flag that makes it.
fn is_a_flag(one: &Assumption) -> bool {
    let plain = match &one.value {
        Cell::Text(text) => !text.contains(' '),
        value => matches!(value, Cell::Count(_)),
    };
    plain && one.why.is_empty() && one.flag.strip_prefix("--").is_some_and(|flag| flag.replace('-', "_") == one.label)
}

/// Columns of the terminal that these take beside each other.
fn width<'a>(columns: impl IntoIterator<Item = &'a Laid>) -> usize {
    columns.into_iter().map(|column| 2 + column.width()).sum()
}

/// The columns in as many parts as it takes to stay within `most`, the first column in front of each. Nothing is left out.
fn parts(laid: &[Laid], most: usize) -> Vec<Vec<&Laid>> {
    let Some((first, others)) = laid.split_first() else { return Vec::new() };
    let mut out = vec![vec![first]];
    for column in others {
        let open = out.last_mut().expect("there is one");
        if open.len() > 1 && width(open.iter().copied()) + 2 + column.width() > most {
            out.push(vec![first, column]);
        } else {
            open.push(column);
        }
    }
    out
}

/// A column with its widths known.
struct Laid {
    name: String,
    align: Align,
    pieces: Vec<Piece>,
    number: usize,
    unit: usize,
}

impl Laid {
    fn new(name: &str, align: Align, pieces: Vec<Piece>) -> Self {
        let widest = |of: fn(&Piece) -> usize| pieces.iter().map(of).max().unwrap_or(0);
        let (number, unit) = match align {
            Align::Left => (widest(|piece| columns(&piece.joined())), 0),
            Align::Right => (widest(|piece| columns(&piece.number)), widest(|piece| columns(&piece.unit))),
        };
        let unit_and_space = if unit > 0 { unit + 1 } else { 0 };
        let number = number.max(columns(name).saturating_sub(unit_and_space));
        Self { name: name.to_owned(), align, pieces, number, unit }
    }

    fn width(&self) -> usize {
        self.number + if self.unit > 0 { self.unit + 1 } else { 0 }
    }

    fn heading(&self) -> String {
        match self.align {
            Align::Left => left(&self.name, self.width()),
            Align::Right => right(&self.name, self.width()),
        }
    }

    fn cell(&self, at: usize) -> String {
        let piece = &self.pieces[at];
        let text = match self.align {
            Align::Left => piece.joined(),
            // A word among numbers ends where the units end.
            Align::Right if piece.unit.is_empty() && piece.number.chars().any(char::is_alphabetic) => {
                right(&piece.number, self.width())
            }
            Align::Right => format!("{} {}", right(&piece.number, self.number), piece.unit),
        };
        left(text.trim_end(), self.width())
    }
}

#[cfg(test)]
mod tests;
