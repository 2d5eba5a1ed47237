//! The processor: its name, its caches, how long it worked for us.

use units::{Bytes, Seconds};

/// Name of the processor, as it calls itself; the architecture where it does not.
pub fn name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    model_name(&info).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn model_name(info: &str) -> Option<String> {
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    let name = line.split_once(':')?.1.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Threads that can run at once, as far as this process may use them.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// The largest cache of the first core.
pub fn largest_cache() -> Option<Bytes> {
    let sizes = (0..8).filter_map(|index| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        kibibytes(std::fs::read_to_string(file).ok()?.trim().strip_suffix('K')?)
    });
    sizes.max_by_key(|bytes| bytes.get())
}

pub(super) fn kibibytes(text: &str) -> Option<Bytes> {
    text.parse::<u64>().ok()?.checked_mul(1024).map(Bytes)
}

/// Whether the processor has units for bf16 matrices of their own, which no instruction that we use reaches.
pub fn has_matrix_units() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines().find(|line| line.starts_with("flags")).is_some_and(|line| line.contains(" amx_bf16"))
}

/// Bytes of a page of memory.
#[cfg(unix)]
pub fn page_bytes() -> Option<usize> {
    Some(rustix::param::page_size())
}

/// Bytes of a page of memory.
#[cfg(not(unix))]
pub fn page_bytes() -> Option<usize> {
    None
}

/// Time that processors worked for this thread: what others do beside it does not count.
#[cfg(unix)]
pub fn thread_time() -> Option<Seconds> {
    time(rustix::time::ClockId::ThreadCPUTime)
}

/// Time that processors worked for this process, all threads together.
#[cfg(unix)]
pub fn process_time() -> Option<Seconds> {
    time(rustix::time::ClockId::ProcessCPUTime)
}

#[cfg(unix)]
fn time(clock: rustix::time::ClockId) -> Option<Seconds> {
    let time = rustix::time::clock_gettime(clock);
    Seconds::new(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9).ok()
}

/// Time that processors worked for this thread: what others do beside it does not count.
#[cfg(not(unix))]
pub fn thread_time() -> Option<Seconds> {
    None
}

/// Time that processors worked for this process, all threads together.
#[cfg(not(unix))]
pub fn process_time() -> Option<Seconds> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_where_there_are_any() {
        let info = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\ncpu MHz\t\t: 2596.140\n";
        assert_eq!(model_name(info).as_deref(), Some("AMD EPYC 9R14"));
        assert_eq!(model_name("processor\t: 0\nBogoMIPS\t: 48.00\n"), None);
        assert_eq!(kibibytes("32768"), Some(Bytes(32 << 20)));
        assert!(!name().is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_takes_processor_time_and_sleep_does_not() {
        let times = || (thread_time().unwrap().get(), process_time().unwrap().get());
        let (thread, process) = times();
        std::thread::sleep(std::time::Duration::from_millis(30));
        let slept = times().0 - thread;
        let mut x = 1u64;
        while times().0 - thread < slept + 0.01 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(slept < 0.02, "{slept}");
        assert!(times().1 - process > 0.009);
    }
}
