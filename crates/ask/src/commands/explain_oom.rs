//! `napkin explain-oom "Tried to allocate 786.00 MiB" gpt2-xl --batch 4`.

use clap::Args;
use plan::oom::message::{Device, Message};
use plan::oom::{self, Request};
use plan::report::Report;
use units::{Diagnostic, Diagnostics};

use crate::args::DeviceArgs;
use crate::model_args::ReadingArgs;
use crate::parse::Reader;
use crate::step::{LayoutArgs, StepArgs};
use crate::text;

/// Which tensor an out-of-memory message means, and what frees enough.
#[derive(Debug, Args)]
pub struct ExplainOom {
    /// The message, a size such as "786.00 MiB", a file with the message, or - for standard input
    pub message: String,
    /// A config.json, its folder, or a preset name; without it the answer is a guess
    pub model: Option<String>,
    /// How the model is read
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// The layout
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Devices; without --hw the capacity is that of the message
    #[command(flatten)]
    pub device: DeviceArgs,
}

impl ExplainOom {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        if self.message == "-" && self.model.as_deref() == Some("-") {
            read.problem(Diagnostic::error("", "message and model cannot both come from standard input"));
            return read.finish(None);
        }
        let text = text::load(read.files(), &self.message, oom::MOST_BYTES, true);
        let message = text.and_then(|text| oom::check_length(text.len()).and_then(|()| Message::read(&text)));
        let message = read.take(message);
        let Some(name) = &self.model else {
            self.without_a_step(&mut read);
            return read.finish(message.map(|message| Request { message, step: None }))?.report();
        };
        let model = self.reading.read(&mut read, name);
        let (hardware, devices) = read.device(&self.device.at_least(self.layout.dp.as_ref()));
        let cached = message.as_ref().is_some_and(|message| message.device == Device::Cached);
        let step = if hardware.is_none() && cached { self.on_a_gpu() } else { self.step.clone() };
        let options = step.read(&mut read, model.as_ref(), hardware.as_ref());
        let request = self.layout.read(&mut read, options, hardware.as_ref(), devices);
        let (message, model) = read.finish(message.zip(model))?;
        Request { message, step: Some((&model, request)) }.report()
    }

    /// Refuses what is said of a step where there is no model to make one of.
    fn without_a_step(&self, read: &mut Reader<'_>) {
        let given = self.reading != ReadingArgs::default()
            || self.step != StepArgs::default()
            || self.layout != LayoutArgs::default()
            || self.device != DeviceArgs::default();
        if given {
            let problem = Diagnostic::error("", "flags of a model, a step or devices without a model");
            read.problem(problem.help("name the model after the message"));
        }
    }

    /// The step with the defaults of a GPU, for a message that came from one which nobody has named.
    fn on_a_gpu(&self) -> StepArgs {
        let mut step = self.step.clone();
        step.autocast.get_or_insert_with(|| "cuda".to_owned());
        if step.profile.as_deref().is_some_and(|profile| profile.starts_with("hf")) {
            step.optimizer.get_or_insert_with(|| "adamw-foreach".to_owned());
        }
        step
    }
}
