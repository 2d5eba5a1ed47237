//! What of this process's address space is in main memory, and what for.

use std::ops::Range;
use std::path::Path;
use units::Bytes;

use super::cpu::kibibytes;

/// The largest page there is on any system we know.
const LARGEST_GUARD: u64 = 64 << 10;

/// Resident bytes by what the pages are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mappings {
    /// The file of the program.
    pub program: Bytes,
    /// Files of shared libraries.
    pub libraries: Bytes,
    /// Other files: data that is read through maps.
    pub files: Bytes,
    /// Stacks, of the first thread and of all others.
    pub stacks: Bytes,
    /// What the system's kernel puts into each process.
    pub system: Bytes,
    /// Everything else: the heap.
    pub anonymous: Bytes,
}

impl Mappings {
    /// Those of this process, if the system tells.
    pub fn of_this_process() -> Option<Self> {
        let program = std::env::current_exe().ok();
        Some(Self::read(&std::fs::read_to_string("/proc/self/smaps").ok()?, program.as_deref()))
    }

    /// All of it.
    pub fn total(&self) -> Bytes {
        let Self { program, libraries, files, stacks, system, anonymous } = self;
        Bytes([program, libraries, files, stacks, system, anonymous].iter().map(|b| b.get()).sum())
    }

    /// Reads `smaps` of proc(5): a line for each mapping, followed by `Field: value` lines.
    fn read(smaps: &str, program: Option<&Path>) -> Self {
        let mut all = Self::default();
        let mut before = Mapping::default();
        let mut current = Mapping::default();
        for line in smaps.lines() {
            if let Some(next) = Mapping::begin(line) {
                before = std::mem::replace(&mut current, next);
            } else if let Some(size) = line.strip_prefix("Rss:").and_then(|rest| rest.trim().strip_suffix("kB")) {
                let bytes = kibibytes(size.trim()).unwrap_or_default();
                let of = all.class(&current, &before, program);
                of.0 += bytes.get();
            }
        }
        all
    }

    fn class(&mut self, mapping: &Mapping, before: &Mapping, program: Option<&Path>) -> &mut Bytes {
        match mapping.name.as_str() {
            "" | "[heap]" => {
                // A thread's stack stands above a page that nobody may touch. What allocators reserve and do not use yet
                // is not accessible either, but is larger.
                let guard = before.end - before.start <= LARGEST_GUARD && !before.accessible && before.name.is_empty();
                let guarded = guard && before.end == mapping.start;
                if guarded && mapping.accessible { &mut self.stacks } else { &mut self.anonymous }
            }
            "[stack]" => &mut self.stacks,
            name if name.starts_with("[v") => &mut self.system,
            name if name.starts_with('[') => &mut self.anonymous,
            name if program.is_some_and(|program| Path::new(name) == program) => &mut self.program,
            name if is_library(name) => &mut self.libraries,
            _ => &mut self.files,
        }
    }
}

/// Bytes of the pages in these ranges of addresses that are in main memory, if the system tells; a page that two ranges
/// share counts once for each.
pub fn resident_in(ranges: &[Range<usize>]) -> Option<Bytes> {
    use std::io::{Read, Seek, SeekFrom};
    // proc(5): 64 bits for each page of the address space, of which the highest says that it is present.
    const ENTRY: usize = size_of::<u64>();
    let page = super::cpu::page_bytes()?;
    let mut file = std::fs::File::open("/proc/self/pagemap").ok()?;
    let mut present = 0;
    let mut entries = vec![0u8; 8192 * ENTRY];
    for range in ranges {
        let (first, end) = (range.start / page, range.end.div_ceil(page));
        file.seek(SeekFrom::Start((first * ENTRY) as u64)).ok()?;
        let mut left = end - first;
        while left > 0 {
            let count = left.min(entries.len() / ENTRY);
            file.read_exact(&mut entries[..count * ENTRY]).ok()?;
            let present_here =
                entries[..count * ENTRY].chunks_exact(ENTRY).filter(|entry| entry[ENTRY - 1] & 0x80 != 0);
            present += present_here.count();
            left -= count;
        }
    }
    Some(Bytes((present * page) as u64))
}

fn is_library(name: &str) -> bool {
    // `libm.so`, `libm.so.6`: a version may follow.
    name.rsplit('/').next().is_some_and(|file| file.split('.').skip(1).any(|part| part == "so"))
}

/// One mapping.
#[derive(Debug, Default)]
struct Mapping {
    start: u64,
    end: u64,
    accessible: bool,
    name: String,
}

impl Mapping {
    /// `55d0-55e0 r-xp 00001000 fe:00 123   /usr/bin/napkin`.
    fn begin(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let access = words.next()?;
        let name = words.nth(3).unwrap_or_default().trim().to_owned();
        Some(Self { start, end, accessible: access.starts_with('r') || access.contains('w'), name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_told_apart_by_what_they_are_of() {
        // The form of proc(5): heap, a thread's stack above its guard, a plain mapping, files.
        let smaps = "\
5600-5700 r-xp 00000000 fe:00 77                          /opt/napkin bin/napkin
Rss:                 300 kB
VmFlags: rd ex
5700-5800 rw-p 00000000 00:00 0                           [heap]
Rss:                  40 kB
4000000-8000000 ---p 00000000 00:00 0
Rss:                   0 kB
8000000-8100000 rw-p 00000000 00:00 0
Rss:                 500 kB
7000-7010 ---p 00000000 00:00 0
Rss:                   0 kB
7010-7800 rw-p 00000000 00:00 0
Rss:                  24 kB
7900-7a00 rw-p 00000000 00:00 0
Rss:                2048 kB
7b00-7c00 r-xp 00000000 fe:00 80                          /lib/libc.so.6
Rss:                 900 kB
7c00-7d00 r--s 00000000 fe:00 81                          /data/tokens.bin
Rss:                 128 kB
7ff0-7ff8 rw-p 00000000 00:00 0                           [stack]
Rss:                  16 kB
7ffa-7ffc r-xp 00000000 00:00 0                           [vdso]
Rss:                   4 kB
";
        let found = Mappings::read(smaps, Some(Path::new("/opt/napkin bin/napkin")));
        let kib = |n: u64| Bytes(n << 10);
        let expected = Mappings {
            program: kib(300),
            libraries: kib(900),
            files: kib(128),
            stacks: kib(24 + 16),
            system: kib(4),
            anonymous: kib(40 + 500 + 2048),
        };
        assert_eq!(found, expected);
        assert_eq!(found.total(), kib(300 + 900 + 128 + 40 + 4 + 2588));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_this_process_holds_is_found_again() {
        const BYTES: usize = 24 << 20;
        let before = Mappings::of_this_process().unwrap();
        let mut block: Vec<u8> = Vec::with_capacity(BYTES);
        let start = Vec::as_ptr(&block).addr();
        let pages = |block: &Vec<u8>| {
            std::hint::black_box(block);
            resident_in(std::slice::from_ref(&(start..start + BYTES))).unwrap().get()
        };
        assert!(pages(&block) < BYTES as u64 / 10, "what is not written is not there");
        block.resize(BYTES / 2, 1u8);
        let half = pages(&block);
        assert!((BYTES as u64 / 2..BYTES as u64 * 6 / 10).contains(&half), "{half}");
        let after = Mappings::of_this_process().unwrap();
        assert!(after.anonymous.get() >= before.anonymous.get() + BYTES as u64 * 9 / 20, "{before:?} {after:?}");
        assert!(after.program.get() > 0 && after.stacks.get() > 0);
        let resident = crate::probe::memory::process().unwrap().resident.get();
        assert!(after.total().get().abs_diff(resident) < resident / 4, "{after:?} {resident}");
        drop(block);
    }
}
