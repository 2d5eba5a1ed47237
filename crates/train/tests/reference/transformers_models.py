#!/usr/bin/env python3
"""Small models as transformers saves them, and their logits, for tests/transformers_models.rs.

    pip install torch transformers
    python transformers_models.py            # writes the folders models/NAME next to this file
    python transformers_models.py FOLDER...  # loads models that were exported, and compares them with what is stored

| folder      | what is special                                                                             |
|-------------|---------------------------------------------------------------------------------------------|
| gpt2        | float32, one file                                                                           |
| gpt2_hub    | the same model as old releases hold it: no prefix, masks as buffers, the tied head stored    |
| llama       | bfloat16, several files with an index, untied head, grouped queries, another rope_theta       |
| llama_tied  | float16, tied head                                                                          |

`mixers/NAME` is a model of the config `nn/tests/data/tiny/NAME.json`, in float32, for every family in MIXERS: models that mix
positions by other means than attention, and some of a form of their own.

Each folder has `logits.json`: token ids of two sequences, and the logits of the float32 model with these weights.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent / "models"
MIXERS_HERE = pathlib.Path(__file__).parent / "mixers"
TINY = pathlib.Path(__file__).parents[3] / "nn/tests/data/tiny"
MIXERS = [
    "mamba", "falcon_mamba", "mamba2", "bamba", "falcon_h1", "qwen3_5_text", "lfm2", "recurrent_gemma",
    "zamba", "zamba2", "ctrl", "rwkv", "xlstm", "longcat_flash", "xlnet", "deepseek_v4",
]
# Stored with all experts in one tensor, as the model holds them; transformers would write each by itself.
WHOLE_EXPERTS = ["longcat_flash", "deepseek_v4"]
VOCAB = 29
TOKENS = [[3, 1, 4, 1, 5, 9, 2], [28, 0, 17, 17, 6, 11, 23]]

GPT2 = dict(
    model_type="gpt2", n_embd=16, n_layer=2, n_head=4, n_positions=12, vocab_size=VOCAB,
    bos_token_id=None, eos_token_id=None, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
)
LLAMA = dict(
    model_type="llama", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=32, rms_norm_eps=1e-5,
    bos_token_id=None, eos_token_id=None, pad_token_id=None,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)
MODELS = {
    "gpt2": (GPT2, torch.float32, "1GB"),
    "llama": (LLAMA | {"tie_word_embeddings": False}, torch.bfloat16, "6KB"),
    "llama_tied": (LLAMA | {"tie_word_embeddings": True}, torch.float16, "1GB"),
}


def made(config):
    """A model whose weights are large enough that every part of it shows in the logits."""
    torch.manual_seed(20)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    with torch.no_grad():
        for name, param in model.named_parameters():
            is_norm = "ln_" in name or "norm" in name
            param.copy_(torch.randn(param.shape) * 0.3 + (1.0 if is_norm and name.endswith("weight") else 0.0))
        for name, buffer in model.named_buffers():
            if name.endswith("tid2eid"):  # experts by token id, which only a checkpoint brings
                rows, top_k = buffer.shape
                order = [torch.randperm(config["n_routed_experts"])[:top_k] for _ in range(rows)]
                buffer.copy_(torch.stack(order))
    return model.eval()


def logits(folder):
    # Loaded anew: casting a whole model casts the frequencies of its rotation too.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        # The states that xLSTM keeps have sizes that small models do not fit.
        return model(torch.tensor(TOKENS), use_cache=False).logits


def save_logits(folder):
    values = [float(f"{x:.9g}") for x in logits(folder).flatten().tolist()]
    text = json.dumps({"tokens": TOKENS, "logits": values})
    (folder / "logits.json").write_text(text + "\n")


def write():
    shutil.rmtree(HERE, ignore_errors=True)
    for name, (config, dtype, shard) in MODELS.items():
        folder = HERE / name
        made(config).to(dtype).save_pretrained(folder, max_shard_size=shard)
        (folder / "generation_config.json").unlink(missing_ok=True)
        save_logits(folder)
    hub = HERE / "gpt2_hub"
    hub.mkdir()
    shutil.copy(HERE / "gpt2/config.json", hub)
    shutil.copy(HERE / "gpt2/logits.json", hub)
    tensors = load_file(HERE / "gpt2/model.safetensors")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    n = GPT2["n_positions"]
    for layer in range(GPT2["n_layer"]):
        tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(n, n, dtype=torch.uint8)).view(1, 1, n, n)
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, hub / "model.safetensors", metadata={"format": "pt"})


def write_mixers():
    shutil.rmtree(MIXERS_HERE, ignore_errors=True)
    for name in MIXERS:
        folder = MIXERS_HERE / name
        config = json.loads((TINY / f"{name}.json").read_text())
        made(config).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        # As written by hand: what transformers adds is of no use here.
        (folder / "config.json").write_text((TINY / f"{name}.json").read_text())
        save_logits(folder)
        if name in WHOLE_EXPERTS:
            tensors = {key: tensor.contiguous() for key, tensor in made(config).state_dict().items()}
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def check(folder):
    """A folder `NAME` or `NAME-dtype` that was exported from the model `NAME` here."""
    name = folder.name.split("-")[0]
    stored = json.loads((HERE / name / "logits.json").read_text())
    ours, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    theirs = AutoModelForCausalLM.from_pretrained(HERE / name.removesuffix("_hub"))
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    same_dtype = ours.dtype == theirs.dtype
    equal = all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values()))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    off = (logits(folder).flatten() - torch.tensor(stored["logits"])).abs().max().item()
    print(f"{folder}: {ours.dtype}, tensors equal {equal}, logits off by {off:.2g}")
    assert equal or not same_dtype


if __name__ == "__main__":
    folders = [pathlib.Path(argument) for argument in sys.argv[1:]]
    for folder in folders:
        check(folder)
    if not folders:
        write()
        write_mixers()
