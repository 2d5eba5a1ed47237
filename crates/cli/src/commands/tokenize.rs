//! `napkin tokenize a.txt b.txt -o tokens.bin --tokenizer gpt2`.

use std::path::PathBuf;

use ::train::data::{PIECE_BYTES, Tokenizer};
use clap::Args;
use plan::report::Report;
use units::{Diagnostic, Diagnostics};

use crate::disk::DISK;
use crate::progress::Meter;
use ask::parse::Reader;

/// Texts to token ids.
#[derive(Debug, Args)]
pub struct Tokenize {
    /// Texts in UTF-8, in the order of their tokens; - is standard input
    #[arg(required = true, value_name = "FILE")]
    pub texts: Vec<PathBuf>,
    /// The token file to write
    // It takes the place of the flag of this name that all commands have.
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<String>,
    /// gpt2, `cl100k_base`, `o200k_base`, ..., or bytes
    #[arg(long, value_name = "NAME", default_value = "gpt2")]
    pub tokenizer: String,
    /// Add the token for the end of a text behind every document
    #[arg(long)]
    pub end_of_text: bool,
    /// What separates the documents in a file, such as <|endoftext|>; otherwise a file is one document
    #[arg(long, value_name = "TEXT")]
    pub separator: Option<String>,
    /// Replace what is no UTF-8 instead of refusing it
    #[arg(long)]
    pub lossy: bool,
}

impl Tokenize {
    /// Does it, and answers with what was written.
    pub fn report(&self, force: bool) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let output = match &self.output[..] {
            [one] => Some(PathBuf::from(one)),
            several => {
                let message = format!("one token file is written, and {} were named", several.len());
                read.problem(Diagnostic::error("", message).help("-o tokens.bin"));
                None
            }
        };
        let name = match self.tokenizer.as_str() {
            // Bytes have such a token only where it is asked for.
            "bytes" if self.end_of_text => "bytes_eot",
            name => name,
        };
        let tokenizer = read.take(Tokenizer::by_name(name));
        if self.separator.as_deref() == Some("") {
            read.problem(Diagnostic::error("", "--separator: it is empty").help("--separator '<|endoftext|>'"));
        }
        let (output, tokenizer) = read.finish(output.zip(tokenizer))?;
        let request = ::train::data::Tokenize {
            inputs: self.texts.clone(),
            output,
            tokenizer,
            end_of_text: self.end_of_text,
            separator: self.separator.clone(),
            lossy: self.lossy,
            force,
            piece_bytes: PIECE_BYTES,
        };
        let meter = Meter::new("tokenize");
        let written = request.run(&mut |progress| meter.show(progress.bytes, progress.of))?;
        drop(meter);
        Ok(written.report(&request))
    }
}
