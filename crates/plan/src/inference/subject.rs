//! One model as inference sees it: weights, cache, passes, and what was assumed of it.

use units::{Diagnostic, Diagnostics};

use super::cache::{Cache, Kept, LayerCache, Reach};
use super::roofline::Passes;
use super::weights::Weights;
use super::{Request, What};
use crate::params;
use crate::report::{Assumption, Value};

/// What is known of a model.
#[derive(Clone, Debug)]
pub struct Subject {
    /// What the user called it.
    pub name: String,
    /// Its weights.
    pub weights: Weights,
    /// What it keeps of tokens, if that is known.
    pub cache: Option<Cache>,
    /// The work of its passes.
    pub passes: Passes,
    /// What went into the report, for programs.
    pub inputs: Value,
    /// What the reader of its config assumed.
    pub assumptions: Vec<Assumption>,
    /// What to warn about.
    pub warnings: Vec<Diagnostic>,
}

impl Subject {
    /// Looks at what a request is about.
    ///
    /// # Errors
    /// `T0305`, `T0306` for sizes that cannot be counted or have no positions.
    pub fn of(request: &Request<'_>) -> Result<Self, Diagnostics> {
        let (storage, tp) = (request.weights.value, request.tp.value);
        match &request.what {
            What::Model(model) => {
                let spec = &model.spec;
                let parts = params::other_parameters(model)?;
                let weights = Weights::of(spec, &params::parameters(model)?, storage, tp).with_parts(&parts, tp);
                let passes = {
                    let lengths = [request.prompt.value, request.seq_len.value, request.chunk.value];
                    Passes::of(spec, lengths, request.encoded())?
                };
                let mut warnings = model.warnings();
                warnings.extend(model.length_warning(request.seq_len.value));
                let mut cache = Cache::of(spec, request.cache.value, request.state.value)?;
                if let Some(positions) = request.encoded() {
                    cache = cache.beside_encoder(spec, positions)?;
                }
                if cache.uncounted > 0 {
                    let message = format!("not modelled: the state of {} layers", cache.uncounted);
                    let hole = Diagnostic::warning("T0302", message);
                    warnings.push(hole.effect("it is of constant size for each sequence, and not counted"));
                }
                Ok(Self {
                    name: model.name.clone(),
                    weights,
                    cache: Some(cache),
                    passes,
                    inputs: model.inputs(),
                    assumptions: model.assumptions(),
                    warnings,
                })
            }
            What::Partial { name, geometry, params, notes } => {
                let (total, active) = params.unwrap_or_default();
                let weights = Weights::bare(total, active, storage, tp);
                let passes = Passes::bare(&weights, request.prompt.value);
                let cache = Cache::new(geometry.kept.iter().copied(), geometry.layers, request.cache.value);
                let mut warnings = notes.clone();
                let message = format!("the modules of `{}` are not known: parameters are not counted", geometry.family);
                let partial = Diagnostic::warning("T0467", message);
                warnings.push(match params {
                    None => partial
                        .effect("keys and values are those that the keys of the config state")
                        .help("--params 8.03B"),
                    Some(_) => {
                        partial.effect("weights and work are those of the count that is given, without attention")
                    }
                });
                let holes = geometry.holes.iter().map(|hole| {
                    Diagnostic::warning("T0302", format!("not modelled: {hole}"))
                        .effect("the answer is that of the rest")
                });
                warnings.extend(holes);
                let inputs = Value::map()
                    .with("name", name.as_str())
                    .with("model_type", geometry.family.as_str())
                    .with("num_hidden_layers", geometry.layers);
                let assumptions = geometry.assumptions.clone();
                Ok(Self { name: name.clone(), weights, cache: Some(cache), passes, inputs, assumptions, warnings })
            }
            What::Bare { name, total, active, heads } => {
                let weights = Weights::bare(*total, *active, storage, tp);
                let passes = Passes::bare(&weights, request.prompt.value);
                let cache = heads.map(|[layers, kv_heads, width]| {
                    let kept = Kept::Heads { kv_heads, key: width, value: width };
                    let each = LayerCache { layers, kept, reach: Reach::All, reads: None };
                    Cache::new([each], layers, request.cache.value).checked()
                });
                let cache = cache.transpose()?;
                let inputs =
                    Value::map().with("name", name.as_str()).with("parameters", *total).with("active", *active);
                let (assumptions, warnings) = (Vec::new(), Vec::new());
                Ok(Self { name: name.clone(), weights, cache, passes, inputs, assumptions, warnings })
            }
        }
    }
}
