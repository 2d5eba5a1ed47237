//! What the peers written in Rust share: sizes from flags, clocks, memory, and the line of JSON that README.md describes.

use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Sizes of the model and of the run.
pub struct Sizes {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub vocab: usize,
    pub positions: usize,
    pub batch: usize,
    pub seq_len: usize,
    pub precision: String,
    warmup: usize,
    steps: usize,
}

impl Sizes {
    /// Reads `--name value` pairs. The number of threads comes from the environment (`RAYON_NUM_THREADS`).
    pub fn from_args() -> Self {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let text = |name: &str| {
            let flag = format!("--{name}");
            let at = args.iter().position(|a| *a == flag).unwrap_or_else(|| panic!("{flag} is missing"));
            args.get(at + 1).unwrap_or_else(|| panic!("{flag} has no value")).as_str()
        };
        let size = |name: &str| text(name).parse().unwrap_or_else(|e| panic!("--{name} {}: {e}", text(name)));
        Self {
            layers: size("layers"),
            width: size("width"),
            heads: size("heads"),
            vocab: size("vocab"),
            positions: size("positions"),
            batch: size("batch"),
            seq_len: size("seq-len"),
            precision: text("precision").to_owned(),
            warmup: size("warmup"),
            steps: size("steps"),
        }
    }

    /// Token ids and the ids that follow them, `batch * seq_len` of each.
    pub fn tokens(&self) -> (Vec<u32>, Vec<u32>) {
        let mut state = 1u64;
        let mut id = || {
            // Numerical Recipes' generator; its upper bits are random enough for ids.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32 % self.vocab as u32
        };
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..self.batch {
            let ids: Vec<u32> = (0..=self.seq_len).map(|_| id()).collect();
            tokens.extend(&ids[..self.seq_len]);
            targets.extend(&ids[1..]);
        }
        (tokens, targets)
    }
}

/// A line of `/proc/self/status` in bytes.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find(|line| line.starts_with(key)).expect("a known line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

/// CPU seconds of all threads of this process.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Runs and times steps; prints the line. `make` builds model and optimizer and gives the step, which gives its loss.
pub fn measure<S: FnMut() -> f64>(version: &str, sizes: &Sizes, make: impl FnOnce() -> (usize, S)) {
    let import = status("VmRSS");
    let (parameters, mut step) = make();
    let (mut seconds, mut cpu, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..sizes.warmup + sizes.steps {
        let (wall_start, cpu_start) = (Instant::now(), cpu_seconds());
        losses.push(step());
        if i >= sizes.warmup {
            seconds.push(wall_start.elapsed().as_secs_f64());
            cpu.push(cpu_seconds() - cpu_start);
        }
    }
    let line = serde_json::json!({
        "version": version,
        "parameters": parameters,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "loss": losses,
        "import_rss_bytes": import,
        "peak_rss_bytes": status("VmHWM"),
    });
    println!("{line}");
}
