//! Whether head and embedding of a wrapped language model share a table: the head is a module of the wrapper, whose class says
//! where that is read.
//!
//! Source: transformers 5.24, `configuration_*.py` and `tie_weights` of `modeling_utils.py`; the table in the tests is what
//! its classes build.

use crate::config::json::{Kind, Value};
use crate::config::{Config, Reader};
use crate::spec::ModelSpec;

const KEY: &str = "tie_word_embeddings";

/// Who says so.
enum Say {
    /// The wrapper, and this where it does not.
    Wrapper(bool),
    /// Wrapper or text part: files were written with the key in either.
    Either,
    /// The text part, which has the head.
    Part,
    /// Nobody: the head has weights of its own.
    Never,
}

fn say(wrapper: &str) -> Option<Say> {
    Some(match wrapper {
        "llava" | "llava_onevision" | "qwen2_vl" | "qwen2_5_vl" => Say::Either,
        "gemma3" | "gemma4" | "got_ocr2" | "internvl" | "kimi_k25" | "mistral3" | "ovis2" | "paligemma" => {
            Say::Wrapper(true)
        }
        "idefics3" | "llava_next" | "qwen3_5" | "qwen3_5_moe" | "qwen3_vl" | "qwen3_vl_moe" | "smolvlm" => {
            Say::Wrapper(false)
        }
        "llama4" => Say::Part,
        "mllama" => Say::Never,
        _ => return None,
    })
}

/// Ties the head of a wrapped model, or gives it weights of its own, as its wrapper does; what was set for the part stays.
pub(super) fn tie(r: &mut Reader<'_>, config: &Config, model: &mut ModelSpec) {
    let Some(wrapper) = config.sub_config().and_then(|_| config.wrapper_model_type()) else { return };
    let flag = |value: &Value| if let Kind::Bool(on) = value.kind { Some(on) } else { None };
    let part = config.effective().get(KEY);
    if part.is_some_and(|value| value.span.source > 0) {
        return;
    }
    let (part, top) = (part.and_then(flag), config.root().get(KEY).and_then(flag));
    let tied = match say(wrapper) {
        Some(Say::Wrapper(default)) => {
            if top.is_none() && default != part.unwrap_or(model.head.tied) {
                r.assume(KEY, default, &format!("not said at the top of the file: the default of `{wrapper}`"));
            }
            Some(top.unwrap_or(default))
        }
        Some(Say::Either) => Some(top == Some(true) || part == Some(true)),
        Some(Say::Part) => part.or(Some(false)),
        Some(Say::Never) => Some(false),
        None => top,
    };
    model.head.tied = tied.unwrap_or(model.head.tied);
}
