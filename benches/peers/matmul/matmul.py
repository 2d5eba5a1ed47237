"""Matrix products of Napkin beside OpenBLAS (numpy), PyTorch and Rust crates, in one process, taking turns.

    python matmul.py LIBRARY --threads 1 [--rounds 7] [--only SUBSTRING]

LIBRARY is the shared library that `cargo build --release` makes of this folder. Each round times every peer on a shape;
what is printed is the fastest round in GFLOP/s, by wall clock, and the ratio of Napkin to the fastest peer. `--cpu` counts
CPU time of the process instead, for a machine that is not quiet.
"""

import argparse
import ctypes
import os
import sys
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("library")
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--rounds", type=int, default=7)
arguments.add_argument("--seconds", type=float, default=0.15, help="least time of one measurement")
arguments.add_argument("--only", default="")
arguments.add_argument("--peers", default="")
arguments.add_argument("--cpu", action="store_true")
arguments.add_argument("--markdown", action="store_true")
arguments = arguments.parse_args()

THREADS = arguments.threads
for name in ("OPENBLAS_CORETYPE", "MKL_DEBUG_CPU_TYPE"):
    os.environ.pop(name, None)
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MATMUL_NUM_THREADS"):
    os.environ[name] = str(THREADS)

import numpy as np  # noqa: E402  (after the environment is set)
import torch  # noqa: E402

torch.set_num_threads(THREADS)

# name, m, n, k, first factor transposed, second transposed
H, V, ROWS = 768, 50257, 1024
SHAPES = [("1024 x 1024 x 1024", 1024, 1024, 1024, False, False)]
for name, n, k in (("qkv", 3 * H, H), ("attention out", H, H), ("mlp up", 4 * H, H), ("mlp down", H, 4 * H)):
    SHAPES += [
        (f"{name}: x W", ROWS, n, k, False, False),
        (f"{name}: dy W^T", ROWS, k, n, False, True),
        (f"{name}: x^T dy", k, n, ROWS, True, False),
    ]
SHAPES += [
    ("logits: x W^T", ROWS, V, H, False, True),
    ("logits: dy W", ROWS, H, V, False, False),
    ("logits: dy^T x", V, H, ROWS, True, False),
    ("head: q k^T", 256, 256, 64, False, True),
    ("head: p v", 256, 64, 256, False, False),
    ("one row: x W", 1, 4 * H, H, False, False),
    ("one row: x W^T", 1, 4 * H, H, False, True),
    ("one row: logits, x W^T", 1, V, H, False, True),
    ("four rows: x W", 4, 4 * H, H, False, False),
    ("four rows: x W^T", 4, 4 * H, H, False, True),
    ("eight rows: x W", 8, 4 * H, H, False, False),
    ("eight rows: x W^T", 8, 4 * H, H, False, True),
]


class Call(ctypes.Structure):
    _fields_ = [
        ("m", ctypes.c_size_t), ("n", ctypes.c_size_t), ("k", ctypes.c_size_t),
        ("a", ctypes.c_void_p), ("a_row", ctypes.c_ssize_t), ("a_col", ctypes.c_ssize_t),
        ("b", ctypes.c_void_p), ("b_row", ctypes.c_ssize_t), ("b_col", ctypes.c_ssize_t),
        ("c", ctypes.c_void_p), ("threads", ctypes.c_size_t),
    ]  # fmt: skip


library = ctypes.CDLL(arguments.library)
clock = time.process_time if arguments.cpu else time.perf_counter


def peers(m, n, k, first, second):
    """For each peer a function that makes the product so many times, and the result it writes."""
    generator = np.random.default_rng(0)
    a = generator.standard_normal((k, m) if first else (m, k), dtype=np.float32)
    b = generator.standard_normal((n, k) if second else (k, n), dtype=np.float32)
    c = np.empty((m, n), np.float32)
    a_strides, b_strides = ((1, m) if first else (k, 1)), ((1, k) if second else (n, 1))
    ta, tb, tc = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(c)
    ha, hb, hc = ta.bfloat16(), tb.bfloat16(), torch.empty(m, n, dtype=torch.bfloat16)

    def rust(name, a, b, c):
        call = Call(m, n, k, a, *a_strides, b, *b_strides, c, THREADS)
        return lambda times: getattr(library, name)(ctypes.byref(call), ctypes.c_size_t(times))

    def python(function, a, b, c):
        a, b = (a.T if first else a), (b.T if second else b)
        return lambda times: [function(a, b, out=c) for _ in range(times)]

    floats = (a.ctypes.data, b.ctypes.data, c.ctypes.data)
    halves = (ha.data_ptr(), hb.data_ptr(), hc.data_ptr())
    out = {
        "napkin": (rust("napkin_f32", *floats), tc),
        "openblas": (python(np.matmul, a, b, c), tc),
        "torch": (python(torch.mm, ta, tb, tc), tc),
        "gemm": (rust("gemm_f32", *floats), tc),
        "faer": (rust("faer_f32", *floats), tc),
        "matrixmultiply": (rust("matrixmultiply_f32", *floats), tc),
        "napkin bf16": (rust("napkin_bf16", *halves), hc),
        "torch bf16": (python(torch.mm, ha, hb, hc), hc),
    }
    wanted = [name for name in arguments.peers.split(",") if name]
    keep = (a, b, c, ha, hb, hc)  # the Rust peers hold addresses only
    return {name: peer for name, peer in out.items() if not wanted or name in wanted}, keep


def main():
    print(f"numpy {np.__version__}, torch {torch.__version__}, {THREADS} threads", file=sys.stderr)
    header = None
    for name, m, n, k, first, second in SHAPES:
        if arguments.only not in name:
            continue
        found, _keep = peers(m, n, k, first, second)
        if header is None:
            header = list(found)
            columns = ["product", "m n k", *header, "napkin / best"]
            if arguments.markdown:
                print("| " + " | ".join(columns) + " |\n|---|---|" + "--:|" * (len(header) + 1))
            else:
                print(f"{'product':>24} {'m n k':>16} " + " ".join(f"{x[:11]:>11}" for x in columns[2:]))
        flop = 2 * m * n * k
        reference = None
        best = {}
        for label, (run, result) in found.items():
            run(1)
            got = result.float().clone()
            reference = got if reference is None else reference
            error = (got - reference).abs().max() / reference.abs().max()
            assert error < (1e-2 if "bf16" in label else 1e-5), f"{label} differs by {error} on {name}"
        times = {}
        for label, (run, _) in found.items():
            begin = time.perf_counter()
            run(1)
            times[label] = max(1, int(arguments.seconds / (time.perf_counter() - begin)))
        for _ in range(arguments.rounds):
            for label, (run, _) in found.items():
                if THREADS > 1:
                    # The threads of some libraries spin on for a while, on the core that the next one needs.
                    time.sleep(0.25)
                run(1)
                begin = clock()
                run(times[label])
                best[label] = min(best.get(label, 1e9), (clock() - begin) / times[label])
        speed = {label: flop / seconds / 1e9 for label, seconds in best.items()}
        rivals = [x for label, x in speed.items() if "napkin" not in label and "bf16" not in label]
        ratio = speed.get("napkin", 0) / max(rivals, default=1)
        if arguments.markdown:
            cells = [name, f"{m} {n} {k}", *(f"{x:.1f}" for x in speed.values()), f"{ratio:.2f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
        else:
            cells = " ".join(f"{x:11.1f}" for x in speed.values())
            print(f"{name:>24} {f'{m} {n} {k}':>16} {cells} {ratio:11.2f}", flush=True)


main()
