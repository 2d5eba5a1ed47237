//! Text from a checkpoint.

use crate::checkpoint::{Checkpoint, model_tensors};
use crate::data::Tokenizer;
use nn::Model;
use nn::generate::{Generator, Sampling};
use plan::phrase;
use plan::report::{Block, Cell, KeyValue, Phrase, Report, Value};
use std::time::{Duration, Instant};
use tensor::{DType, Device, Runtime};
use units::{Bytes, Diagnostic, Diagnostics, TokensPerSecond};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Text to go on from.
    pub prompt: String,
    /// Tokens to add.
    pub tokens: u64,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Seed of the choices.
    pub seed: u64,
}

/// A text that was made.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Prompt and continuation.
    pub text: String,
    /// Ids of the prompt.
    pub prompt_tokens: u64,
    /// Ids added.
    pub new_tokens: u64,
    /// Time to read the prompt.
    pub prefill: Duration,
    /// Time for all tokens after the first.
    pub decode: Duration,
    /// Bytes of cached keys and values.
    pub cache: Bytes,
}

/// The model of a checkpoint, with its weights.
///
/// # Errors
/// All in which the weights and the config differ.
pub fn load(checkpoint: &Checkpoint) -> Result<(Runtime, Model), Diagnostics> {
    let spec = checkpoint.spec()?;
    let runtime = Runtime::new(Device::Cpu);
    runtime.set_recording(false);
    let dtype = checkpoint.model().tensors().first().and_then(|t| t.dtype).unwrap_or(DType::F32);
    let model = Model::build(&runtime, &spec, dtype).map_err(refused)?;
    checkpoint.load_weights(&model_tensors(&model))?;
    Ok((runtime, model))
}

/// Goes on from a prompt.
///
/// # Errors
/// A prompt that the vocabulary cannot express, or a length the model has no positions for.
pub fn sample(model: &Model, tokenizer: &Tokenizer, request: &Request) -> Result<Sample, Diagnostics> {
    let mut ids = tokenizer.encode(&request.prompt).map_err(|_| {
        Diagnostic::error(
            "T0721",
            "the prompt has more whitespace in a row than the encoding's pattern can be matched against",
        )
        .help("a shorter --prompt")
    })?;
    if ids.is_empty() {
        // A text begins after the end of another one, or after a line break.
        ids.push(tokenizer.vocabulary().end_of_text.unwrap_or(u32::from(b'\n')));
    }
    let vocabulary = model.spec().vocab_size;
    if let Some(id) = ids.iter().find(|&&id| u64::from(id) >= vocabulary) {
        let message = format!("the prompt has the id {id}, the model a vocabulary of {vocabulary}");
        return Err(Diagnostic::error("T0722", message)
            .help("--tokenizer NAME: the one the model was trained with")
            .into());
    }
    let prompt_tokens = ids.len() as u64;
    let capacity = prompt_tokens + request.tokens;
    if let Some(most) = model.spec().max_positions.filter(|most| *most < capacity) {
        let message = format!(
            "{prompt_tokens} tokens of prompt and {} more are beyond the model's {most} positions",
            request.tokens
        );
        let left = most.saturating_sub(prompt_tokens);
        return Err(Diagnostic::error("T0723", message)
            .help(format!("--tokens {left}"))
            .help("a shorter --prompt")
            .into());
    }
    let mut generator = Generator::new(model, capacity, request.seed);
    let begun = Instant::now();
    let wide: Vec<u64> = ids.iter().map(|&id| u64::from(id)).collect();
    let mut logits = generator.read(&wide).map_err(refused)?;
    let prefill = begun.elapsed();
    let begun = Instant::now();
    for i in 0..request.tokens {
        let id = generator.choose(&logits, &request.sampling).map_err(refused)?;
        ids.push(u32::try_from(id).unwrap_or(u32::MAX));
        if tokenizer.vocabulary().end_of_text.is_some_and(|end| u64::from(end) == id) {
            break;
        }
        if i + 1 < request.tokens {
            logits = generator.read(&[id]).map_err(refused)?;
        }
    }
    let decode = begun.elapsed();
    let cache = Bytes(generator.cache().bytes());
    let text = String::from_utf8_lossy(&tokenizer.decode(&ids)).into_owned();
    let new_tokens = ids.len() as u64 - prompt_tokens;
    Ok(Sample { text, prompt_tokens, new_tokens, prefill, decode, cache })
}

/// The answer of `napkin generate`.
pub fn report(checkpoint: &Checkpoint, request: &Request, sample: &Sample) -> Report {
    let mut report = Report::new("generate", phrase![format!("{} tokens", sample.new_tokens)])
        .qualified(phrase![format!("from {}", checkpoint.path().display())]);
    let lines = sample.text.lines().map(|line| Phrase::from(line.to_owned()));
    report.blocks.push(Block::text("", lines));
    let rate = |tokens: u64, time: Duration| {
        TokensPerSecond::new(tokens as f64 / time.as_secs_f64().max(1e-9)).unwrap_or(TokensPerSecond::ZERO)
    };
    report.blocks.push(Block::key_values(
        "",
        [
            KeyValue::new("prefill", Cell::TokenRate(rate(sample.prompt_tokens, sample.prefill))),
            KeyValue::new("decode", Cell::TokenRate(rate(sample.new_tokens.saturating_sub(1), sample.decode))),
            KeyValue::new("KV cache", sample.cache),
        ],
    ));
    report.inputs = Value::map()
        .with("checkpoint", checkpoint.path().display().to_string())
        .with("prompt", request.prompt.as_str())
        .with("temperature", request.sampling.temperature)
        .with("top_k", request.sampling.top_k)
        .with("top_p", request.sampling.top_p)
        .with("seed", request.seed);
    report.result = Value::map()
        .with("text", sample.text.as_str())
        .with("prompt_tokens", sample.prompt_tokens)
        .with("new_tokens", sample.new_tokens)
        .with("prefill_seconds", sample.prefill.as_secs_f64())
        .with("decode_seconds", sample.decode.as_secs_f64())
        .with("kv_cache_bytes", sample.cache);
    report
}

fn refused(error: tensor::Error) -> Diagnostics {
    Diagnostic::error("T0704", error.to_string()).into()
}
