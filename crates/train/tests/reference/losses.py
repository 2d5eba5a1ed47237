#!/usr/bin/env python3
"""Losses and gradients of two small models as PyTorch and transformers compute them, for tests/pytorch_losses.rs.

    pip install torch transformers
    python losses.py            # writes gpt2.json and llama.json next to this file

No weights and no tokens are stored: both sides make them from integers, so that they are the same to the bit.

* `bits(name, i)` is the top 16 bits of the i-th output of SplitMix64 whose state is the FNV-1a hash of `name`.
* A parameter's element i (row-major) is (bits(name, i) - 32768) / 2^19, so uniform in +-1/16; weights of norms have 1
  added. All are exact in float32.
* Token i of a sequence is drawn, with bits("tokens", n) = u and n counted over all tokens of the run, as u^2 v / 2^32
  (small ids are more likely) if i = 0 or u is a multiple of 4, else as (5 previous + 1) mod v: there is something to learn.

A gradient is stored as its norm, a few of its elements, and its products with vectors of random signs. If a gradient is
off by d, the expected square of what such a product is off by is |d|^2, wherever the error is: a few products estimate
the norm of the error over all elements. Sign i of product j is + if bit j of bits("sign NAME", i) is set.
"""

import json
import math
import pathlib

import torch
import transformers

MASK = (1 << 64) - 1
STEPS = 50
BATCH, SEQ_LEN = 3, 72
PROJECTIONS = 12
SAMPLES = 12

CONFIGS = {
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 80,
        "vocab_size": 389,
        "bos_token_id": None,
        "eos_token_id": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": True,
    },
    "llama": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 172,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 389,
        "max_position_embeddings": 80,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
}

RUNS = [
    {"name": "constant", "clip": None, "warmup": 0, "min_lr": 1e-3},
    {"name": "clip_cosine", "clip": 1.5, "warmup": 10, "min_lr": 1e-4},
]
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}


def stream(name):
    """FNV-1a, 64 bits."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    return state


def bits(state, i):
    """Top 16 bits of the i-th output of SplitMix64 from `state`."""
    z = (state + (i + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) >> 48


def initial(name, shape):
    state = stream(name)
    values = [(bits(state, i) - 32768) / 2**19 for i in range(math.prod(shape))]
    tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
    is_norm = len(shape) == 1 and name.endswith("weight")
    return tensor + 1 if is_norm else tensor


def batches(vocabulary):
    state = stream("tokens")
    n = 0
    for _ in range(STEPS):
        batch = []
        for _ in range(BATCH):
            sequence = []
            for i in range(SEQ_LEN):
                u = bits(state, n)
                n += 1
                fresh = i == 0 or u % 4 == 0
                sequence.append((u * u * vocabulary) >> 32 if fresh else (5 * sequence[-1] + 1) % vocabulary)
            batch.append(sequence)
        yield torch.tensor(batch)


def build(config, dtype):
    config = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)
    model.train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(name, parameter.shape))
    return model


def learning_rate(run, step):
    """Linear warmup to the full rate, then half a cosine down to `min_lr` at the last step."""
    if step < run["warmup"]:
        return ADAMW["lr"] * (step + 1) / run["warmup"]
    progress = (step - run["warmup"]) / (STEPS - 1 - run["warmup"])
    return run["min_lr"] + 0.5 * (ADAMW["lr"] - run["min_lr"]) * (1 + math.cos(math.pi * progress))


def train(config, run, dtype):
    """Losses and norms of gradients (before clipping) of each step."""
    model = build(config, dtype)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": ADAMW["weight_decay"]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (ADAMW["beta1"], ADAMW["beta2"])
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=betas, eps=ADAMW["eps"])
    losses, norms = [], []
    for step, tokens in enumerate(batches(config["vocab_size"])):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(run, step)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        limit = math.inf if run["clip"] is None else run["clip"]
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def first_gradients(config, dtype):
    model = build(config, dtype)
    tokens = next(batches(config["vocab_size"]))
    model(tokens, labels=tokens).loss.backward()
    return {name: parameter.grad.double().flatten() for name, parameter in model.named_parameters()}


def summary(name, gradient, exact):
    state = stream("sign " + name)
    words = torch.tensor([bits(state, i) for i in range(len(gradient))])
    products = [((words >> j & 1) * 2 - 1).double().dot(gradient).item() for j in range(PROJECTIONS)]
    every = max(1, len(gradient) // SAMPLES)
    return {
        "elements": len(gradient),
        "norm": gradient.norm().item(),
        "distance_of_float32_from_float64": (gradient - exact).norm().item() / exact.norm().item(),
        "sample_every": every,
        "sample": gradient[::every].tolist(),
        "products": products,
    }


def shorten(value, digits):
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [shorten(v, digits) for v in value]
    if isinstance(value, dict):
        return {k: shorten(v, digits) for k, v in value.items()}
    return value


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = pathlib.Path(__file__).parent
    for name, config in CONFIGS.items():
        runs = []
        for run in RUNS:
            losses, norms = train(config, run, torch.float32)
            exact, _ = train(config, run, torch.float64)
            distance = max(abs(a - b) / b for a, b in zip(losses, exact))
            print(f"{name} {run['name']}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, float64 within {distance:.1e}")
            runs.append({**run, "distance_of_float32_from_float64": distance, "losses": losses, "grad_norms": norms})
        gradients, exact = first_gradients(config, torch.float32), first_gradients(config, torch.float64)
        summaries = {key: summary(key, gradient, exact[key]) for key, gradient in gradients.items()}
        worst = max(summaries.values(), key=lambda s: s["distance_of_float32_from_float64"])
        print(f"{name} gradients: float64 within {worst['distance_of_float32_from_float64']:.1e}")
        report = {
            "made_by": "losses.py",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "config": config,
            "batch": BATCH,
            "seq_len": SEQ_LEN,
            "adamw": ADAMW,
            "runs": runs,
            "gradients": summaries,
        }
        text = json.dumps(shorten(report, 9), indent=1)
        # Lists of numbers on one line each.
        lines, inside = [], None
        for line in text.split("\n"):
            if inside is not None:
                inside += line.strip() if line.strip().startswith("]") else line.strip() + " "
                if line.strip().startswith("]"):
                    lines.append(inside.replace(" ]", "]"))
                    inside = None
            elif line.rstrip().endswith("[") and not line.strip().startswith('"runs"'):
                inside = line
            else:
                lines.append(line)
        (folder / f"{name}.json").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
