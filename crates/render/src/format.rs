//! One cell to text: digits and unit.

use plan::report::{Cell, Column, Phrase, Row};
use units::{Bytes, Flops, group_digits, percent};

/// Powers in which memory is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// GiB, 2^30 bytes.
    #[default]
    Iec,
    /// GB, 10^9 bytes.
    Si,
}

/// A printed quantity: its digits and its unit, so that both can be aligned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub number: String,
    pub unit: String,
}

impl Piece {
    /// A text of which the last word is a unit.
    fn split(text: &str) -> Self {
        match text.rsplit_once(' ') {
            Some((number, unit)) => Self { number: number.to_owned(), unit: unit.to_owned() },
            None => Self::whole(text),
        }
    }

    fn whole(text: impl Into<String>) -> Self {
        Self { number: text.into(), unit: String::new() }
    }

    /// Number and unit in one.
    pub fn joined(&self) -> String {
        if self.unit.is_empty() { self.number.clone() } else { format!("{} {}", self.number, self.unit) }
    }
}

/// The piece of one cell. Bars are drawn by whoever knows how wide they may be.
pub(crate) fn piece(cell: &Cell, units: Units) -> Piece {
    match cell {
        Cell::Empty | Cell::Bar(_) => Piece::default(),
        Cell::Text(text) => Piece::whole(text.clone()),
        Cell::Bytes(bytes) => Piece::split(&memory(*bytes, units)),
        Cell::Traffic(bytes) => Piece::split(&bytes.si_with_digits(4)),
        Cell::BytesChange(change) => {
            let size = Bytes(u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX));
            let piece = Piece::split(&memory(size, units));
            Piece { number: format!("{}{}", sign(*change < 0, *change > 0), piece.number), unit: piece.unit }
        }
        Cell::Flops(flop) => Piece::split(&flops(*flop)),
        Cell::Params(count) => Piece::split(&count.to_string()),
        Cell::Tokens(count) => Piece::split(&count.to_string()),
        Cell::Seconds(time) => Piece::split(&time.to_string()),
        Cell::Rate(rate) => Piece::split(&rate.to_string()),
        Cell::Bandwidth(rate) => Piece::split(&rate.to_string()),
        Cell::TokenRate(rate) => Piece::split(&rate.to_string()),
        Cell::Intensity(ratio) => Piece::split(&ratio.to_string()),
        Cell::Percent(ratio) => Piece::split(&percent(*ratio)),
        Cell::RoundPercent(ratio) => Piece::split(&percent(*ratio).replace(".0 %", " %")),
        Cell::Change(ratio) => {
            let piece = Piece::split(&percent(ratio.abs()));
            let zero = piece.number == "0.0";
            Piece { number: format!("{}{}", sign(*ratio < 0.0 && !zero, *ratio > 0.0 && !zero), piece.number), ..piece }
        }
        Cell::Count(count) => Piece::whole(group_digits(*count)),
        Cell::Short(count) => match u64::try_from(*count) {
            Ok(count) => Piece::split(&units::Params(count).to_string()),
            Err(_) => Piece::whole(format!("{:.2e}", *count as f64)),
        },
        Cell::Exact(count) => Piece::whole(exact(*count)),
        Cell::Number { value, decimals } => Piece::whole(number(*value, usize::from(*decimals))),
        Cell::Tiny(value) => Piece::whole(match value.abs() {
            0.0 => "0".to_owned(),
            0.1.. => format!("{value:.1}"),
            _ => format!("{value:.1e}"),
        }),
        Cell::Dollars(amount) => Piece::whole(dollars(*amount)),
    }
}

/// One quantity as text, for lines that are no report.
pub fn cell(cell: &Cell, units: Units) -> String {
    piece(cell, units).joined()
}

/// All cells of a phrase, joined.
pub(crate) fn phrase(phrase: &Phrase, units: Units) -> String {
    phrase.0.iter().map(|cell| piece(cell, units).joined()).collect()
}

/// Memory with two decimals, as people compare it with a capacity.
pub(crate) fn memory(bytes: Bytes, units: Units) -> String {
    match units {
        Units::Iec => bytes.iec_fixed(2),
        Units::Si => bytes.si_with_digits(4),
    }
}

/// From here on FLOP are written with an exponent: no prefix that people know is left.
const SCIENTIFIC: u128 = 1_000_000_000_000_000_000_000;

/// Four digits where a prefix exists, three in scientific notation.
fn flops(flop: Flops) -> String {
    flop.with_digits(if flop.get() < SCIENTIFIC { 4 } else { 3 })
}

const fn sign(negative: bool, positive: bool) -> &'static str {
    if negative {
        "-"
    } else if positive {
        "+"
    } else {
        ""
    }
}

/// `70e9` where the zeros come in threes and there are six at least; else all digits.
fn exact(count: u128) -> String {
    let mut rest = count;
    let mut power = 0;
    while rest != 0 && rest.is_multiple_of(1000) {
        rest /= 1000;
        power += 3;
    }
    if power >= 6 && rest < 10_000 { format!("{rest}e{power}") } else { group_digits(count) }
}

fn number(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return "n/a".to_owned();
    }
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), group_digits);
    let minus = if value < 0.0 && text.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) { "-" } else { "" };
    match fraction {
        Some(fraction) => format!("{minus}{whole}.{fraction}"),
        None => format!("{minus}{whole}"),
    }
}

fn dollars(amount: f64) -> String {
    // A price by the hour has cents; the cost of a run has not.
    let text = number(amount.abs(), if amount.abs() < 1000.0 { 2 } else { 0 });
    format!("{}${text}", sign(amount < 0.0, false))
}

/// The cells of a column in the unit of its largest one, which only the first of them names. `None` where its cells are
/// not of one kind that can be scaled.
pub(crate) fn one_unit(cells: &[&Cell], units: Units) -> Option<Vec<Piece>> {
    let sized = |cell: &Cell| match cell {
        Cell::Bytes(bytes) => Some(bytes.as_f64()),
        Cell::BytesChange(change) => Some(*change as f64),
        Cell::Flops(flop) => Some(flop.as_f64()),
        _ => None,
    };
    let magnitude = |cell: &Cell| sized(cell).map_or(0.0, f64::abs);
    let largest = cells.iter().copied().filter(|cell| sized(cell).is_some());
    let largest = largest.max_by(|a, b| magnitude(a).total_cmp(&magnitude(b)))?;
    // Beyond the prefixes each is written with an exponent of its own.
    if matches!(largest, Cell::Flops(flop) if flop.get() >= SCIENTIFIC) {
        return None;
    }
    let unit = piece(largest, units).unit;
    let base = match largest {
        Cell::Flops(_) => 1000_f64,
        _ if units == Units::Si => 1000.0,
        _ => 1024.0,
    };
    let step = ["k", "M", "G", "T", "P", "E"]
        .iter()
        .position(|prefix| unit.to_lowercase().starts_with(&prefix.to_lowercase()));
    let scale = base.powi(step.map_or(0, |step| step as i32 + 1));
    let decimals = if scale > 1.0 { 2 } else { 0 };
    let mut named = false;
    let mut scaled = |cell: &Cell| {
        let Some(value) = sized(cell) else { return piece(cell, units) };
        let plus = if matches!(cell, Cell::BytesChange(change) if *change > 0) { "+" } else { "" };
        let unit = if named { String::new() } else { unit.clone() };
        named = true;
        Piece { number: format!("{plus}{}", number(value / scale, decimals)), unit }
    };
    Some(cells.iter().map(|cell| scaled(cell)).collect())
}

/// The cells of a column of a table as words; `bar` draws shares.
pub(crate) fn column_texts(
    rows: &[&Row],
    at: usize,
    column: &Column,
    units: Units,
    bar: impl Fn(f64) -> String,
) -> Vec<String> {
    let own: Vec<&Cell> = rows.iter().map(|row| row.cells.get(at).unwrap_or(&Cell::Empty)).collect();
    if let Some(pieces) = column.one_unit.then(|| one_unit(&own, units)).flatten() {
        return pieces.iter().map(Piece::joined).collect();
    }
    let text = |cell: &&Cell| match cell {
        Cell::Bar(share) => bar(*share),
        other => piece(other, units).joined(),
    };
    own.iter().map(text).collect()
}

/// Eighths of a block, so that a bar is exact to an eighth of a column.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// A share as a bar of at most `full` columns.
pub(crate) fn bar(share: f64, full: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * full as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// The text with characters that every terminal has.
pub(crate) fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '×' => out.push('x'),
            '÷' => out.push('/'),
            '·' => out.push('*'),
            'µ' => out.push('u'),
            '²' => out.push_str("^2"),
            '±' => out.push_str("+-"),
            '…' => out.push_str("..."),
            '█' | '▉' | '▊' | '▋' | '▌' => out.push('#'),
            // Less than half a column is none, but keeps its place.
            '▏' | '▎' | '▍' => out.push(' '),
            '⅓' => out.push_str("1/3"),
            '←' => out.push_str("<-"),
            '→' => out.push_str("->"),
            'Σ' => out.push_str("sum"),
            c if c.is_ascii() => out.push(c),
            _ => out.push('?'),
        }
    }
    // A bar of nothing leaves no space at the end of its line.
    out.split('\n').map(|line| line.trim_end_matches(' ')).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Bytes, FlopPerSecond, Params, Seconds};

    fn shown(cell: impl Into<Cell>) -> String {
        piece(&cell.into(), Units::Iec).joined()
    }

    #[test]
    fn cells() {
        for (cell, text) in [
            (Cell::Bytes(Bytes(85_520_809_984)), "79.65 GiB"),
            (Cell::Traffic(Bytes(20_971_520)), "20.97 MB"),
            (Cell::BytesChange(-40_534_000_000), "-37.75 GiB"),
            (Cell::BytesChange(0), "0 B"),
            (Cell::Flops(Flops(2_147_483_648)), "2.147 GFLOP"),
            (Cell::Flops(Flops(6_300_000_000_000_000_000_000_000)), "6.30e24 FLOP"),
            (Cell::Params(Params(42_760_404_992)), "42.8 B"),
            (Cell::Rate(FlopPerSecond::tera(989.5)), "989.5 TFLOP/s"),
            (Cell::Seconds(Seconds::from_days(143.93)), "143.9 days"),
            (Cell::Percent(0.347), "34.7 %"),
            (Cell::RoundPercent(0.5), "50 %"),
            (Cell::RoundPercent(0.425), "42.5 %"),
            (Cell::Change(-0.545), "-54.5 %"),
            (Cell::Change(0.00001), "0.0 %"),
            (Cell::Short(3_537_000), "3.54 M"),
            (Cell::Exact(70_000_000_000), "70e9"),
            (Cell::Exact(15_000_000_000_000), "15e12"),
            (Cell::Exact(8_030_261_248), "8,030,261,248"),
            (Cell::Exact(0), "0"),
            (Cell::Number { value: -1234.5, decimals: 2 }, "-1,234.50"),
            (Cell::Tiny(-0.000_24), "-2.4e-4"),
            (Cell::Tiny(-1.0), "-1.0"),
            (Cell::Tiny(0.0), "0"),
            (Cell::Dollars(2.5), "$2.50"),
            (Cell::Dollars(8_842_500.0), "$8,842,500"),
            (Cell::Empty, ""),
        ] {
            assert_eq!(shown(cell.clone()), text, "{cell:?}");
        }
        assert_eq!(piece(&Cell::Bytes(Bytes(80_000_000_000)), Units::Si).joined(), "80.00 GB");
    }

    #[test]
    fn a_column_of_one_unit() {
        let gib = |value: f64| Cell::Bytes(Bytes((value * 1_073_741_824.0) as u64));
        let cells = [gib(41.03), gib(0.125), Cell::Empty, Cell::BytesChange(1 << 30)];
        let column = one_unit(&cells.iter().collect::<Vec<_>>(), Units::Iec).unwrap();
        let text: Vec<String> = column.iter().map(Piece::joined).collect();
        assert_eq!(text, ["41.03 GiB", "0.12", "", "+1.00"]);
        assert_eq!(one_unit(&[&Cell::Text("x".into())], Units::Iec), None);
        let small = [Cell::Bytes(Bytes(496)), Cell::Bytes(Bytes(144))];
        let small = one_unit(&small.iter().collect::<Vec<_>>(), Units::Iec).unwrap();
        assert_eq!(small.iter().map(Piece::joined).collect::<Vec<_>>(), ["496 B", "144"]);
    }

    #[test]
    fn bars_and_ascii() {
        assert_eq!(bar(0.592, 40), "███████████████████████▋");
        assert_eq!(bar(0.0, 40), "");
        assert_eq!(bar(7.0, 4), "████");
        assert_eq!(ascii("1 × 2 µs ██▏ s²\n▏"), "1 x 2 us ##  s^2\n");
    }
}
