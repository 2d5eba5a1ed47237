"""Reference values of a linear map in 8-bit floats with delayed scaling: PyTorch's own float8 types, products in f32.

    python reference.py > reference.txt        (torch 2.15)

Each line: step, what, numbers. Inputs, weights and gradients are closed formulas that the test computes too.
"""

import math

import torch

ROWS, IN, OUT, HISTORY, STEPS = 5, 32, 16, 3, 7
FORWARD, BACKWARD = (torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)


def formula(shape, a, b, size):
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    return (size * torch.sin(a * i + b)).reshape(shape).float()


def cast(x, scale, kind):
    """Narrow numbers as f32, and the scale that was used."""
    dtype, largest = kind
    top = x.abs().max()
    if scale == 0.0:
        scale = largest / top
    return (x * scale).clamp(-largest, largest).to(dtype).float(), scale, top


scales, history = [torch.tensor(0.0)] * 3, []
for step in range(1, STEPS + 1):
    # Sizes that rise and fall by orders of magnitude, so that scales are too large and too small in turn.
    size = 10.0 ** (2.0 * math.sin(1.1 * step))
    x, w = formula((ROWS, IN), 0.7, step, size), formula((OUT, IN), 1.3, 0.1 * step, 0.3)
    bias, g = formula((OUT,), 0.5, step, 1.0), formula((ROWS, OUT), 0.9, 2 * step, 1e-6 * size)
    (x8, sx, ax), (w8, sw, aw), (g8, sg, ag) = cast(x, scales[0], FORWARD), cast(w, scales[1], FORWARD), cast(g, scales[2], BACKWARD)
    y = (x8 @ w8.T) / (sx * sw) + bias
    dx = (g8 @ w8) / (sg * sw)
    dw = (g8.T @ x8) / (sg * sx)
    for what, t in [("y", y), ("dx", dx), ("dw", dw), ("db", g.sum(0))]:
        print(step, what, *(f"{v:.9g}" for v in t.ravel()[:: max(1, t.numel() // 12)]))
    history = [*history, torch.stack([ax, aw, ag])][-HISTORY:]
    tops = torch.stack(history).max(0).values
    scales = list(torch.tensor([FORWARD[1], FORWARD[1], BACKWARD[1]]) / tops)
    print(step, "scale", *(f"{v:.9g}" for v in scales))
