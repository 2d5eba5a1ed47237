//! The parts of a report that people read.

use super::{Cell, Phrase};

/// One part of a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Named values, each with a remark.
    KeyValues {
        /// Line above, or empty.
        title: String,
        /// The values.
        rows: Vec<KeyValue>,
    },
    /// Rows of cells.
    Table(Table),
    /// Sentences.
    Text {
        /// Line above, or empty.
        title: String,
        /// One sentence each.
        lines: Vec<Phrase>,
    },
}

impl Block {
    /// Named values.
    pub fn key_values(title: impl Into<String>, rows: impl IntoIterator<Item = KeyValue>) -> Self {
        Self::KeyValues { title: title.into(), rows: rows.into_iter().collect() }
    }

    /// Sentences.
    pub fn text(title: impl Into<String>, lines: impl IntoIterator<Item = Phrase>) -> Self {
        Self::Text { title: title.into(), lines: lines.into_iter().collect() }
    }
}

impl From<Table> for Block {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

/// A named value.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyValue {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: Cell,
    /// Where it comes from or what it means; may be empty.
    pub note: Phrase,
}

impl KeyValue {
    /// A named value without a remark.
    pub fn new(key: impl Into<String>, value: impl Into<Cell>) -> Self {
        Self { key: key.into(), value: value.into(), note: Phrase::default() }
    }

    /// Adds a remark.
    pub fn note(mut self, note: impl Into<Phrase>) -> Self {
        self.note = note.into();
        self
    }
}

/// Where the cells of a column stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// Words.
    #[default]
    Left,
    /// Numbers: digits end in one column, units follow in another.
    Right,
}

/// A column of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Column {
    /// Its heading; a table of which all columns have none is printed without headings.
    pub name: String,
    /// Where its cells stand.
    pub align: Align,
    /// True if all cells take the unit of the largest, printed once: `41.03 GiB`, below it `28.00`.
    pub one_unit: bool,
}

impl Column {
    /// A column of words.
    pub fn left(name: impl Into<String>) -> Self {
        Self { name: name.into(), align: Align::Left, one_unit: false }
    }

    /// A column of numbers, each with its own unit.
    pub fn right(name: impl Into<String>) -> Self {
        Self { name: name.into(), align: Align::Right, one_unit: false }
    }

    /// A column of numbers of one unit.
    pub fn one_unit(name: impl Into<String>) -> Self {
        Self { name: name.into(), align: Align::Right, one_unit: true }
    }
}

/// A row of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// How far its first cell is indented: the level in a tree. `--depth` hides deeper rows.
    pub indent: u8,
    /// One cell for each column; missing ones are empty.
    pub cells: Vec<Cell>,
    /// A remark behind the last column; may be empty.
    pub note: Phrase,
}

impl Row {
    /// A row of the first level.
    pub fn new(cells: impl IntoIterator<Item = Cell>) -> Self {
        Self { indent: 0, cells: cells.into_iter().collect(), note: Phrase::default() }
    }

    /// Sets the level.
    pub fn indent(mut self, indent: u8) -> Self {
        self.indent = indent;
        self
    }

    /// Adds a remark.
    pub fn note(mut self, note: impl Into<Phrase>) -> Self {
        self.note = note.into();
        self
    }
}

/// Rows of cells, biggest first where that means something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Line above, or empty.
    pub title: String,
    /// Columns, left to right.
    pub columns: Vec<Column>,
    /// Rows, top to bottom.
    pub rows: Vec<Row>,
    /// The sum, set apart; exactly the sum of the rows of the first level.
    pub total: Option<Row>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: impl IntoIterator<Item = Column>) -> Self {
        Self { title: title.into(), columns: columns.into_iter().collect(), rows: Vec::new(), total: None }
    }

    /// Adds a row of the first level.
    pub fn row(mut self, cells: impl IntoIterator<Item = Cell>) -> Self {
        self.rows.push(Row::new(cells));
        self
    }
}
