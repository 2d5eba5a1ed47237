//! Headers of real models, made by the format's own library; GGUF bytes put together after its specification; hostile ones.

use super::*;
use ::safetensors::tensor::{Dtype, Metadata, TensorInfo};
use plan::model::Model;
use plan::report::{Report, Value, Verdict};
use std::fs;
use tensor::{DType, Device, Runtime};
use units::Diagnostics;

type Shape = Vec<usize>;

/// Name, dtype and shape of a tensor.
pub(super) type Row = (String, Dtype, Shape);

/// The bytes before the data, and those of the data.
fn header_bytes(tensors: &[Row]) -> (Vec<u8>, u64) {
    let mut at = 0;
    let infos = tensors.iter().map(|(name, dtype, shape)| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        at += bytes;
        (name.clone(), TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (at - bytes, at) })
    });
    let metadata = Metadata::new(None, infos.collect()).unwrap();
    (framed(&serde_json::to_string(&metadata).unwrap()), at as u64)
}

fn framed(json: &str) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

fn stored(tensors: &[Row]) -> Stored {
    let (bytes, data) = header_bytes(tensors);
    let path = Path::new("model.safetensors");
    let file = read_safetensors(path, &bytes[..], bytes.len() as u64 + data).unwrap();
    Stored { path: path.to_owned(), files: vec![file], warnings: Diagnostics::new() }
}

fn preset(name: &str) -> Model {
    let (name, text) = plan::presets::find(name).unwrap();
    Model::from_text(name, "config.json", text.as_bytes(), &[], None).unwrap()
}

fn config(text: &str) -> Model {
    Model::from_text("config", "config.json", text.as_bytes(), &[], None).unwrap()
}

/// The parameters of a model as tensors of a file.
fn parameters(model: &Model, dtype: Dtype) -> Vec<Row> {
    let built = nn::Model::build(&Runtime::new(Device::Meta), &model.spec, DType::F32).unwrap();
    let shape = |shape: &[u64]| shape.iter().map(|&size| size as usize).collect();
    built.params().iter().map(|param| (param.name.clone(), dtype, shape(param.tensor.shape()))).collect()
}

pub(super) fn report(tensors: &[Row], model: &Model) -> Report {
    report::of(stored(tensors), Some(model)).unwrap()
}

pub(super) fn get<'a>(report: &'a Report, path: &str) -> &'a Value {
    path.split('.').fold(&report.result, |value, key| match (value, key.parse::<usize>()) {
        (Value::List(items), Ok(index)) => &items[index],
        _ => value.get(key).unwrap_or_else(|| panic!("{key} of {path} in {:?}", report.result)),
    })
}

pub(super) fn uint(report: &Report, path: &str) -> u64 {
    get(report, path).as_uint().unwrap() as u64
}

fn near(bytes: u64, gigabytes: f64, share: f64) {
    let found = bytes as f64 / 1e9;
    assert!((found - gigabytes).abs() <= gigabytes * share, "{found} GB, not {gigabytes}");
}

const LLAMA_3_2_1B: &str = r#"{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, KEY: "bfloat16"}"#;

/// huggingface/accelerate issue 3379: 141.11 GB, where the estimator of the time said 64.73.
#[test]
fn memory_07_seventy_billion_parameters_in_bf16() {
    let model = preset("llama-3.1-70b");
    let report = report(&parameters(&model, Dtype::BF16), &model);
    assert_eq!(uint(&report, "parameters"), 70_553_706_496);
    assert_eq!(uint(&report, "by_part.head.parameters"), 1_050_673_152);
    let bytes = uint(&report, "tensor_bytes");
    assert!((bytes as f64 / 1e9 - 141.11).abs() <= 0.01);
    assert!((bytes as f64 / (1_u64 << 30) as f64 - 131.42).abs() <= 0.01);
    assert_eq!((report.verdict, get(&report, "against_config.agrees")), (Verdict::Answered, &Value::Bool(true)));
}

/// huggingface/trl issue 1111: only linear maps are packed; the constants are 0.201 GB, or 0.051 in double quantisation.
#[test]
fn memory_13_four_bits_and_what_stands_beside_them() {
    let model = config(
        r#"{"model_type": "llama", "hidden_size": 3200, "intermediate_size": 8640, "num_hidden_layers": 26,
        "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": false, "torch_dtype": "float16"}"#,
    );
    for (double, constants) in [(false, 0.201), (true, 0.051)] {
        let mut tensors = Vec::new();
        for (name, dtype, shape) in parameters(&model, Dtype::F16) {
            if shape.len() < 2 || name.contains("embed") || name.contains("head") {
                tensors.push((name, dtype, shape));
                continue;
            }
            let elements = shape[0] * shape[1];
            // Blocks of 64 with an f32 each; or a byte each, and an f32 for 256 of them.
            let (absmax, blocks) = (format!("{name}.absmax"), elements / 64);
            tensors.push((absmax, if double { Dtype::U8 } else { Dtype::F32 }, vec![blocks]));
            if double {
                tensors.push((format!("{name}.nested_absmax"), Dtype::F32, vec![blocks.div_ceil(256)]));
                tensors.push((format!("{name}.nested_quant_map"), Dtype::F32, vec![256]));
            }
            tensors.push((format!("{name}.quant_map"), Dtype::F32, vec![16]));
            tensors.push((format!("{name}.quant_state.bitsandbytes__nf4"), Dtype::U8, vec![88]));
            tensors.push((name, Dtype::U8, vec![elements / 2, 1]));
        }
        let report = report(&tensors, &model);
        assert_eq!(uint(&report, "packed.0.parameters"), 3_221_504_000);
        assert_eq!(get(&report, "packed.0.format"), &Value::from("bitsandbytes nf4"));
        near(uint(&report, "packed.0.packed_bytes"), 1.611, 0.001);
        near(uint(&report, "packed.0.constants_bytes"), constants, 0.01);
        near(uint(&report, "tensor_bytes"), 2.02 + constants, 0.005);
        assert_eq!(get(&report, "against_config.agrees"), &Value::Bool(true), "{:?}", report.result);
        let Value::Num(bits) = get(&report, "packed.0.bits_per_weight") else { panic!() };
        let expected = if double { 4.127 } else { 4.5 };
        assert!((bits - expected).abs() < 0.002, "{bits}");
    }
}

/// checkpoint-07: what a file of 6,738,415,616 parameters weighs by how it was saved, and with what training keeps of them.
#[test]
fn checkpoint_07_masters_in_place_of_bf16() {
    let model = preset("llama-2-7b");
    for (dtype, stored) in [(Dtype::BF16, 13.48), (Dtype::F32, 26.95)] {
        let report = report(&parameters(&model, dtype), &model);
        assert_eq!(uint(&report, "parameters"), 6_738_415_616);
        near(uint(&report, "tensor_bytes"), stored, 0.005);
        near(uint(&report, "loaded.0.weights_bytes"), 13.48, 0.005);
        near(uint(&report, "loaded.2.weights_bytes"), 26.95, 0.005);
        near(uint(&report, "loaded.2.saved_bytes"), 80.9, 0.005);
        near(uint(&report, "loaded.1.saved_bytes"), 94.3, 0.005);
    }
}

/// huggingface/transformers issue 34743: an ignored key became honoured, and the master copy was gone.
#[test]
fn memory_15_one_file_loaded_in_two_dtypes() {
    for key in ["\"dtype\"", "\"torch_dtype\""] {
        let model = config(&LLAMA_3_2_1B.replace("KEY", key));
        let report = report(&parameters(&model, Dtype::BF16), &model);
        assert_eq!(uint(&report, "parameters"), 1_235_814_400);
        near(uint(&report, "tensor_bytes"), 2.47, 0.005);
        assert_eq!(get(&report, "config_dtype"), &Value::from("bf16"));
        for (row, recipe, weights, states) in [(0, "bf16-pure", 2.47, 9.9), (2, "fp32", 4.94, 19.8)] {
            assert_eq!(get(&report, &format!("loaded.{row}.recipe")), &Value::from(recipe));
            near(uint(&report, &format!("loaded.{row}.weights_bytes")), weights, 0.005);
            near(uint(&report, &format!("loaded.{row}.training_state_bytes")), states, 0.005);
        }
        assert!(report.warnings.iter().any(|note| note.message == "bf16 weights + plain AdamW = no master copy"));
    }
}

/// instructlab/training issue 477: a saved model of twice the expected size.
#[test]
fn checkpoint_07_masters_were_written_instead_of_bf16() {
    let (name, text) = plan::presets::find("llama-2-7b").unwrap();
    let overrides = [("torch_dtype".to_owned(), "\"bfloat16\"".to_owned())];
    let model = Model::from_text(name, "config.json", text.as_bytes(), &overrides, None).unwrap();
    let report = report(&parameters(&model, Dtype::F32), &model);
    assert_eq!(uint(&report, "parameters"), 6_738_415_616);
    near(uint(&report, "tensor_bytes"), 26.95, 0.005);
    near(uint(&report, "other_dtype.bytes_in_config_dtype"), 13.48, 0.005);
    near(uint(&report, "loaded.2.saved_bytes"), 80.9, 0.005);
    near(uint(&report, "loaded.1.saved_bytes"), 94.3, 0.005);
    assert!(report.warnings.iter().any(|warning| warning.code == "T0635"), "{:?}", report.warnings);
}

#[test]
fn what_differs_is_named() {
    let model = config(&LLAMA_3_2_1B.replace("KEY", "\"dtype\""));
    let mut tensors = parameters(&model, Dtype::BF16);
    let (embedding, rows) = (tensors[0].0.clone(), tensors[0].2.clone());
    assert_eq!(rows, [128_256, 2048]);
    // Stored twice, which the config says is one; a shape, a missing one, one too many, one that follows from the config.
    tensors.push(("lm_head.weight".to_owned(), Dtype::BF16, rows));
    let gone = tensors.iter().position(|row| row.0 == "model.layers.3.mlp.up_proj.weight").unwrap();
    tensors.remove(gone);
    let changed = tensors.iter_mut().find(|row| row.0 == "model.norm.weight").unwrap();
    changed.2 = vec![1024];
    tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), Dtype::F32, vec![32]));
    tensors.push(("v_head.weight".to_owned(), Dtype::BF16, vec![2, 8]));
    let report = report(&tensors, &model);
    let against = |path: &str| get(&report, &format!("against_config.{path}"));
    assert_eq!(against("missing.0.name"), &Value::from("model.layers.3.mlp.up_proj.weight"));
    assert_eq!(against("missing.0.elements").as_uint(), Some(2048 * 8192));
    assert_eq!(against("extra.0.name"), &Value::from("v_head.weight"));
    assert_eq!(against("other_shape.0.stored"), &Value::from("[1024]"));
    assert_eq!(against("other_shape.0.predicted"), &Value::from("[2048]"));
    assert_eq!(against("derived.0.name"), &Value::from("model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert_eq!(against("stored_twice.0.name"), &Value::from(embedding.as_str()));
    assert_eq!(against("stored_twice.0.duplicate"), &Value::from("lm_head.weight"));
    assert_eq!(against("stored_twice.0.bytes").as_uint(), Some(128_256 * 2048 * 2));
    assert_eq!(report.verdict, Verdict::No);
}

/// Files of before transformers 5 have a matrix for each expert, the model one for all.
#[test]
fn experts_stored_one_by_one_are_the_same_parameters() {
    let model = config(
        r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 4}"#,
    );
    let mut tensors = Vec::new();
    for (name, dtype, shape) in parameters(&model, Dtype::BF16) {
        let layer = name.split(".mlp.").next().unwrap().to_owned();
        if name.contains("experts.gate_up_proj") {
            for expert in 0..4 {
                for part in ["w1", "w3"] {
                    let name = format!("{layer}.block_sparse_moe.experts.{expert}.{part}.weight");
                    tensors.push((name, dtype, vec![96, 64]));
                }
                let name = format!("{layer}.block_sparse_moe.experts.{expert}.w2.weight");
                tensors.push((name, dtype, vec![64, 96]));
            }
        } else if !name.contains("experts.down_proj") {
            tensors.push((name, dtype, shape));
        }
    }
    assert!(tensors.iter().filter(|row| row.0.contains("experts")).count() == 24, "{tensors:?}");
    let report = report(&tensors, &model);
    assert_eq!(get(&report, "against_config.agrees"), &Value::Bool(true), "{:?}", report.result);
    assert_eq!(uint(&report, "by_part.experts.parameters"), 2 * 4 * 3 * 64 * 96);
    let expected = Value::list(["layers.0", "layers.1"]);
    assert_eq!(get(&report, "against_config.cut_otherwise"), &expected);
}

/// Bytes of one linear map of 512 inputs and 256 outputs in each format, and what its own program says of it.
#[test]
fn packed_formats_are_known_by_their_constants() {
    let row = |name: &str, dtype, shape: &[usize]| (format!("l.{name}"), dtype, shape.to_vec());
    let elements = 512 * 256;
    let cases: [(&str, Vec<Row>, u64, u64); 10] = [
        (
            "GPTQ 4-bit",
            vec![
                row("qweight", Dtype::I32, &[64, 256]),
                row("qzeros", Dtype::I32, &[4, 32]),
                row("scales", Dtype::F16, &[4, 256]),
                row("g_idx", Dtype::I32, &[512]),
            ],
            elements / 2,
            4 * 32 * 4 + 4 * 256 * 2 + 512 * 4,
        ),
        (
            "GPTQ 3-bit",
            vec![
                row("qweight", Dtype::I32, &[48, 256]),
                row("qzeros", Dtype::I32, &[4, 24]),
                row("scales", Dtype::F16, &[4, 256]),
            ],
            elements * 3 / 8,
            4 * 24 * 4 + 4 * 256 * 2,
        ),
        (
            "AWQ 4-bit",
            vec![
                row("qweight", Dtype::I32, &[512, 32]),
                row("qzeros", Dtype::I32, &[4, 32]),
                row("scales", Dtype::F16, &[4, 256]),
            ],
            elements / 2,
            4 * 32 * 4 + 4 * 256 * 2,
        ),
        (
            "bitsandbytes int8",
            vec![
                row("weight", Dtype::I8, &[256, 512]),
                row("SCB", Dtype::F32, &[256]),
                row("weight_format", Dtype::U8, &[]),
            ],
            elements,
            256 * 4 + 1,
        ),
        (
            "bitsandbytes fp4",
            vec![
                row("weight", Dtype::U8, &[65_536, 1]),
                row("weight.absmax", Dtype::F32, &[2048]),
                row("weight.quant_map", Dtype::F32, &[16]),
                row("weight.quant_state.bitsandbytes__fp4", Dtype::U8, &[80]),
            ],
            elements / 2,
            2048 * 4 + 64 + 80,
        ),
        (
            "fp8 with scales",
            vec![row("weight", Dtype::F8_E4M3, &[256, 512]), row("weight_scale_inv", Dtype::F32, &[2, 4])],
            elements,
            32,
        ),
        (
            "int8 with scales",
            vec![row("weight", Dtype::I8, &[256, 512]), row("weight_scale", Dtype::BF16, &[256, 1])],
            elements,
            512,
        ),
        (
            "mxfp4",
            vec![row("weight_blocks", Dtype::U8, &[256, 16, 16]), row("weight_scales", Dtype::U8, &[256, 16])],
            elements / 2,
            256 * 16,
        ),
        (
            "nvfp4",
            vec![
                row("weight_packed", Dtype::U8, &[256, 256]),
                row("weight_scale", Dtype::F8_E4M3, &[256, 32]),
                row("weight_global_scale", Dtype::F32, &[1]),
            ],
            elements / 2,
            256 * 32 + 4,
        ),
        (
            "packed 4-bit",
            vec![
                row("weight_packed", Dtype::I32, &[256, 64]),
                row("weight_scale", Dtype::BF16, &[256, 4]),
                row("weight_shape", Dtype::I64, &[2]),
            ],
            elements / 2,
            256 * 4 * 2 + 16,
        ),
    ];
    for (name, tensors, bytes, constants) in cases {
        let stored = stored(&tensors);
        let entries: Vec<&Entry> = stored.files[0].tensors.iter().collect();
        let found = packed::weights(&entries, Some(4));
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        let weight = &found[0];
        assert_eq!(weight.packing.map(Packing::name).as_deref(), Some(name));
        assert_eq!((weight.elements, weight.bytes, weight.constants), (Some(elements), bytes, constants), "{name}");
        assert_eq!(weight.name, "l.weight");
        // The config may say nothing: only words without zero points need it.
        let alone = packed::weights(&entries, None);
        assert_eq!(alone[0].elements.is_none(), name == "packed 4-bit", "{name}");
    }
}

/// A GGUF file, put together after the specification.
#[derive(Clone)]
struct Gguf {
    version: u32,
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data: u64,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Gguf {
    fn new(tensors: &[(&str, &[u64], u32, u64)], data: u64) -> Self {
        let words = [8_u32.to_le_bytes().to_vec(), string("llama")].concat();
        let list: Vec<u8> =
            [&9_u32.to_le_bytes()[..], &8_u32.to_le_bytes(), &2_u64.to_le_bytes(), &string("a"), &string("token")]
                .concat();
        let floats = [&9_u32.to_le_bytes()[..], &6_u32.to_le_bytes(), &2_u64.to_le_bytes(), &[0; 8]].concat();
        let named = |row: &(&str, &[u64], u32, u64)| (row.0.to_owned(), row.1.to_vec(), row.2, row.3);
        Self {
            version: 3,
            keys: vec![
                ("general.architecture".to_owned(), words),
                ("tokenizer.ggml.tokens".to_owned(), list),
                ("tokenizer.ggml.scores".to_owned(), floats),
            ],
            tensors: tensors.iter().map(named).collect(),
            data,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.extend(string(key));
            out.extend(value);
        }
        for (name, shape, kind, offset) in &self.tensors {
            out.extend(string(name));
            out.extend((shape.len() as u32).to_le_bytes());
            out.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out
    }

    fn read(&self) -> Result<Header, Vec<Diagnostic>> {
        let bytes = self.bytes();
        read_gguf(Path::new("m.gguf"), &bytes[..], bytes.len() as u64 + self.data)
    }
}

#[test]
fn gguf_types_have_their_bytes() {
    let rows: [(&str, &[u64], u32, u64); 4] = [
        ("token_embd.weight", &[256, 100], 12, 0),
        ("blk.0.attn_q.weight", &[256, 256], 2, 14_400),
        ("blk.0.attn_norm.weight", &[256], 0, 14_400 + 36_864),
        ("output.weight", &[256, 3], 14, 14_400 + 36_864 + 1024),
    ];
    // Q4_K: 144 bytes for 256; Q4_0: 18 for 32; Q6_K: 210 for 256.
    let file = Gguf::new(&rows, 14_400 + 36_864 + 1024 + 630);
    let header = file.read().unwrap();
    let bytes: Vec<u64> = header.tensors.iter().map(|tensor| tensor.bytes).collect();
    assert_eq!(bytes, [14_400, 36_864, 1024, 630]);
    assert_eq!(header.tensors[0].shape, [100, 256]);
    assert_eq!(header.about["general.architecture"], "llama");
    assert_eq!(header.header_bytes, file.bytes().len() as u64);
    // The data may be padded to the alignment; more than that belongs to nobody.
    for (more, right) in [(10, true), (11, false)] {
        assert_eq!(Gguf { data: file.data + more, ..file.clone() }.read().is_ok(), right);
    }
    let stored = Stored { path: "m.gguf".into(), files: vec![header], warnings: Diagnostics::new() };
    let report = report::of(stored, None).unwrap();
    assert_eq!(get(&report, "by_dtype.Q4_K.bits_per_element"), &Value::Num(4.5));
    assert_eq!(get(&report, "by_dtype.Q6_K.bits_per_element"), &Value::Num(6.5625));
    assert_eq!(uint(&report, "by_part.embedding.bytes"), 14_400);
}

/// llama.cpp has names of its own, so totals are compared: each tied matrix once, without factors of the rotation.
#[test]
fn gguf_is_held_against_a_config_by_its_totals() {
    let text = r#"{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100, "tie_word_embeddings": TIED,
        "dtype": "bfloat16"}"#;
    let mut rows: Vec<(&str, &[u64], u32, u64)> = Vec::new();
    let mut at = 0;
    for (name, shape, kind, bytes) in [
        ("token_embd.weight", &[256, 100][..], 8, 100 * 8 * 34),
        ("blk.0.attn_q.weight", &[256, 256], 2, 256 * 8 * 18),
        ("blk.0.attn_k.weight", &[256, 256], 2, 256 * 8 * 18),
        ("blk.0.attn_v.weight", &[256, 256], 14, 256 * 210),
        ("blk.0.attn_output.weight", &[256, 256], 12, 256 * 144),
        ("blk.0.ffn_gate.weight", &[256, 512], 12, 512 * 144),
        ("blk.0.ffn_up.weight", &[256, 512], 12, 512 * 144),
        ("blk.0.ffn_down.weight", &[512, 256], 14, 512 * 210),
        ("blk.0.attn_norm.weight", &[256], 0, 1024),
        ("blk.0.ffn_norm.weight", &[256], 0, 1024),
        ("output_norm.weight", &[256], 0, 1024),
        ("rope_freqs.weight", &[32], 0, 128),
        ("output.weight", &[256, 100], 8, 100 * 8 * 34),
    ] {
        rows.push((name, shape, kind, at));
        at = (at + bytes as u64).next_multiple_of(32);
    }
    let parameters = 25_600 + 4 * 65_536 + 3 * 131_072 + 3 * 256;
    for (tied, head) in [("true", 0), ("false", 25_600)] {
        let header = Gguf::new(&rows, at).read().unwrap();
        let stored = Stored { path: "m.gguf".into(), files: vec![header], warnings: Diagnostics::new() };
        let report = report::of(stored, Some(&config(&text.replace("TIED", tied)))).unwrap();
        assert_eq!(uint(&report, "parameters"), parameters + head);
        assert_eq!(get(&report, "against_config.agrees"), &Value::Bool(true), "{:?}", report.result);
        let Value::List(twice) = get(&report, "against_config.stored_twice") else { panic!() };
        assert_eq!(twice.len(), usize::from(head == 0));
        assert_eq!(get(&report, "against_config.derived.0.name"), &Value::from("rope_freqs.weight"));
    }
    // One matrix fewer.
    rows.remove(1);
    for row in &mut rows[1..] {
        row.3 -= 256 * 8 * 18;
    }
    let header = Gguf::new(&rows, at - 256 * 8 * 18).read().unwrap();
    let stored = Stored { path: "m.gguf".into(), files: vec![header], warnings: Diagnostics::new() };
    let report = report::of(stored, Some(&config(&text.replace("TIED", "true")))).unwrap();
    assert_eq!((report.verdict, uint(&report, "parameters")), (Verdict::No, parameters - 65_536));
}

#[test]
fn hostile_gguf_files_are_refused_with_the_place() {
    let good = Gguf::new(&[("a", &[32], 2, 0), ("b", &[8], 0, 32)], 64);
    assert!(good.read().is_ok());
    let tensors = |rows: &[(&str, &[u64], u32, u64)]| Gguf { tensors: Gguf::new(rows, 0).tensors, ..good.clone() };
    let keys = |key: &str, value: &[&[u8]]| {
        let mut keys = good.keys.clone();
        keys.push((key.to_owned(), value.concat()));
        Gguf { keys, ..good.clone() }
    };
    let (list, huge) = (&9_u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()[..]);
    let nested = [list, &1_u64.to_le_bytes()].concat().repeat(1000);
    for (file, what) in [
        (Gguf { version: 1, ..good.clone() }, "version 1"),
        (Gguf { version: 3 << 24, ..good.clone() }, "big-endian"),
        (Gguf { version: 9, ..good.clone() }, "version 9"),
        (Gguf { data: 60, ..good.clone() }, "the data of 1 tensors is not whole, the first is `b`"),
        (Gguf { data: 97, ..good.clone() }, "too long"),
        (tensors(&[("a", &[32], 2, 0), ("a", &[8], 0, 32)]), "two tensors are named `a`"),
        (tensors(&[("a", &[32], 2, 0), ("b", &[8], 0, 0)]), "inside `a`"),
        (tensors(&[("a", &[32], 2, 32)]), "belong to no tensor"),
        (tensors(&[("a", &[32], 2, 7)]), "no multiple of 32"),
        (tensors(&[("a", &[33], 2, 0)]), "no whole blocks of Q4_0"),
        (tensors(&[("a", &[32], 999, 0)]), "type 999"),
        (tensors(&[("a", &[1 << 32, 1 << 32], 0, 0)]), "cannot be counted"),
        (tensors(&[("a", &[1 << 62], 0, 0)]), "or too many"),
        (tensors(&[("a", &[8], 0, u64::MAX - 31)]), "no file is as long"),
        (tensors(&[("a", &[1; 5], 0, 0)]), "5 dimensions"),
        (keys("x", &[&8_u32.to_le_bytes(), huge]), "the value of `x`"),
        (keys("x", &[list, &0_u32.to_le_bytes(), huge]), "the value of `x`"),
        (keys("x", &[list, &8_u32.to_le_bytes(), huge]), "the value of `x`"),
        (keys("x", &[list, &nested]), "an array in 4 arrays"),
        (keys("x", &[&77_u32.to_le_bytes()]), "type 77"),
        (keys("general.architecture", &[&0_u32.to_le_bytes(), &[0]]), "stands twice"),
        (keys("general.alignment", &[&4_u32.to_le_bytes(), &[0; 4]]), "`general.alignment` is 0"),
    ] {
        let problems = file.read().expect_err(what);
        assert!(problems.iter().any(|problem| problem.message.contains(what)), "{what}: {problems:?}");
        assert!(problems.iter().all(|p| p.code == "T0630" && p.location.is_some() && !p.help.is_empty()));
    }
    // Cut anywhere: never taken for whole.
    let bytes = good.bytes();
    for length in 0..bytes.len() {
        assert!(read_gguf(Path::new("m"), &bytes[..length], length as u64).is_err(), "{length}");
    }
}

#[test]
fn hostile_safetensors_files_are_refused_with_the_place() {
    let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    for (json, data, what) in [
        (format!("{{{a}}}"), 7, "cut short: its header names 8 bytes of tensors, 7 are there"),
        (format!("{{{a}}}"), 9, "too long"),
        (format!("{{{a},{a}}}"), 8, "two tensors are named `a`"),
        (
            format!(r#"{{{a},"b":{{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}}}"#),
            12,
            "`b` begins at byte 4 of the data, inside `a`",
        ),
        (
            format!(r#"{{{a},"b":{{"dtype":"U8","shape":[2],"data_offsets":[10,12]}}}}"#),
            12,
            "2 bytes before `b` (data bytes 8 to 10)",
        ),
        (r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#.to_owned(), 8, "3 elements of F32 take 12 bytes"),
        (r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#.to_owned(), 2, "fill no whole byte"),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#.to_owned(), 8, "said to end at byte 0"),
        (
            r#"{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#.to_owned(),
            0,
            "cannot be counted",
        ),
        (r#"{"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}}"#.to_owned(), 8, "`a`: unknown variant `Q4`"),
        (r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#.to_owned(), 8, "`a`: invalid value"),
        (r#"{"a":{"dtype":"F32","data_offsets":[0,8]}}"#.to_owned(), 8, "`a`: missing field `shape`"),
        (format!("{{{a}}} {{"), 8, "trailing characters"),
        (format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{a}}}"#), 8, "stands twice"),
        (format!("{{\"a\":{}", "[".repeat(500_000)), 0, "its header is wrong"),
        (
            format!(r#"{{"a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#, "1,".repeat(64)),
            1,
            "65 dimensions",
        ),
    ] {
        let bytes = framed(&json);
        let problems = read_safetensors(Path::new("m"), &bytes[..], bytes.len() as u64 + data).expect_err(what);
        assert!(problems.iter().any(|problem| problem.message.contains(what)), "{what}: {problems:?}");
        assert!(problems.iter().all(|p| p.code == "T0610" && p.location.is_some() && !p.help.is_empty()));
    }
    // A million problems are not a million messages.
    let many: Vec<String> =
        (0..20_000).map(|i| format!(r#""t{i}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#)).collect();
    let bytes = framed(&format!("{{{}}}", many.join(",")));
    let problems = read_safetensors(Path::new("m"), &bytes[..], bytes.len() as u64 + 1).unwrap_err();
    assert!((2..20).contains(&problems.len()), "{}", problems.len());
    assert!(problems.last().unwrap().message.contains("more problems"));
}

/// Files that a test names, with these bytes; the data is a hole.
fn folder(files: &[(&str, &[u8], u64)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes, data) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
        let file = fs::OpenOptions::new().write(true).open(folder.path().join(name)).unwrap();
        file.set_len(bytes.len() as u64 + data).unwrap();
    }
    folder
}

#[test]
fn folders_parts_and_indices() {
    let row = |name: &str| vec![(name.to_owned(), Dtype::BF16, vec![4, 4])];
    let (one, two) = (header_bytes(&row("a")), header_bytes(&row("b")));
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let index = |a: &str, b: &str, total: u64| {
        format!(r#"{{"metadata": {{"total_size": {total}}}, "weight_map": {{"a": "{a}", "b": "{b}"}}}}"#)
    };
    let with = |index: Option<String>, second: bool| {
        let mut files = vec![(names[0], &one.0[..], one.1)];
        files.extend(second.then_some((names[1], &two.0[..], two.1)));
        let index = index.unwrap_or_default();
        if !index.is_empty() {
            files.push(("model.safetensors.index.json", index.as_bytes(), 0));
        }
        folder(&files)
    };
    for (index, second) in [(None, true), (Some(index(names[0], names[1], 64)), true)] {
        let folder = with(index, second);
        let stored = Stored::open(folder.path()).unwrap();
        assert_eq!((stored.files.len(), stored.warnings.len()), (2, 0));
    }
    let said = |index: Option<String>, second: bool| match Stored::open(with(index, second).path()) {
        Ok(stored) => stored.warnings.to_string(),
        Err(problems) => problems.to_string(),
    };
    assert!(
        said(Some(index(names[0], names[1], 65)), true)
            .contains("the index says 65 bytes of tensors, its files hold 64")
    );
    assert!(said(Some(index(names[1], names[0], 64)), true).contains("tensor `a` is only in the index"));
    assert!(said(Some(index(names[0], "../x", 64)), true).contains("no file beside the index"));
    assert!(said(Some(index(names[0], names[1], 64)), false).contains("is not there"));
    assert!(said(Some("{".to_owned()), true).contains("not JSON"));
    assert!(said(Some(r#"{"weight_map": []}"#.to_owned()), true).contains("no `weight_map`"));
    assert!(said(None, false).contains("is not there"));

    // A name in two files.
    let both = folder(&[(names[0], &one.0, one.1), (names[1], &one.0, one.1)]);
    let stored = Stored::open(both.path()).unwrap();
    assert!(stored.warnings[0].message.starts_with("`a` is also in"), "{}", stored.warnings);

    let gguf = Gguf::new(&[("a", &[32], 2, 0)], 18);
    let lone = folder(&[("m-Q4_0.gguf", &gguf.bytes(), 18)]);
    assert_eq!(Stored::open(lone.path()).unwrap().format(), Format::Gguf);
    let several = folder(&[("x.gguf", &gguf.bytes(), 18), ("y.gguf", &gguf.bytes(), 18)]);
    assert!(Stored::open(several.path()).unwrap_err().to_string().contains("name one"));
    let pickled = folder(&[("pytorch_model.bin", b"x", 0)]);
    assert!(Stored::open(pickled.path()).unwrap_err().to_string().contains("run code"));
    assert!(Stored::open(Path::new("nowhere")).unwrap_err().to_string().contains("T0604"));
}

#[test]
fn weights_are_told_from_tokens() {
    let (bytes, data) = header_bytes(&[("a".to_owned(), Dtype::U8, vec![64])]);
    let folder =
        folder(&[("w", &bytes, data), ("g", b"GGUF____", 0), ("ids", &[7; 64], 0), ("text", b"{ \"a\": 1 }", 0)]);
    for (name, is) in [("w", true), ("g", true), ("ids", false), ("text", false), ("none", false), ("", true)] {
        assert_eq!(is_weights(&folder.path().join(name)), is, "{name}");
    }
}
