//! Model families: each turns the keys of its `config.json` into a [`ModelSpec`], and does nothing else.
//!
//! To add one, write the file and name it in [`FAMILIES`].

mod afmoe;
mod apertus;
mod bamba;
mod bart;
mod bert;
mod biogpt;
mod bitnet;
mod bloom;
mod blt;
mod classes;
mod codegen;
mod cohere;
mod common;
mod ctrl;
mod cwm;
mod dbrx;
mod deberta;
mod deepseek;
mod deepseek_v4;
mod diffllama;
mod dinov2;
mod distilbert;
mod doge;
mod dots1;
mod ernie4_5;
mod esm;
mod exaone4;
mod experts;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4_moe;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod helium;
mod hunyuan;
mod hy_v3;
mod jamba;
mod jetmoe;
mod kimi_linear;
mod lfm2;
mod llama;
mod llama4;
mod longcat;
mod mamba;
mod mamba2;
mod mimo_v2;
mod minicpm3;
mod minimax;
mod minimax_m2;
mod mistral;
mod mixtral;
mod mllama;
mod modernbert;
mod moshi;
mod mpt;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod nomic_bert;
mod olmo;
mod olmo2;
mod olmo_hybrid;
mod olmoe;
mod openai_gpt;
mod opt;
mod persimmon;
mod phi;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen3;
mod qwen3_next;
mod qwen_moe;
mod recurrent_gemma;
mod rwkv;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5;
mod tasks;
mod xlnet;
mod xlstm;
mod zamba;

mod towers;
mod tying;
mod vision;
mod wav2vec2;
mod whisper;

use crate::config::json::Kind;
use crate::config::{Config, Reader, Resolved, looks_like_llama, near_matches};
use crate::spec::ModelSpec;
use units::{Diagnostic, Diagnostics, Location, group_digits};

/// Turns the keys of a config into a description. Problems go to the reader, which collects them all.
type Read = fn(&mut Reader<'_>) -> ModelSpec;

/// `model_type` and its reader.
pub const FAMILIES: &[(&str, Read)] = &[
    ("afmoe", afmoe::read),
    ("albert", bert::read_albert),
    ("apertus", apertus::read),
    ("arcee", llama::read_arcee),
    ("bamba", bamba::read),
    ("bart", bart::read),
    ("bert", bert::read),
    ("bert-generation", bert::read_generation),
    ("big_bird", bert::read_big_bird),
    ("biogpt", biogpt::read),
    ("bitnet", bitnet::read),
    ("blenderbot", bart::read_blenderbot),
    ("blenderbot-small", bart::read_blenderbot_small),
    ("bloom", bloom::read),
    ("blt", blt::read),
    ("camembert", bert::read_roberta),
    ("clip", vision::read_clip),
    ("clip_text_model", vision::read_clip_text),
    ("clip_vision_model", vision::read_clip_vision),
    ("codegen", codegen::read),
    ("cohere", cohere::read),
    ("cohere2", cohere::read_cohere2),
    ("ctrl", ctrl::read),
    ("cwm", cwm::read),
    ("data2vec-audio", wav2vec2::read_data2vec),
    ("data2vec-text", bert::read_data2vec_text),
    ("dbrx", dbrx::read),
    ("deberta-v2", deberta::read),
    ("deepseek_v2", deepseek::read_v2),
    ("deepseek_v3", deepseek::read_v3),
    ("deepseek_v32", deepseek::read_v32),
    ("deepseek_v4", deepseek_v4::read),
    ("deit", vision::read_deit),
    ("diffllama", diffllama::read),
    ("dinov2", dinov2::read),
    ("dinov2_with_registers", dinov2::read_with_registers),
    ("dinov3_vit", dinov2::read_v3),
    ("distilbert", distilbert::read),
    ("doge", doge::read),
    ("dots1", dots1::read),
    ("electra", bert::read_electra),
    ("ernie", bert::read_ernie),
    ("ernie4_5", ernie4_5::read),
    ("ernie4_5_moe", ernie4_5::read_moe),
    ("esm", esm::read),
    ("eurobert", llama::read_eurobert),
    ("exaone", llama::read_exaone),
    ("exaone4", exaone4::read),
    ("exaone_moe", exaone4::read_moe),
    ("falcon", falcon::read),
    ("falcon_h1", falcon_h1::read),
    ("falcon_mamba", mamba::read_falcon),
    ("flex_olmo", olmo2::read_flex),
    ("gemma", gemma::read),
    ("gemma2", gemma2::read),
    ("gemma3", gemma3::read),
    ("gemma3_text", gemma3::read),
    ("gemma3n_text", gemma3n::read),
    ("gemma4", gemma4::read),
    ("gemma4_text", gemma4::read),
    ("glm", glm::read),
    ("glm4", glm::read_glm4),
    ("glm4_moe", glm4_moe::read),
    ("glm4_moe_lite", deepseek::read_glm4_lite),
    ("glm_moe_dsa", deepseek::read_glm_dsa),
    ("gpt2", gpt2::read),
    ("gpt_bigcode", gpt_bigcode::read),
    ("gpt_neo", gpt_neo::read),
    ("gpt_neox", gpt_neox::read),
    ("gpt_oss", gpt_oss::read),
    ("gptj", gptj::read),
    ("granite", granite::read),
    ("granitemoe", granitemoe::read),
    ("granitemoehybrid", granitemoehybrid::read),
    ("granitemoeshared", granitemoe::read_shared),
    ("gte", nomic_bert::read_gte),
    ("helium", helium::read),
    ("hubert", wav2vec2::read_hubert),
    ("hunyuan_v1_dense", hunyuan::read_dense),
    ("hunyuan_v1_moe", hunyuan::read_moe),
    ("hy_v3", hy_v3::read),
    ("hyperclovax", granite::read_hyperclovax),
    ("ibert", bert::read_ibert),
    ("ijepa", vision::read_ijepa),
    ("internlm3", llama::read_internlm3),
    ("iquestcoder", llama::read_iquestcoder),
    ("jais2", llama::read_jais2),
    ("jamba", jamba::read),
    ("jetmoe", jetmoe::read),
    ("jina_embeddings_v3", nomic_bert::read_jina),
    ("kimi_k2", deepseek::read_v3),
    ("kimi_linear", kimi_linear::read),
    ("layoutlm", bert::read_layoutlm),
    ("lfm2", lfm2::read),
    ("lfm2_moe", lfm2::read_moe),
    ("llama", llama::read),
    ("llama4_text", llama4::read),
    ("longcat_flash", longcat::read),
    ("m2m_100", bart::read_m2m_100),
    ("mamba", mamba::read),
    ("mamba2", mamba2::read),
    ("marian", bart::read_marian),
    ("mbart", bart::read_mbart),
    ("megatron-bert", bert::read_megatron),
    ("mellum", qwen_moe::read_mellum),
    ("mimo_v2_flash", mimo_v2::read),
    ("minicpm3", minicpm3::read),
    ("minimax", minimax::read),
    ("minimax_m2", minimax_m2::read),
    ("ministral", mistral::read_ministral),
    ("ministral3", mistral::read_ministral3),
    ("mistral", mistral::read),
    ("mixtral", mixtral::read),
    ("mllama", mllama::read),
    ("mllama_text_model", mllama::read),
    ("modernbert", modernbert::read),
    ("modernbert-decoder", modernbert::read_decoder),
    ("moshi", moshi::read),
    ("mpnet", bert::read_mpnet),
    ("mpt", mpt::read),
    ("mt5", t5::read_mt5),
    ("mvp", bart::read_mvp),
    ("nanochat", nanochat::read),
    ("nemotron", nemotron::read),
    ("nemotron_h", nemotron_h::read),
    ("nomic_bert", nomic_bert::read),
    ("olmo", olmo::read),
    ("olmo2", olmo2::read),
    ("olmo3", olmo2::read_olmo3),
    ("olmo_hybrid", olmo_hybrid::read),
    ("olmoe", olmoe::read),
    ("openai-gpt", openai_gpt::read),
    ("opt", opt::read),
    ("pegasus", bart::read_pegasus),
    ("persimmon", persimmon::read),
    ("phi", phi::read),
    ("phi3", phi3::read),
    ("phimoe", phimoe::read),
    ("plbart", bart::read_plbart),
    ("qwen2", qwen2::read),
    ("qwen2_5_vl", qwen2::read),
    ("qwen2_5_vl_text", qwen2::read),
    ("qwen2_moe", qwen_moe::read_qwen2),
    ("qwen2_vl", qwen2::read),
    ("qwen2_vl_text", qwen2::read),
    ("qwen3", qwen3::read),
    ("qwen3_5", qwen3_next::read_dense),
    ("qwen3_5_moe", qwen3_next::read_moe),
    ("qwen3_5_moe_text", qwen3_next::read_moe),
    ("qwen3_5_text", qwen3_next::read_dense),
    ("qwen3_moe", qwen_moe::read_qwen3),
    ("qwen3_next", qwen3_next::read),
    ("qwen3_vl_moe_text", qwen_moe::read_qwen3),
    ("qwen3_vl_text", qwen3::read),
    ("recurrent_gemma", recurrent_gemma::read),
    ("rembert", bert::read_rembert),
    ("roberta", bert::read_roberta),
    ("roberta-prelayernorm", bert::read_roberta_prelayernorm),
    ("roformer", bert::read_roformer),
    ("rwkv", rwkv::read),
    ("sarvam_mla", deepseek::read_sarvam),
    ("sarvam_moe", glm4_moe::read_sarvam),
    ("seed_oss", seed_oss::read),
    ("siglip", vision::read_siglip),
    ("siglip_text_model", vision::read_siglip_text),
    ("siglip_vision_model", vision::read_siglip_vision),
    ("smollm3", smollm3::read),
    ("solar_open", glm4_moe::read_solar_open),
    ("stablelm", stablelm::read),
    ("starcoder2", starcoder2::read),
    ("t5", t5::read),
    ("trocr", bart::read_trocr),
    ("umt5", t5::read_umt5),
    ("unispeech", wav2vec2::read_unispeech),
    ("unispeech-sat", wav2vec2::read_unispeech_sat),
    ("vaultgemma", gemma2::read_vaultgemma),
    ("vit", vision::read_vit),
    ("vit_msn", vision::read_vit_msn),
    ("wav2vec2", wav2vec2::read),
    ("whisper", whisper::read),
    ("xglm", biogpt::read_xglm),
    ("xlm-roberta", bert::read_roberta),
    ("xlm-roberta-xl", bert::read_xlm_roberta_xl),
    ("xlnet", xlnet::read),
    ("xlstm", xlstm::read),
    ("youtu", deepseek::read_youtu),
    ("zamba", zamba::read),
    ("zamba2", zamba::read_zamba2),
];

/// Names of all families, in order.
pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|(name, _)| *name).collect()
}

/// A model with what was read, assumed and warned about on the way.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub spec: ModelSpec,
    /// Values with their origin, assumptions, warnings.
    pub resolved: Resolved,
    /// Sub-configurations of other parts that nothing here counts.
    pub uncounted: Vec<String>,
}

/// Reads a config as the family its `model_type` names, or as `assume` if that is given.
///
/// # Errors
/// All problems at once: unknown family (with near matches), missing or impossible values.
pub fn load(config: &Config, assume: Option<&str>) -> Result<Loaded, Diagnostics> {
    let stated = config.model_type().map(str::to_owned);
    let find = |name: &str| FAMILIES.iter().find(|(n, _)| *n == name).map(|(_, read)| *read);
    let read = match (stated.as_deref().and_then(find), assume) {
        (_, Some(name)) => find(name).ok_or_else(|| unknown_assumed(name))?,
        (Some(read), None) => read,
        (None, None) => return Err(unknown(config, stated.as_deref().unwrap_or(""))),
    };
    let mut reader = Reader::new(config);
    if let (Some(name), true) = (assume, stated.as_deref() != assume) {
        reader.assume("model_type", name, "given by --assume");
    }
    // What a file is stored in says nothing of how it is trained: the precision recipe does.
    reader.known(&["dtype", "torch_dtype"]);
    let mut spec = read(&mut reader);
    classes::apply(&mut reader, &mut spec);
    spec.family = stated.or_else(|| assume.map(str::to_owned)).unwrap_or_default();
    tying::tie(&mut reader, config, &mut spec);
    // The type of a wrapper says which parts there are, even those whose keys the file leaves out.
    let wrapper = config.wrapper_model_type().unwrap_or_default();
    let counted = towers::attach(&mut reader, wrapper, &mut spec);
    let uncounted = config.not_counted().iter().filter(|part| !(counted && *part == "vision_config")).cloned();
    let uncounted: Vec<String> = uncounted.collect();
    spec.not_modelled.extend(uncounted.iter().map(|part| hole(config, part)));
    if let (Some(part), true) = (config.sub_config(), uncounted.is_empty() && !counted && find(wrapper).is_none()) {
        spec.not_modelled.push(format!("what `{wrapper}` has beside its `{part}`, which is in no number here"));
    }
    let resolved = reader.finish()?;
    let turned = spec.layers.iter().filter_map(|layer| layer.attention()?.rotary.as_ref().map(|rotary| rotary.dim));
    if let Some(odd) = turned.into_iter().find(|dim| !dim.is_multiple_of(2)) {
        return Err(odd_rotary(config, odd).into());
    }
    Ok(Loaded { spec, resolved, uncounted })
}

/// A part of a wrapper that is not counted, and how large it is if its blocks are Transformer blocks.
fn hole(config: &Config, part: &str) -> String {
    let object = config.root().get(part);
    let size = |keys: &[&str]| {
        let number = |key: &&str| match &object?.get(key)?.kind {
            Kind::Number(text) => text.parse::<u128>().ok().filter(|size| *size > 0),
            _ => None,
        };
        keys.iter().find_map(number)
    };
    let h = size(&["hidden_size", "embed_dim", "d_model", "hidden_dim"]);
    let l = size(&["num_hidden_layers", "depth", "num_layers", "encoder_layers"]);
    let f = size(&["intermediate_size", "encoder_ffn_dim", "ffn_dim"]).or(h.map(|h| h.saturating_mul(4)));
    let about = h.zip(l).zip(f).map_or_else(String::new, |((h, l), f)| {
        let block = 4u128.saturating_mul(h).saturating_add(f.saturating_mul(2)).saturating_mul(h);
        let total = group_digits(l.saturating_mul(block));
        format!(
            ", about {total} parameters ({l} blocks of 4h\u{b2} + 2hf, {h} and {f} wide), and what joins it to the text"
        )
    });
    format!("`{part}`, which is in no number here{about}")
}

fn odd_rotary(config: &Config, channels: u64) -> Diagnostic {
    let said = ["head_dim", "qk_rope_head_dim", "hidden_size", "n_embd"];
    let diagnostic =
        Diagnostic::error("T0203", format!("{channels} channels of each head are to be rotated: an odd number"))
            .why("rotary embedding turns channels in pairs")
            .help(format!("--set head_dim={}", channels + 1));
    match said.iter().find_map(|key| Some((key, config.find(key)?))) {
        Some((key, found)) => diagnostic.at(config.location(found.value.span, &format!("/{key}"))),
        None => diagnostic.at(Location::file(config.file_name())),
    }
}

/// A family that `--assume` names: the file is not to blame.
fn unknown_assumed(name: &str) -> Diagnostics {
    let known = names();
    let mut diagnostic = Diagnostic::error("T0301", format!("--assume {name}: not a known family"));
    let near = near_matches(name, &known);
    if !near.is_empty() {
        diagnostic = diagnostic.help(format!("near matches: {}", near.join(", ")));
    }
    diagnostic.help(format!("known: {}", known.join(", "))).into()
}

fn unknown(config: &Config, name: &str) -> Diagnostics {
    let known = names();
    let message = if name.is_empty() {
        "the config has no `model_type`".to_owned()
    } else {
        format!("`model_type` is \"{name}\", which is not a known family")
    };
    let mut diagnostic = Diagnostic::error("T0301", message);
    diagnostic = diagnostic.at(match config.find("model_type") {
        Some(found) => config.location(found.value.span, "/model_type"),
        None => Location::file(config.file_name()),
    });
    diagnostic =
        diagnostic.why("the family decides which modules the keys describe; guessing would give a wrong count");
    let near = near_matches(name, &known);
    if !near.is_empty() {
        diagnostic = diagnostic.help(format!("near matches: {}", near.join(", ")));
    }
    if looks_like_llama(config) {
        diagnostic = diagnostic.help("it has the keys of a Llama-like model: pass --assume llama to read it as one");
    }
    diagnostic.help(format!("known: {}", known.join(", "))).into()
}
