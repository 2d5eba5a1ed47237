//! `MiniCPM` 3: DeepSeek-V2's latent attention turned in halves, dense, with constants on embedding, branches and head.

use super::common::{FAMILY, block, decoder, equal, float_or_off, gated_mlp, is_null, pre_norm};
use super::deepseek::{Latent, base};
use crate::config::Reader;
use crate::spec::{ModelSpec, RotaryForm, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    // Heads of values are as wide as an equal part of the stream where the file does not say.
    let (h, a) = (r.size("hidden_size"), r.size("num_attention_heads"));
    let value_dim = (h / a.max(1)).max(1);
    let mut base =
        base(r, &Latent { q_rank: Some(768), kv_rank: 256, nope_dim: 64, rope_dim: 32, value_dim, eps: 1e-5 });
    base.attention.rotary =
        base.attention.rotary.map(|rotary| RotarySpec { interleaved: false, form: RotaryForm::RotateHalf, ..rotary });
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", true);
    let scale = r.float_or("scale_emb", 12.0, FAMILY);
    let depth = float_or_off(r, "scale_depth", 1.4);
    let width = if is_null(r, "dim_model_base") { None } else { Some(r.size_or("dim_model_base", 256, FAMILY)) };
    r.known(&["pretraining_tp", "dim_model_base"]);
    let mut layer = block(base.attention, gated_mlp(base.f, base.act, mlp_bias), pre_norm(&base.norm));
    layer.residual_scale = Some(depth.map_or(1.0, |depth| depth / (base.s.l as f64).sqrt()));
    let mut spec = decoder(r, &base.s, equal(&base.s, layer), base.norm, tied);
    spec.embedding.scale = Some(scale);
    spec.head.input_scale = Some(width.map_or(1.0, |width| width as f64 / h.max(1) as f64));
    spec
}
