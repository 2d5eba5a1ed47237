//! A memory snapshot of PyTorch, held against the step it was taken in: `napkin reconcile --torch-snapshot`.

use clap::Args;
use plan::model::Model;
use plan::report::Report;
use plan::snapshot::Question;
use plan::snapshot::memory::Snapshot as Read;
use units::{Bytes, Diagnostic, Diagnostics};

use crate::files::Files;
use crate::model_args::ReadingArgs;
use crate::parse::{Reader, positive_share, some};
use crate::step::{LayoutArgs, StepArgs};
use crate::text;

/// Largest file of a snapshot that is read.
const MOST_BYTES: u64 = 2 << 30;

/// A snapshot, and the step of a model in which it was taken.
#[derive(Clone, Debug, Args)]
pub struct Snapshot {
    /// A file that `torch.cuda.memory._dump_snapshot` wrote
    pub file: String,
    /// A config.json, its folder or a preset; without it blocks are listed, not named
    pub model: Option<String>,
    /// How the model is read
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// ZeRO stage of that run [default: 0]
    #[arg(long, value_name = "STAGE")]
    pub zero: Option<String>,
    /// Its data-parallel devices [default: 1]
    #[arg(long, value_name = "N")]
    pub dp: Option<String>,
    /// Share of the live bytes without a name from which on the answer is no, such as 0.05
    #[arg(long, value_name = "SHARE")]
    pub tolerance: Option<String>,
}

impl Snapshot {
    /// Answers it.
    ///
    /// # Errors
    /// All that is wrong with the flags, the file and the model.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        if self.model.is_none() {
            self.reading.need_model(&mut read);
            let layout = [("--zero", self.zero.is_some()), ("--dp", self.dp.is_some())];
            let flags = [&self.step.given()[..], &layout].concat();
            read.no_effect(&flags, "without a model no step is predicted");
        }
        let snapshot = read_snapshot(read.files(), &self.file).map_err(|problem| read.problem(problem)).ok();
        let tolerance = read.flag_with("--tolerance", self.tolerance.as_deref(), positive_share);
        let step = self.model.as_ref().and_then(|name| {
            let model = self.reading.read(&mut read, name);
            let mut step = self.step.clone();
            // What PyTorch runs where nothing else is said.
            let eager = model.as_ref().is_some_and(|model| !model.spec.has_sdpa);
            step.profile.get_or_insert_with(|| if eager { "hf-eager" } else { "hf-sdpa" }.to_owned());
            let gpu = plan::hardware::find("a100-sxm-80gb").ok();
            let options = step.read(&mut read, model.as_ref(), gpu);
            let layout = LayoutArgs { zero: self.zero.clone(), dp: self.dp.clone(), ..LayoutArgs::default() };
            let devices = read.flag_with("--dp", self.dp.as_deref(), some).unwrap_or(1);
            let request = layout.read(&mut read, options, None, devices);
            model.map(|model: Model| (model, request))
        });
        let snapshot = read.finish(snapshot)?;
        let step = step.as_ref().map(|(model, request)| (model, request.clone()));
        Question { snapshot, step, tolerance }.report()
    }
}

fn read_snapshot(files: &dyn Files, file: &str) -> Result<Read, Diagnostic> {
    let bytes = files.bytes(file, MOST_BYTES).map_err(|error| text::refused(file, &error))?;
    if bytes.len() as u64 > MOST_BYTES {
        let problem = Diagnostic::error("", format!("`{file}` has more than {}", Bytes(MOST_BYTES)));
        return Err(problem.help("torch.cuda.memory._record_memory_history(max_entries=100000) keeps it small"));
    }
    Read::read(file, &bytes)
}
