//! What an out-of-memory message says: the request, and the books of the device and of the allocator.

use units::Diagnostic;

use super::size::Printed;

/// Who refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// PyTorch's caching allocator on CUDA, HIP or XPU: a request may be rounded up to a segment.
    Cached,
    /// Metal: `GB` are 2^30 bytes.
    Metal,
    /// The host's memory, asked for to the byte.
    Host,
}

/// The numbers of a message; `None` for what it does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who refused.
    pub device: Device,
    /// What was asked for.
    pub request: Printed,
    /// Memory of the device.
    pub capacity: Option<Printed>,
    /// What the driver has left.
    pub free: Option<Printed>,
    /// What this process holds, with what is not PyTorch's.
    pub process: Option<Printed>,
    /// What other processes hold, each.
    pub others: Vec<Printed>,
    /// What a limit of the program allows.
    pub allowed: Option<Printed>,
    /// Bytes of live tensors.
    pub allocated: Option<Printed>,
    /// Of these, in private pools of captured graphs.
    pub private: Option<Printed>,
    /// What the allocator holds from the driver, live or not.
    pub reserved: Option<Printed>,
    /// Of it, what no tensor lives in.
    pub unallocated: Option<Printed>,
    /// How many more messages the text has.
    pub more: usize,
}

/// A number with its unit, and where it stands.
struct Found {
    size: Printed,
    start: usize,
    end: usize,
}

impl Message {
    /// Reads a message, or a bare size such as `786.00 MiB`.
    ///
    /// # Errors
    /// `T0320` for a text without a size that was asked for.
    pub fn read(text: &str) -> Result<Self, Diagnostic> {
        let lower = text.to_ascii_lowercase();
        let device = if lower.contains("mps ") {
            Device::Metal
        } else if lower.contains("cpuallocator") || lower.contains("unable to allocate") {
            Device::Host
        } else {
            Device::Cached
        };
        let found = sizes(text, device == Device::Metal);
        let before = |i: usize| {
            let from = if i == 0 { 0 } else { found[i - 1].end };
            lower[from..found[i].start].trim_end_matches(|c: char| c.is_whitespace() || c == ':')
        };
        let after = |i: usize| {
            let to = found.get(i + 1).map_or(lower.len(), |next| next.start);
            lower[found[i].end..to].trim_start()
        };
        let asked = |i: &usize| {
            let words = before(*i);
            words.ends_with("allocate") || words.ends_with("allocating")
        };
        let requests: Vec<usize> = (0..found.len()).filter(asked).collect();
        let first = match (&requests[..], &found[..]) {
            ([first, ..], _) => *first,
            ([], [_]) => 0,
            ([], _) => return Err(nothing_asked(found.len())),
        };
        // The first message is the cause: what follows in a log is other ranks, or what came of it. Metal says what it
        // holds before what was asked for.
        let from = if device == Device::Metal { 0 } else { first };
        let to = requests.get(1).copied().unwrap_or(found.len());
        let mut out = Self {
            device,
            request: found[first].size.clone(),
            capacity: None,
            free: None,
            process: None,
            others: Vec::new(),
            allowed: None,
            allocated: None,
            private: None,
            reserved: None,
            unallocated: None,
            more: requests.len().saturating_sub(1),
        };
        for i in (from..to).filter(|i| *i != first) {
            out.note(&found[i].size, before(i), after(i));
        }
        out.complete();
        Ok(out)
    }

    /// Files a number under what the words around it say.
    fn note(&mut self, size: &Printed, before: &str, after: &str) {
        let slot = if before.ends_with("total capacity of")
            || before.ends_with("total capacty of")
            || after.starts_with("total capacity")
        {
            &mut self.capacity
        } else if after.starts_with("is free") || after.starts_with("free") {
            &mut self.free
        } else if after.starts_with("memory in use") && before.ends_with("this process has") {
            &mut self.process
        } else if after.starts_with("memory in use") {
            self.others.push(size.clone());
            return;
        } else if after.starts_with("allowed") || before.ends_with("max allowed") {
            &mut self.allowed
        } else if after.starts_with("allocated in private pools") {
            &mut self.private
        } else if after.starts_with("is allocated by pytorch")
            || after.starts_with("already allocated")
            || before.ends_with("mps allocated")
        {
            &mut self.allocated
        } else if after.starts_with("is reserved by pytorch but unallocated") {
            &mut self.unallocated
        } else if after.starts_with("reserved in total") || after.starts_with("cached") {
            &mut self.reserved
        } else if before.ends_with("other allocations") {
            self.others.push(size.clone());
            return;
        } else {
            return;
        };
        slot.get_or_insert_with(|| size.clone());
    }

    /// The older messages give the sum, the newer ones what is not live: each from the other.
    fn complete(&mut self) {
        self.complete_reserved();
        // In a container the driver knows this process under another number, so that the message lists it as a stranger.
        let Some(reserved) = self.reserved.as_ref().map(|size| size.high) else { return };
        let (Some(capacity), Some(free), None) = (&self.capacity, &self.free, &self.process) else { return };
        let used = capacity.high.saturating_sub(free.low);
        let listed: u64 = self.others.iter().fold(0, |all, size| all.saturating_add(size.low));
        if listed.saturating_add(reserved) > used {
            let least = reserved - reserved / 100;
            let own = self.others.iter().enumerate().filter(|(_, size)| size.high >= least);
            let own = own.min_by_key(|(_, size)| size.bytes).map(|(at, _)| at);
            self.process = own.map(|at| self.others.remove(at));
        }
    }

    fn complete_reserved(&mut self) {
        let Some(allocated) = &self.allocated else { return };
        let computed = |low: u64, bytes: u64, high: u64| Printed { bytes, low, high, text: String::new() };
        match (&self.reserved, &self.unallocated) {
            (None, Some(rest)) => {
                let sum = |a: u64, b: u64| a.saturating_add(b);
                let (low, bytes) = (sum(allocated.low, rest.low), sum(allocated.bytes, rest.bytes));
                self.reserved = Some(computed(low, bytes, sum(allocated.high, rest.high)));
            }
            (Some(all), None) => {
                let (low, bytes) = (all.low.saturating_sub(allocated.high), all.bytes.saturating_sub(allocated.bytes));
                self.unallocated = Some(computed(low, bytes, all.high.saturating_sub(allocated.low)));
            }
            _ => {}
        }
    }

    /// Whether the number that was asked for may be that of a segment.
    pub fn segments(&self) -> bool {
        self.device == Device::Cached
    }

    /// Bytes of the device that are not PyTorch's: driver context, libraries, communicators, other processes.
    pub fn outside(&self) -> Option<u64> {
        let reserved = self.reserved.as_ref()?.bytes;
        match (&self.capacity, &self.free) {
            (Some(capacity), Some(free)) => Some(capacity.bytes.saturating_sub(free.bytes).saturating_sub(reserved)),
            _ => self.process.as_ref().map(|process| process.bytes.saturating_sub(reserved)),
        }
    }

    /// Bytes that PyTorch can have on this device at most.
    pub fn budget(&self) -> Option<u64> {
        let limit = self.allowed.as_ref().map(|allowed| allowed.bytes);
        let rest = self.capacity.as_ref().and_then(|all| Some(all.bytes.saturating_sub(self.outside()?)));
        [limit, rest].into_iter().flatten().min()
    }
}

fn nothing_asked(sizes: usize) -> Diagnostic {
    let what = if sizes == 0 { "no size in bytes" } else { "no size that was asked for" };
    Diagnostic::error("T0320", format!("the text has {what}"))
        .why("a message says `Tried to allocate 786.00 MiB`, or a size stands alone")
        .help("napkin explain-oom \"Tried to allocate 786.00 MiB\" gpt2-xl --batch 4")
        .help("napkin explain-oom - < train.log")
}

/// All numbers of bytes in a text.
fn sizes(text: &str, binary: bool) -> Vec<Found> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let inside_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || matches!(bytes[at - 1], b'.' | b'_'));
        if !bytes[at].is_ascii_digit() || inside_word {
            at += 1;
            continue;
        }
        let run = |from: usize, keep: fn(&u8) -> bool| from + bytes[from..].iter().take_while(|b| keep(b)).count();
        let end = run(at, |b| b.is_ascii_digit() || matches!(b, b'.' | b','));
        let unit = run(end, |b| *b == b' ');
        let unit_end = run(unit, u8::is_ascii_alphabetic);
        // Only ASCII stands on either side of each cut.
        let size = Printed::read(&text[at..end], &text[unit..unit_end], binary);
        match size {
            Some(size) => {
                out.push(Found { size, start: at, end: unit_end });
                at = unit_end;
            }
            None => at = end,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(size: Option<&Printed>) -> &str {
        size.map_or("", |size| &size.text)
    }

    fn mib(size: Option<&Printed>) -> f64 {
        size.map_or(-1.0, |size| size.bytes as f64 / f64::from(1 << 20))
    }

    /// Messages that people reported: PyTorch 1.x, 2.0 with its misspelling, 2.2 and later, `ROCm` with a limit.
    #[test]
    fn messages_of_all_ages() {
        let old = Message::read(
            "RuntimeError: CUDA out of memory. Tried to allocate 1006.00 MiB (GPU 0; 10.91 GiB total capacity; 9.18 GiB \
             already allocated; 569.81 MiB free; 9.49 GiB reserved in total by PyTorch)",
        )
        .unwrap();
        assert_eq!((old.request.text.as_str(), text(old.capacity.as_ref())), ("1006.00 MiB", "10.91 GiB"));
        assert_eq!((text(old.allocated.as_ref()), text(old.free.as_ref())), ("9.18 GiB", "569.81 MiB"));
        assert!((mib(old.unallocated.as_ref()) - 0.31 * 1024.0).abs() < 0.01);
        let cached = Message::read(
            "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; \
             9.28 GiB free; 4.68 MiB cached)",
        )
        .unwrap();
        assert_eq!(text(cached.reserved.as_ref()), "4.68 MiB");
        let new = Message::read(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacty of 23.65 GiB \
             of which 11.06 MiB is free. Process 4711 has 1.00 GiB memory in use. Including non-PyTorch memory, this process has \
             22.60 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved by \
             PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb",
        )
        .unwrap();
        assert_eq!((text(new.process.as_ref()), new.others.len()), ("22.60 GiB", 1));
        assert_eq!((text(new.allocated.as_ref()), text(new.unallocated.as_ref())), ("21.90 GiB", "194.87 MiB"));
        assert!((mib(new.reserved.as_ref()) - (21.9 * 1024.0 + 194.87)).abs() < 0.01);
        // Context and the other process: what is neither free nor the allocator's.
        let outside = 23.65 * 1024.0 - 11.06 - 21.9 * 1024.0 - 194.87;
        assert!((new.outside().unwrap() as f64 / f64::from(1 << 20) - outside).abs() < 0.01);
        let limited = Message::read(
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB of which \
             244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with 17.00 MiB \
             allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated.",
        )
        .unwrap();
        assert_eq!((text(limited.allowed.as_ref()), text(limited.private.as_ref())), ("1.05 GiB", "17.00 MiB"));
        assert_eq!(limited.budget(), limited.allowed.as_ref().map(|allowed| allowed.bytes));
    }

    #[test]
    fn messages_of_other_allocators() {
        let host = Message::read(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to \
             allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
        )
        .unwrap();
        assert_eq!((host.device, host.request.bytes, host.segments()), (Device::Host, 1 << 36, false));
        let metal = Message::read(
            "RuntimeError: MPS backend out of memory (MPS allocated: 17.94 GB, other allocations: 400.26 MB, max allowed: 18.13 GB). \
             Tried to allocate 128.00 MB on private pool.",
        )
        .unwrap();
        assert_eq!((metal.device, metal.request.bytes), (Device::Metal, 128 << 20));
        assert_eq!((text(metal.allocated.as_ref()), text(metal.allowed.as_ref())), ("17.94 GB", "18.13 GB"));
        let xla =
            Message::read("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.").unwrap();
        assert_eq!(xla.request.bytes, 1 << 32);
        for bare in ["786.00 MiB", "Tried to allocate 786MiB", "allocate: 786.00 MiB"] {
            assert_eq!(Message::read(bare).unwrap().request.bytes, 786 << 20, "{bare}");
        }
    }

    /// As it is printed in a container: the only process that is listed is this one.
    #[test]
    fn a_process_with_another_number() {
        let message = Message::read(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1002.00 MiB. GPU 0 has a total capacity of 79.15 GiB of \
             which 633.00 MiB is free. Process 4711 has 78.53 GiB memory in use. Of the allocated memory 75.94 GiB is allocated by \
             PyTorch, and 1.87 GiB is reserved by PyTorch but unallocated.",
        )
        .unwrap();
        assert_eq!((text(message.process.as_ref()), message.others.len()), ("78.53 GiB", 0));
    }

    /// One message a rank: the first is read, the others are counted.
    #[test]
    fn a_log_has_several() {
        let text = "[rank1]: Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.00 GiB is free.\n\
                    [rank0]: Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 39.00 GiB of which 3.00 GiB is free.";
        let message = Message::read(text).unwrap();
        assert_eq!((message.request.bytes, message.more), (2 << 30, 1));
        assert_eq!(message.capacity.unwrap().text, "79.15 GiB");
    }

    #[test]
    fn texts_without_a_request_are_refused() {
        for text in ["", "no numbers", "CUDA out of memory", "12 apples", "1 GiB and 2 GiB", "allocate ∞ MiB", "１ GiB"]
        {
            assert!(Message::read(text).is_err(), "{text}");
        }
    }
}
