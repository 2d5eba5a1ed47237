//! `CodeGen`: GPT-J with one projection, cut for the four devices it was trained on.

use super::gptj;
use crate::config::{Part, Reader};
use crate::spec::{FusedOrder, LinearSpec, ModelSpec, Projection, RotaryJoin};

/// Parts of the projection, each with its queries, values and keys.
const PARTS: u64 = 4;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let mut heads = 0;
    let model = gptj::model(r, |attention| {
        heads = attention.heads;
        let qkv = LinearSpec::new("qkv_proj", false);
        attention.projection = Projection::Fused { qkv, order: FusedOrder::Parts(PARTS) };
        if let Some(rotary) = &mut attention.rotary {
            rotary.join = RotaryJoin::Last;
        }
    });
    r.require_divides(
        Part::new("n_head", heads, "heads"),
        Part::new("4", PARTS, "parts"),
        "the fused projection lies in four parts with whole heads",
    );
    model
}
