#!/usr/bin/env python3
"""Times training steps of Napkin and of its peers on this CPU, in turns; see README.md. Needs Python 3.10, cargo, Linux."""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import venv

HERE = pathlib.Path(__file__).resolve().parent
TORCH = "torch==2.15.0"

# GPT-2 with tied embeddings, biases, tanh GELU, no dropout.
MODELS = {
    "gpt2-124m": {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "positions": 1024},
    "gpt2-10m": {"layers": 6, "width": 320, "heads": 5, "vocab": 8192, "positions": 256},
    "gpt2-5m": {"layers": 4, "width": 256, "heads": 4, "vocab": 8192, "positions": 256},
}
# Model, batch, sequence length.
WORKLOADS = [("gpt2-124m", 4, 256), ("gpt2-124m", 1, 1024), ("gpt2-10m", 8, 256), ("gpt2-5m", 8, 256)]
# Engine, precision.
ENGINES = [
    ("napkin", "fp32"),
    ("torch", "fp32"),
    ("torch-compile", "fp32"),
    ("candle", "fp32"),
    ("burn", "fp32"),
    ("napkin", "bf16-mixed"),
    ("torch", "bf16-mixed"),
]
# What a machine may have set to help or hinder one of them.
CLEARED = ["OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "KMP_AFFINITY"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def cargo(folder, target, arguments=(), **variables):
    command = ["cargo", "build", "--release", "--locked", "--target-dir", str(target), *arguments]
    subprocess.run(command, cwd=folder, env=os.environ | variables, check=True)


def prepare(engine, scratch):
    """Installs or builds an engine in `scratch`; gives the command that runs its steps."""
    if engine.startswith("torch"):
        python = scratch / "venv" / "bin" / "python"
        if not python.exists():
            say(f"installing {TORCH}")
            venv.create(scratch / "venv", with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", TORCH], check=True)
        return [str(python), str(HERE / "torch_step.py")] + (["--compile"] if engine == "torch-compile" else [])
    say(f"building {engine}")
    if engine == "napkin":
        # As the product is built: for any CPU.
        cargo(HERE.parent.parent, scratch / engine, ["-p", "napkin-cli"])
        return [str(scratch / engine / "release" / "napkin")]
    cargo(HERE / engine, scratch / engine, RUSTFLAGS="-C target-cpu=native")
    return [str(scratch / engine / "release" / f"{engine}-step")]


def napkin_arguments(sizes, asked, scratch, options):
    """Flags of `napkin bench step`, whose first step is the warmup."""
    config = scratch / f"{asked['model']}.json"
    keys = {"n_layer": "layers", "n_embd": "width", "n_head": "heads", "n_positions": "positions", "vocab_size": "vocab"}
    dropout = dict.fromkeys(["embd_pdrop", "attn_pdrop", "resid_pdrop"], 0.0)
    config.write_text(json.dumps({"model_type": "gpt2", **{k: sizes[v] for k, v in keys.items()}, **dropout}))
    words = ["bench", "step", str(config), "--precision", asked["precision"], "--steps", str(options.steps)]
    words += ["--batch", str(asked["batch"]), "--seq-len", str(asked["seq_len"]), "--threads", str(asked["threads"])]
    # A peak keeps it from measuring one first; the figure goes into nothing here.
    return [*words, "--peak", "100GFLOP/s", "--json"]


def run(command, engine, precision, workload, threads, scratch, options):
    """One process; the record it printed with what it was asked for, or None if it failed."""
    model, batch, seq_len = workload
    asked = {"engine": engine, "model": model, "batch": batch, "seq_len": seq_len}
    asked |= {"threads": threads, "precision": precision}
    sizes = MODELS[model]
    if engine == "napkin":
        words = command + napkin_arguments(sizes, asked, scratch, options)
    else:
        flags = {**sizes, "batch": batch, "seq-len": seq_len, "threads": threads, "precision": precision}
        flags |= {"warmup": options.warmup, "steps": options.steps}
        words = command + [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    environment = {k: v for k, v in os.environ.items() if k not in CLEARED}
    environment |= {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        say(f"{engine}: stopped after {options.timeout} s")
        return None
    if done.returncode:
        say(f"{engine} failed:\n{done.stderr.strip()[-2000:]}")
        return None
    record = json.loads(done.stdout)
    record = record.get("result", record)
    losses = record["loss"]
    if abs(losses[0] / math.log(sizes["vocab"]) - 1) > 0.15 or not losses[-1] < losses[0]:
        say(f"{engine} does not do the work: loss {losses}")
        return None
    return record | asked


def step_flop(model, batch, seq_len):
    """FLOP of the matrix products that a step needs: causal pairs of attention once, nothing recomputed."""
    m = MODELS[model]
    weights = 12 * m["layers"] * m["width"] ** 2 + m["width"] * m["vocab"]
    pairs = m["layers"] * m["width"] * (seq_len + 1)
    return 6 * batch * seq_len * (weights + pairs)


def table(records, peak):
    """Markdown: for each workload and number of threads one line per engine, over the samples of all rounds."""
    groups = {}
    for r in records:
        workload = (r["model"], r["batch"], r["seq_len"], r["threads"])
        groups.setdefault(workload, {}).setdefault((r["engine"], r["precision"]), []).append(r)
    out = []
    for (model, batch, seq_len, threads), engines in groups.items():
        flop, tokens = step_flop(model, batch, seq_len), batch * seq_len
        out.append(f"\n**{model}, batch {batch} x sequence {seq_len}, {threads} thread{'s' * (threads > 1)}**, ")
        out[-1] += f"{flop / 1e9:,.1f} GFLOP per step\n"
        share = " | share of peak" if peak else ""
        out.append(f"| engine | s per step: best (median) | CPU s per step | tokens/s | GFLOP/s{share} | peak RSS, MB |")
        out.append("|---|--:|--:|--:|--:|--:|" + "--:|" * bool(peak))
        reference = None
        if ("torch", "fp32") in engines:
            reference = min(s for r in engines["torch", "fp32"] for s in r["seconds"])
        for (engine, precision), runs in sorted(engines.items(), key=lambda e: ENGINES.index(e[0])):
            seconds = [s for r in runs for s in r["seconds"]]
            best, cpu = min(seconds), min(s for r in runs for s in r["cpu_seconds"])
            rss = max(r["peak_rss_bytes"] for r in runs)
            imports = max(r.get("import_rss_bytes", 0) for r in runs)
            speed = f"{tokens / best:,.0f}"
            if reference:
                speed += f" ({reference / best:.2f}x)"
            rate = f"{flop / best / 1e9:,.0f}"
            if peak:
                rate += f" | {flop / best / 1e9 / (peak * threads):.0%}"
            name = f"{engine} {runs[0]['version'].split('+')[0]}, {precision}"
            memory = f"{rss / 1e6:,.0f}" + (f" (start: {imports / 1e6:,.0f})" if imports else "")
            out.append(f"| {name} | {best:.3f} ({statistics.median(seconds):.3f}) | {cpu:.3f} | {speed} | {rate} | {memory} |")
    return "\n".join(out).strip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    names = list(dict.fromkeys(engine for engine, _ in ENGINES))
    parser.add_argument("--scratch", type=pathlib.Path, help="folder of installed peers; kept (default: a fresh one)")
    parser.add_argument("--engines", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--precisions", default="fp32,bf16-mixed")
    parser.add_argument("--workloads", help="such as gpt2-10m:8x256; default: all")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3, help="processes per engine, workload and number of threads")
    parser.add_argument("--steps", type=int, default=5, help="timed steps per process")
    parser.add_argument("--warmup", type=int, default=1, help="steps before these")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds per process")
    parser.add_argument("--peak", type=float, help="FMA peak of one core in GFLOP/s, for the share reached")
    parser.add_argument("--out", type=pathlib.Path, help="append the records to this file, one JSON per line")
    parser.add_argument("--table", type=pathlib.Path, help="only print the table of such a file")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for line in options.table.read_text().splitlines()], options.peak), end="")
        return
    wanted = options.engines.split(",")
    engines = [e for e in ENGINES if e[0] in wanted and e[1] in options.precisions.split(",")]
    workloads = WORKLOADS
    if options.workloads:
        parts = (w.replace(":", "x").split("x") for w in options.workloads.split(","))
        workloads = [(m, int(b), int(s)) for m, b, s in parts]
    scratch = options.scratch or pathlib.Path(tempfile.mkdtemp(prefix="napkin-peers-"))
    scratch = scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    say(f"scratch folder: {scratch}")
    commands = {name: prepare(name, scratch) for name in dict(engines)}
    records = []
    for workload in workloads:
        for threads in map(int, options.threads.split(",")):
            for turn in range(options.rounds):
                # Each round begins with another engine.
                for engine, precision in engines[turn % len(engines) :] + engines[: turn % len(engines)]:
                    record = run(commands[engine], engine, precision, workload, threads, scratch, options)
                    if record is None:
                        continue
                    say(f"{engine} {precision} {workload} {threads}: {min(record['seconds']):.3f} s per step")
                    records.append(record)
                    if options.out:
                        with options.out.open("a") as out:
                            out.write(json.dumps(record) + "\n")
    print(table(records, options.peak), end="")


if __name__ == "__main__":
    main()
