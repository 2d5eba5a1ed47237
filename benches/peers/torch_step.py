"""Training steps of a GPT-2 in PyTorch on the CPU, timed; prints one line of JSON (see README.md).

Eager mode the way its users write it: fused attention (SDPA), fused AdamW, gradients set to none.
"""

import argparse
import json
import time


def status(key):
    """A line of /proc/self/status in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


import torch
import torch.nn.functional as F
from torch import nn

IMPORT_RSS = status("VmRSS")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(h, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(a.vocab, a.width), nn.Embedding(a.positions, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.vocab, bias=False)
        for p in self.parameters():
            nn.init.normal_(p, std=0.02) if p.ndim > 1 else None
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    for size in ["layers", "width", "heads", "vocab", "positions", "batch", "seq-len", "threads", "warmup", "steps"]:
        parser.add_argument(f"--{size}", type=int, required=True)
    parser.add_argument("--precision", choices=["fp32", "bf16-mixed"], default="fp32")
    parser.add_argument("--compile", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = GPT2(a)
    run = torch.compile(model) if a.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    ids = torch.randint(a.vocab, (a.batch, a.seq_len + 1))
    tokens, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    seconds, cpu_seconds, losses = [], [], []
    for _ in range(a.warmup + a.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16-mixed"):
            loss = run(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - wall)
        cpu_seconds.append(time.process_time() - cpu)
        losses.append(loss.item())
    print(
        json.dumps(
            {
                "version": torch.__version__,
                "parameters": sum(p.numel() for p in model.parameters()),
                "seconds": seconds[a.warmup :],
                "cpu_seconds": cpu_seconds[a.warmup :],
                "loss": losses,
                "import_rss_bytes": IMPORT_RSS,
                "peak_rss_bytes": status("VmHWM"),
            }
        )
    )


if __name__ == "__main__":
    main()
