"""Reference values of the optimizers: PyTorch's own where it has them, else NumPy from the papers.

    python optim.py > optim.txt        (torch 2.15, numpy 2.4)

Each line: rule, parameter, then every STRIDE-th weight after STEPS updates. Weights and gradients are closed formulas
that the test computes too; both are f32. Lines `newton-schulz` and `clip` are what their functions say.
"""

import math

import numpy as np
import torch

STEPS = 6
# Name, shape, whether it decays, whether Muon takes it. The second is large enough for 8-bit states, with a short last
# block.
PARAMS = [
    ("matrix", (8, 6), True, True),
    ("large", (64, 65), True, True),
    ("experts", (2, 3, 4), True, True),
    ("table", (5, 4), True, False),
    ("vector", (7,), False, False),
]
STRIDE = {"large": 97}


def weight(index, shape):
    i = np.arange(math.prod(shape), dtype=np.float64)
    return (0.5 * np.sin(0.7 * i + index) + 0.1).reshape(shape).astype(np.float32)


def gradient(index, shape, step):
    i = np.arange(math.prod(shape), dtype=np.float64)
    return (np.cos(1.3 * i + 0.9 * step + index) * 10.0 ** (np.sin(0.37 * i) - 1.0)).reshape(shape).astype(np.float32)


def say(rule, values):
    for (name, *_), value in zip(PARAMS, values):
        flat = np.asarray(value, dtype=np.float32).ravel()[:: STRIDE.get(name, 1)]
        print(rule, name, *(f"{x:.9g}" for x in flat))


def with_torch(make, groups):
    """Runs torch optimizers: `make(params)` for each of the groups of parameter indices, with its options."""
    params = [torch.nn.Parameter(torch.tensor(weight(i, p[1]))) for i, p in enumerate(PARAMS)]
    optimizers = [make[kind]([params[i] for i in indices], **options) for kind, indices, options in groups if indices]
    for step in range(1, STEPS + 1):
        for i, (param, p) in enumerate(zip(params, PARAMS)):
            param.grad = torch.tensor(gradient(i, p[1], step))
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach().numpy() for p in params]


def everything(kind, **options):
    return [(kind, list(range(len(PARAMS))), options)]


def by_decay(kind, decay, **options):
    return [
        (kind, [i for i, p in enumerate(PARAMS) if p[2]], {**options, "weight_decay": decay}),
        (kind, [i for i, p in enumerate(PARAMS) if not p[2]], {**options, "weight_decay": 0.0}),
    ]


def with_numpy(update):
    """Runs `update(w, g, step, decay, state) -> w` on each parameter in f32."""
    out = []
    for i, (name, shape, decays, hidden) in enumerate(PARAMS):
        w, state = weight(i, shape), {}
        for step in range(1, STEPS + 1):
            w = update(w, gradient(i, shape, step), step, 0.1 if decays else 0.0, state).astype(np.float32)
        out.append(w)
    return out


def lion(w, g, step, decay, state, lr=np.float32(1e-2), beta1=np.float32(0.9), beta2=np.float32(0.99)):
    """Chen et al. 2023, algorithm 2."""
    m = state.get("m", np.zeros_like(w))
    direction = np.sign(beta1 * m + (1 - beta1) * g)
    state["m"] = beta2 * m + (1 - beta2) * g
    return w - lr * (direction + np.float32(decay) * w)


def code(signed):
    """Dynamic tree quantisation for 8 bits: 7 decades, the places of the exponent taken from the fraction."""
    values = [0.0, 1.0]
    for i in range(7):
        ends = np.linspace(0.1, 1.0, 2 ** (i if signed else i + 1) + 1)
        means = 10.0 ** (i - 6) * (ends[:-1] + ends[1:]) / 2
        values += [*means, *(-means if signed else [])]
    assert len(values) == 256
    return np.sort(np.array(values)).astype(np.float32)


def quantize(x, table, at_least_one):
    """Blocks of 256: bytes and scales."""
    flat = np.pad(x.ravel(), (0, -x.size % 256)).reshape(-1, 256)
    scale = np.abs(flat).max(1, keepdims=True)
    part = np.divide(flat, scale, out=np.zeros_like(flat), where=scale > 0)
    index = np.abs(part[:, :, None] - table[None, None, :]).argmin(2)
    if at_least_one:
        index = np.where((part > 0) & (table[index] == 0), index + 1, index)
    return (table[index] * scale).ravel()[: x.size].reshape(x.shape)


def adamw_8bit(w, g, step, decay, state, lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8):
    """Dettmers et al. 2022: AdamW on the moments read from bytes, which are then rounded again. Parameters below 4096
    elements keep f32 moments."""
    f = np.float32
    m, v = state.get("m", np.zeros_like(w)), state.get("v", np.zeros_like(w))
    m = m + f(1 - beta1) * (g - m)
    v = f(beta2) * v + f(1 - beta2) * g * g
    w = w * f(1 - lr * decay)
    w = w - f(lr / (1 - beta1**step)) * m / (np.sqrt(v) / f(math.sqrt(1 - beta2**step)) + f(eps))
    if w.size >= 4096:
        m, v = quantize(m, code(True), False), quantize(v, code(False), True)
    state["m"], state["v"] = m, v
    return w


def muon():
    hidden = [i for i, p in enumerate(PARAMS) if p[3]]
    rest = [(i, p[2]) for i, p in enumerate(PARAMS) if not p[3]]
    params = [torch.nn.Parameter(torch.tensor(weight(i, p[1]))) for i, p in enumerate(PARAMS)]
    # torch's Muon takes matrices only: a stack of experts is a parameter for each.
    matrices = [m for i in hidden for m in (params[i].detach().unbind(0) if params[i].ndim == 3 else [params[i].detach()])]
    matrices = [torch.nn.Parameter(m.clone()) for m in matrices]
    first = torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    second = torch.optim.AdamW(
        [
            {"params": [params[i] for i, decays in rest if decays], "weight_decay": 0.1},
            {"params": [params[i] for i, decays in rest if not decays], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    for step in range(1, STEPS + 1):
        grads = []
        for i, (param, p) in enumerate(zip(params, PARAMS)):
            g = torch.tensor(gradient(i, p[1], step))
            param.grad = g
            if i in hidden:
                grads += g.unbind(0) if g.ndim == 3 else [g]
        for matrix, g in zip(matrices, grads, strict=True):
            matrix.grad = g
        first.step()
        second.step()
    out, matrices = [], iter(matrices)
    for i, (name, shape, *_) in enumerate(PARAMS):
        if i not in hidden:
            out.append(params[i].detach())
        elif len(shape) == 3:
            out.append(torch.stack([next(matrices).detach() for _ in range(shape[0])]))
        else:
            out.append(next(matrices).detach())
    return out


def newton_schulz(index, shape):
    """Keller Jordan's iteration in f64."""
    x = gradient(index, shape, 1).astype(np.float64)
    tall = shape[0] > shape[1]
    x = x.T if tall else x
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


def clipped(max_norm):
    """torch.nn.utils.clip_grad_norm_ on the gradients of the first step: the norm, then one element of each."""
    params = [torch.nn.Parameter(torch.zeros(p[1])) for p in PARAMS]
    for i, (param, p) in enumerate(zip(params, PARAMS)):
        param.grad = torch.tensor(gradient(i, p[1], 1))
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    print("clip", f"{max_norm:g}", *(f"{x:.9g}" for x in [norm.item(), *(p.grad.ravel()[3].item() for p in params)]))


o = torch.optim
say("sgd", with_torch({"k": o.SGD}, everything("k", lr=1e-2)))
say("sgd-momentum", with_torch({"k": o.SGD}, everything("k", lr=1e-2, momentum=0.9)))
say("adagrad", with_torch({"k": o.Adagrad}, everything("k", lr=1e-2, eps=1e-8)))
say("rmsprop", with_torch({"k": o.RMSprop}, everything("k", lr=1e-2, alpha=0.999, eps=1e-8)))
say("adam", with_torch({"k": o.Adam}, everything("k", lr=1e-2)))
say("adamw", with_torch({"k": o.AdamW}, by_decay("k", 0.1, lr=1e-2)))
# The square of torch's eps is the constant of the paper.
say("adafactor", with_torch({"k": o.Adafactor}, by_decay("k", 0.1, lr=1e-2, eps=(1e-15, 1e-3))))
say("adam-8bit", with_numpy(adamw_8bit))
say("muon", muon())
say("lion", with_numpy(lion))
for index, shape in [(0, (8, 6)), (1, (3, 10)), (2, (5, 5))]:
    print("newton-schulz", "x".join(map(str, shape)), *(f"{v:.15g}" for v in newton_schulz(index, shape).ravel()))
for max_norm in [1.0, 1000.0]:
    clipped(max_norm)
