//! A memory snapshot of PyTorch: segments, blocks, and the stacks that asked for them.
//!
//! Source: the structure that `torch.cuda.memory._snapshot` documents, and how `torch/cuda/_memory_viz.py` reads older ones.

use units::{Diagnostic, Location};

use super::pickle::{Pickle, Ref, Refusal};

/// A line of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    /// Path of the file.
    pub file: String,
    /// Line.
    pub line: u64,
    /// Name of the function.
    pub name: String,
}

/// What a block is at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Handed out.
    Allocated,
    /// Freed, while another stream may still use it.
    Waiting,
    /// Free.
    Free,
}

/// A piece of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its bytes.
    pub size: u64,
    /// Bytes that were asked for, where the snapshot tells.
    pub requested: Option<u64>,
    /// What it is.
    pub state: State,
    /// The stack that asked for it, innermost first; empty where no history was recorded.
    pub frames: Vec<Frame>,
}

/// Memory that was got from the driver at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its bytes.
    pub size: u64,
    /// Its blocks.
    pub blocks: Vec<Block>,
}

/// The memory of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of the device.
    pub device: u64,
    /// Segments of other devices, which are left out.
    pub elsewhere: usize,
    /// Its segments.
    pub segments: Vec<Segment>,
}

/// Most blocks and frames that are read: a value may stand in many places of a small file.
const MOST: usize = 1 << 22;

/// Frames of a stack that are read: the innermost ones.
const FRAMES: usize = 32;

impl Snapshot {
    /// Reads the bytes of a snapshot of PyTorch, of the device that has most memory. Nothing in it is executed.
    ///
    /// # Errors
    /// `T0640` for what is no such file, with the byte at which that is so.
    pub fn read(file: &str, input: &[u8]) -> Result<Self, Diagnostic> {
        let pickle = Pickle::read(input).map_err(|refusal| told(file, &refusal))?;
        let root = pickle.root();
        // Up to PyTorch 1.13 the list of segments was all there was.
        let list = if pickle.is_list(root) { Some(root) } else { pickle.get(root, "segments") };
        let list = list.filter(|list| pickle.is_list(*list));
        let list = list.ok_or_else(|| problem(file, "it has no list of `segments`"))?;
        let mut read = Reader { pickle: &pickle, file, left: MOST };
        let mut devices: Vec<Self> = Vec::new();
        for (number, one) in pickle.items(list).iter().enumerate() {
            let segment = read.segment(*one, number)?;
            let device = pickle.get(*one, "device").and_then(|device| pickle.count(device)).unwrap_or(0);
            match devices.iter_mut().find(|known| known.device == device) {
                Some(known) => known.segments.push(segment),
                None => devices.push(Self { device, elsewhere: 0, segments: vec![segment] }),
            }
        }
        let all: usize = devices.iter().map(|device| device.segments.len()).sum();
        let most = devices.into_iter().max_by_key(|device| (device.reserved(), std::cmp::Reverse(device.device)));
        let most = most.ok_or_else(|| problem(file, "it has no segment: nothing was reserved when it was taken"))?;
        if most.reserved() > 1 << 60 {
            return Err(problem(file, "its segments come to more than 2^60 bytes, which no device has"));
        }
        Ok(Self { elsewhere: all - most.segments.len(), ..most })
    }

    /// All blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.segments.iter().flat_map(|segment| &segment.blocks)
    }

    /// Bytes of the segments.
    pub fn reserved(&self) -> u128 {
        self.segments.iter().map(|segment| u128::from(segment.size)).sum()
    }

    /// Bytes of the blocks in a state.
    pub fn in_state(&self, state: State) -> u128 {
        self.blocks().filter(|block| block.state == state).map(|block| u128::from(block.size)).sum()
    }
}

struct Reader<'a, 'b> {
    pickle: &'b Pickle<'a>,
    file: &'b str,
    left: usize,
}

impl Reader<'_, '_> {
    fn spend(&mut self) -> Result<(), Diagnostic> {
        self.left =
            self.left.checked_sub(1).ok_or_else(|| problem(self.file, "more blocks and frames than are read"))?;
        Ok(())
    }

    fn number(&self, value: Ref, name: &str) -> Option<u64> {
        self.pickle.get(value, name).and_then(|number| self.pickle.count(number))
    }

    fn segment(&mut self, value: Ref, number: usize) -> Result<Segment, Diagnostic> {
        self.spend()?;
        let missing = |what: &str| problem(self.file, &format!("segment {number} has no {what}"));
        let size = self.number(value, "total_size").ok_or_else(|| missing("`total_size`"))?;
        let list = self.pickle.get(value, "blocks").filter(|list| self.pickle.is_list(*list));
        let list = list.ok_or_else(|| missing("list of `blocks`"))?;
        let blocks = self.pickle.items(list).iter();
        let blocks = blocks.map(|block| self.block(*block, number)).collect::<Result<Vec<_>, _>>()?;
        let sum: u128 = blocks.iter().map(|block| u128::from(block.size)).sum();
        if sum != u128::from(size) {
            let what = format!("the blocks of segment {number} come to {sum} bytes, the segment to {size}");
            return Err(problem(self.file, &what));
        }
        Ok(Segment { size, blocks })
    }

    fn block(&mut self, value: Ref, number: usize) -> Result<Block, Diagnostic> {
        self.spend()?;
        let pickle = self.pickle;
        let missing = |what: &str| problem(self.file, &format!("a block of segment {number} has no {what}"));
        let size = self.number(value, "size").ok_or_else(|| missing("`size`"))?;
        let state = pickle.get(value, "state").and_then(|state| pickle.text(state));
        let state = match state.as_deref() {
            Some("active_allocated") => State::Allocated,
            // The second is the name of PyTorch 1.
            Some("active_awaiting_free" | "active_pending_free") => State::Waiting,
            Some("inactive") => State::Free,
            _ => return Err(missing("`state` that is known")),
        };
        // Older ones keep what was asked for, and by whom, in a history.
        let history = pickle.get(value, "history").and_then(|history| pickle.items(history).first().copied());
        let requested =
            self.number(value, "requested_size").or_else(|| history.and_then(|h| self.number(h, "real_size")));
        let frames = pickle.get(value, "frames").or_else(|| history.and_then(|h| pickle.get(h, "frames")));
        let frames = if state == State::Free { None } else { frames };
        let frames = frames.map_or(&[][..], |frames| pickle.items(frames)).iter().take(FRAMES);
        let frames = frames.map(|frame| self.frame(*frame)).collect::<Result<Vec<_>, _>>()?;
        Ok(Block { size, requested: requested.filter(|bytes| *bytes > 0 && *bytes <= size), state, frames })
    }

    fn frame(&mut self, value: Ref) -> Result<Frame, Diagnostic> {
        self.spend()?;
        let text = |name: &str| {
            let text = self.pickle.get(value, name).and_then(|text| self.pickle.text(text));
            text.map_or_else(String::new, |text| text.chars().take(300).collect())
        };
        Ok(Frame { file: text("filename"), name: text("name"), line: self.number(value, "line").unwrap_or(0) })
    }
}

fn problem(file: &str, what: &str) -> Diagnostic {
    Diagnostic::error("T0640", format!("no memory snapshot of PyTorch: {what}"))
        .at(Location::file(file))
        .help("torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") writes one")
}

fn told(file: &str, refusal: &Refusal) -> Diagnostic {
    let problem = problem(file, &format!("at byte {}, {}", refusal.offset, refusal.what));
    if refusal.runs_code {
        problem.why("a snapshot is made of numbers and texts; nothing in this file was executed")
    } else {
        problem
    }
}
