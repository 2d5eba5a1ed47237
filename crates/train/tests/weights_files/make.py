"""Writes the files of this folder with the formats' own programs: pip install torch safetensors numpy gguf."""

import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent

save_file(
    {
        "wide": torch.zeros(3, 5),
        "narrow": torch.zeros(2, 2, 7, dtype=torch.bfloat16),
        "number": torch.tensor(1, dtype=torch.int64),
        "empty": torch.zeros(0, 4, dtype=torch.float16),
        "flags": torch.zeros(6, dtype=torch.bool),
    },
    here / "plain.safetensors",
    metadata={"format": "pt"},
)

name = "model.layers.0.mlp.down_proj.weight"
save_file(
    {
        name: torch.zeros(48, 80, dtype=torch.float8_e4m3fn),
        f"{name}_scale_inv": torch.ones(1, 1),
        "model.norm.weight": torch.ones(48, dtype=torch.bfloat16),
    },
    here / "fp8.safetensors",
)

writer = gguf.GGUFWriter(here / "tiny.gguf", "llama")
writer.add_name("tiny")
writer.add_block_count(1)
writer.add_tokenizer_model("gpt2")
writer.add_token_list(["a", "b", "zwölf"])
writer.add_token_scores([0.0, 1.0, 2.0])
rng = np.random.default_rng(0)
values = lambda *shape: rng.standard_normal(shape).astype(np.float32)
types = gguf.GGMLQuantizationType
for title, shape, kind in [
    ("token_embd.weight", (3, 256), types.Q8_0),
    ("blk.0.attn_q.weight", (2, 256), types.Q4_0),
    ("blk.0.ffn_up.weight", (1, 256), types.Q5_1),
    ("output_norm.weight", (256,), types.F32),
    ("output.weight", (3, 256), types.BF16),
]:
    packed = gguf.quants.quantize(values(*shape), kind)
    writer.add_tensor(title, packed, raw_dtype=kind)
# Types that the package cannot make out of numbers: blocks of zeros.
for title, kind in [("blk.0.ffn_down.weight", types.Q4_K), ("blk.0.ffn_gate.weight", types.Q6_K)]:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    writer.add_tensor(title, np.zeros((2, size * 256 // block), dtype=np.uint8), raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

for tensor in gguf.GGUFReader(here / "tiny.gguf").tensors:
    print(tensor.name, tensor.tensor_type.name, tensor.n_elements, tensor.n_bytes)
