//! Memory of this machine and of this process.

use super::cpu::kibibytes;
use units::Bytes;

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Bytes in main memory now.
    pub resident: Bytes,
    /// The most so far.
    pub peak_resident: Bytes,
    /// Of what is resident: pages of nobody's file.
    pub anonymous: Bytes,
    /// Of what is resident: pages of files, the program and its libraries among them.
    pub file: Bytes,
}

/// This process.
pub fn process() -> Option<Process> {
    Process::read(&std::fs::read_to_string("/proc/self/status").ok()?)
}

impl Process {
    fn read(status: &str) -> Option<Self> {
        Some(Self {
            resident: field(status, "VmRSS")?,
            peak_resident: field(status, "VmHWM")?,
            anonymous: field(status, "RssAnon")?,
            file: field(status, "RssFile")?,
        })
    }
}

/// From now on, the peak of this process is the most since now; without effect where the system cannot do that.
pub fn reset_peak() {
    // proc(5): 5 resets the peak resident set size. Who may not write keeps the peak since the beginning.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Main memory of the machine, as far as programs can have it.
pub fn total() -> Option<Bytes> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

/// Main memory that is to be had now.
pub fn available() -> Option<Bytes> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// `NAME:   123 kB`, which means KiB.
fn field(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    kibibytes(line.trim().strip_suffix("kB")?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let status = "VmHWM:\t    1804 kB\nVmRSS:\t    1700 kB\nRssAnon:\t     100 kB\nRssFile:\t    1600 kB\nRssShmem:\t 0 kB\n";
        let expected = Process {
            resident: Bytes(1700 << 10),
            peak_resident: Bytes(1804 << 10),
            anonymous: Bytes(100 << 10),
            file: Bytes(1600 << 10),
        };
        assert_eq!(Process::read(status), Some(expected));
        assert_eq!(field("MemTotalX: 5 kB", "MemTotal"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_written_becomes_resident() {
        const BYTES: usize = 32 << 20;
        let before = process().unwrap();
        let block = std::hint::black_box(vec![1u8; BYTES]);
        let after = process().unwrap();
        assert!(after.anonymous.get() >= before.anonymous.get() + BYTES as u64 * 9 / 10, "{before:?} {after:?}");
        assert!(after.peak_resident >= after.resident && total().unwrap() > available().unwrap());
        drop(block);
        reset_peak();
        assert!(process().unwrap().peak_resident <= after.peak_resident);
    }
}
