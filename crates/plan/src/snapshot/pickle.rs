//! Reads the data of a pickle and nothing else: numbers, texts, lists, tuples, dicts. A pickle is a program, so whatever in it
//! would import, call or build is refused by its name and place, and is never run.
//!
//! Values lie in one flat list and refer to each other by number. So no nesting is too deep, a value that occurs again
//! takes no memory again, and memory is bounded by the length of the input. Opcodes: `pickletools` of Python, protocols 2
//! to 5.

use std::collections::HashMap;
use std::ops::Range;

/// A value of a pickle, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ref(u32);

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number that 64 bits do not hold.
    Big,
    Float(f64),
    /// Where its bytes stand in the input.
    Text(Range<usize>),
    Bytes,
    List(Vec<Ref>),
    Tuple(Vec<Ref>),
    Dict(Vec<(Ref, Ref)>),
}

/// Why a pickle is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Byte at which that is so.
    pub offset: usize,
    /// What is there.
    pub what: String,
    /// Whether it would have run code.
    pub runs_code: bool,
}

/// Most values: beyond what a snapshot holds, and a bound on memory.
const MOST: usize = 1 << 26;

/// A pickle that was read.
#[derive(Clone, Debug)]
pub struct Pickle<'a> {
    input: &'a [u8],
    nodes: Vec<Node>,
    root: Ref,
}

impl<'a> Pickle<'a> {
    /// Reads the value of a pickle.
    ///
    /// # Errors
    /// Anything that is cut short, no pickle, of another protocol, or more than data.
    pub fn read(input: &'a [u8]) -> Result<Self, Refusal> {
        let mut reader =
            Reader { input, at: 0, nodes: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
        let root = reader.run()?;
        Ok(Self { input, nodes: reader.nodes, root })
    }

    /// The whole value.
    pub const fn root(&self) -> Ref {
        self.root
    }

    fn node(&self, value: Ref) -> &Node {
        &self.nodes[value.0 as usize]
    }

    /// The items of a list or tuple; none of anything else.
    pub fn items(&self, value: Ref) -> &[Ref] {
        match self.node(value) {
            Node::List(items) | Node::Tuple(items) => items,
            _ => &[],
        }
    }

    /// Whether it is a list or a tuple.
    pub fn is_list(&self, value: Ref) -> bool {
        matches!(self.node(value), Node::List(_) | Node::Tuple(_))
    }

    /// The entry of a dict under a name.
    pub fn get(&self, value: Ref, name: &str) -> Option<Ref> {
        let Node::Dict(entries) = self.node(value) else { return None };
        // Where a key is set twice, the later holds.
        entries.iter().rev().find(|(key, _)| self.text_bytes(*key) == Some(name.as_bytes())).map(|(_, value)| *value)
    }

    /// A whole number from zero on.
    pub fn count(&self, value: Ref) -> Option<u64> {
        match self.node(value) {
            Node::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    fn text_bytes(&self, value: Ref) -> Option<&'a [u8]> {
        match self.node(value) {
            Node::Text(range) => self.input.get(range.clone()),
            _ => None,
        }
    }

    /// A text; what is no UTF-8 in it is replaced.
    pub fn text(&self, value: Ref) -> Option<std::borrow::Cow<'a, str>> {
        self.text_bytes(value).map(String::from_utf8_lossy)
    }
}

fn refuse(offset: usize, what: impl Into<String>) -> Refusal {
    Refusal { offset, what: what.into(), runs_code: false }
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Ref>,
    /// Heights of the stack at open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Ref>,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Result<Range<usize>, Refusal> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.input.len());
        let end = end.ok_or_else(|| refuse(self.at, format!("it is cut short: {count} bytes more should follow")))?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let range = self.take(N)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.input[range]);
        Ok(out)
    }

    fn byte(&mut self) -> Result<u8, Refusal> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn length4(&mut self) -> Result<usize, Refusal> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn length8(&mut self) -> Result<usize, Refusal> {
        let length = u64::from_le_bytes(self.array()?);
        usize::try_from(length).map_err(|_| refuse(self.at - 8, format!("a length of {length} bytes")))
    }

    fn push(&mut self, node: Node) -> Result<(), Refusal> {
        if self.nodes.len() >= MOST {
            return Err(refuse(self.at, format!("more than {MOST} values")));
        }
        self.stack.push(Ref(self.nodes.len() as u32));
        self.nodes.push(node);
        Ok(())
    }

    /// Takes the top value that lies above the last mark.
    fn pop(&mut self) -> Result<Ref, Refusal> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(refuse(self.at - 1, "an opcode without a value for it"));
        }
        self.stack.pop().ok_or_else(|| refuse(self.at - 1, "an opcode without a value for it"))
    }

    fn top(&self) -> Result<Ref, Refusal> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let top = self.stack.get(floor..).and_then(<[Ref]>::last);
        top.copied().ok_or_else(|| refuse(self.at - 1, "an opcode without a value for it"))
    }

    /// All values above the last mark, which goes away.
    fn above_mark(&mut self) -> Result<Vec<Ref>, Refusal> {
        let mark = self.marks.pop().ok_or_else(|| refuse(self.at - 1, "an opcode without a mark for it"))?;
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, count: usize) -> Result<(), Refusal> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.push(Node::Tuple(items))
    }

    fn append(&mut self, items: Vec<Ref>) -> Result<(), Refusal> {
        let list = self.top()?;
        match &mut self.nodes[list.0 as usize] {
            Node::List(known) => {
                known.extend(items);
                Ok(())
            }
            _ => Err(refuse(self.at - 1, "items for what is no list")),
        }
    }

    fn set(&mut self, items: &[Ref]) -> Result<(), Refusal> {
        let dict = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        match &mut self.nodes[dict.0 as usize] {
            Node::Dict(known) if rest.is_empty() => {
                known.extend(pairs.iter().map(|[key, value]| (*key, *value)));
                Ok(())
            }
            Node::Dict(_) => Err(refuse(self.at - 1, "a key without a value")),
            _ => Err(refuse(self.at - 1, "entries for what is no dict")),
        }
    }

    fn integer(&mut self, count: usize) -> Result<(), Refusal> {
        let range = self.take(count)?;
        let bytes = &self.input[range];
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { 0xff } else { 0 };
        let mut wide = [fill; 8];
        let fits = bytes.iter().skip(8).all(|byte| *byte == fill)
            && bytes.get(7).is_none_or(|byte| (byte & 0x80 != 0) == negative);
        wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.push(if fits { Node::Int(i64::from_le_bytes(wide)) } else { Node::Big })
    }

    fn remember(&mut self, name: u32) -> Result<(), Refusal> {
        let value = self.top()?;
        self.memo.insert(name, value);
        Ok(())
    }

    fn recall(&mut self, name: u32) -> Result<(), Refusal> {
        let value = self.memo.get(&name).copied();
        let value = value.ok_or_else(|| refuse(self.at - 1, format!("nothing is remembered as {name}")))?;
        self.stack.push(value);
        Ok(())
    }

    fn run(&mut self) -> Result<Ref, Refusal> {
        if self.input.first() != Some(&0x80) {
            return Err(refuse(0, "it does not begin like a pickle of protocol 2 to 5"));
        }
        loop {
            let offset = self.at;
            let opcode = self.byte()?;
            match opcode {
                0x80 => {
                    let protocol = self.byte()?;
                    if !(2..=5).contains(&protocol) {
                        return Err(refuse(offset, format!("protocol {protocol}: 2 to 5 are read")));
                    }
                }
                // Frames only say how much to read at once.
                0x95 => drop(self.array::<8>()?),
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'N' => self.push(Node::None)?,
                0x88 => self.push(Node::Bool(true))?,
                0x89 => self.push(Node::Bool(false))?,
                b'K' => {
                    let value = self.byte()?;
                    self.push(Node::Int(i64::from(value)))?;
                }
                b'M' => {
                    let value = u16::from_le_bytes(self.array()?);
                    self.push(Node::Int(i64::from(value)))?;
                }
                b'J' => {
                    let value = i32::from_le_bytes(self.array()?);
                    self.push(Node::Int(i64::from(value)))?;
                }
                0x8a => {
                    let count = usize::from(self.byte()?);
                    self.integer(count)?;
                }
                0x8b => {
                    let count = self.length4()?;
                    self.integer(count)?;
                }
                b'G' => {
                    let value = f64::from_be_bytes(self.array()?);
                    self.push(Node::Float(value))?;
                }
                // Texts, with lengths of 1, 4 and 8 bytes; `T` and `U` are those of Python 2.
                0x8c | b'U' => {
                    let count = usize::from(self.byte()?);
                    let range = self.take(count)?;
                    self.push(Node::Text(range))?;
                }
                b'X' | b'T' => {
                    let count = self.length4()?;
                    let range = self.take(count)?;
                    self.push(Node::Text(range))?;
                }
                0x8d => {
                    let count = self.length8()?;
                    let range = self.take(count)?;
                    self.push(Node::Text(range))?;
                }
                // Bytes.
                b'C' => {
                    let count = usize::from(self.byte()?);
                    self.take(count)?;
                    self.push(Node::Bytes)?;
                }
                b'B' => {
                    let count = self.length4()?;
                    self.take(count)?;
                    self.push(Node::Bytes)?;
                }
                0x8e | 0x96 => {
                    let count = self.length8()?;
                    self.take(count)?;
                    self.push(Node::Bytes)?;
                }
                b']' => self.push(Node::List(Vec::new()))?,
                b'}' => self.push(Node::Dict(Vec::new()))?,
                b')' => self.push(Node::Tuple(Vec::new()))?,
                0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
                b't' => {
                    let items = self.above_mark()?;
                    self.push(Node::Tuple(items))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' => {
                    let items = self.above_mark()?;
                    self.append(items)?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set(&[key, value])?;
                }
                b'u' => {
                    let items = self.above_mark()?;
                    self.set(&items)?;
                }
                b'q' => {
                    let name = u32::from(self.byte()?);
                    self.remember(name)?;
                }
                b'r' => {
                    let name = u32::from_le_bytes(self.array()?);
                    self.remember(name)?;
                }
                0x94 => self.remember(self.memo.len() as u32)?,
                b'h' => {
                    let name = u32::from(self.byte()?);
                    self.recall(name)?;
                }
                b'j' => {
                    let name = u32::from_le_bytes(self.array()?);
                    self.recall(name)?;
                }
                _ => return Err(other(offset, opcode)),
            }
        }
    }
}

/// What is no data, and what is not known.
fn other(offset: usize, opcode: u8) -> Refusal {
    let name = match opcode {
        b'c' => "GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        0x93 => "STACK_GLOBAL",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        _ => return refuse(offset, format!("opcode 0x{opcode:02x}, which no snapshot has")),
    };
    Refusal { runs_code: true, ..refuse(offset, format!("opcode {name}, which imports or calls something")) }
}
