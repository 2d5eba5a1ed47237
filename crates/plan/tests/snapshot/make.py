"""Writes the snapshots of this folder: what `torch.cuda.memory._dump_snapshot` leaves behind after a training step of a small
GPT-2, with the sizes of PyTorch's own tensors and the stacks of its own code.

    python make.py        # needs torch and transformers, no GPU
"""

import pickle

import torch
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = dict(n_layer=2, n_embd=64, n_head=4, vocab_size=512, n_positions=128)
BASE = 0x7F0000000000


def frame(filename, line, name):
    return {"filename": filename, "line": line, "name": name}


TORCH = "/opt/env/lib/python3.11/site-packages/torch"
USER = [frame("/home/me/train.py", 40, "main"), frame("/home/me/train.py", 60, "<module>")]
MOVED = [frame("??", 0, "at::native::empty_cuda"), frame(f"{TORCH}/nn/modules/module.py", 1160, "convert"),
         frame(f"{TORCH}/nn/modules/module.py", 903, "_apply")] + USER
STATES = [frame("??", 0, "at::native::empty_like"), frame(f"{TORCH}/optim/adamw.py", 130, "_init_group"),
          frame(f"{TORCH}/optim/adamw.py", 160, "step")] + USER
GRADIENTS = [frame("??", 0, "at::native::empty"), frame(f"{TORCH}/autograd/graph.py", 825, "_engine_run_backward"),
             frame(f"{TORCH}/_tensor.py", 581, "backward")] + USER
WORKSPACE = [frame("??", 0, "at::cuda::getCurrentCUDABlasHandle"), frame(f"{TORCH}/nn/modules/linear.py", 125, "forward")] + USER
OWN = [frame("??", 0, "at::native::empty_cuda"), frame("/home/me/data.py", 12, "preload")] + USER


def requests():
    model = GPT2LMHeadModel(GPT2Config(**SIZES))
    parameters = [p.numel() * p.element_size() for p in model.parameters()]
    yield from ((size, MOVED) for size in parameters)
    yield 2 * 128 * 8, USER
    yield 2 * 128 * 8, USER
    yield 8519680, WORKSPACE
    yield from ((size, GRADIENTS) for size in parameters)
    yield from ((size, STATES) for size in parameters for _ in range(2))
    yield 3333333, OWN


def segments(live):
    """Blocks one after another in segments of the allocator's sizes, with what is left at the end of each free."""
    out, address = [], BASE
    for small in (True, False):
        segment = None
        for size, frames in live:
            rounded = -(-size // 512) * 512
            if (rounded <= 1 << 20) != small:
                continue
            if segment is None or segment["total_size"] - segment["used"] < rounded:
                total = 2 << 20 if small else 20 << 20
                segment = dict(device=0, address=address, total_size=total, used=0, stream=0,
                               segment_type="small" if small else "large", segment_pool_id=(0, 0), is_expandable=False,
                               blocks=[], frames=[])
                out.append(segment)
                address += total
            segment["blocks"].append(dict(address=segment["address"] + segment["used"], size=rounded, requested_size=size,
                                          state="active_allocated", frames=frames))
            segment["used"] += rounded
    for segment in out:
        used = segment.pop("used")
        segment["allocated_size"] = segment["active_size"] = used
        segment["requested_size"] = sum(block["requested_size"] for block in segment["blocks"])
        if used < segment["total_size"]:
            segment["blocks"].append(dict(address=segment["address"] + used, size=segment["total_size"] - used,
                                          requested_size=0, state="inactive", frames=[]))
    return out


def main():
    live = list(requests())
    whole = segments(live)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
                "expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 0}}
    snapshot = {"segments": whole, "device_traces": [[]], "allocator_settings": settings, "external_annotations": []}
    with open("gpt2.pickle", "wb") as file:
        pickle.dump(snapshot, file)
    # The same without stacks, as it is where no history was recorded, in every protocol and in the form of PyTorch 1.
    bare = segments([(size, []) for size, _ in live[:40]])
    for protocol in (2, 3, 5):
        with open(f"protocol{protocol}.pickle", "wb") as file:
            pickle.dump({"segments": bare, "device_traces": [[]]}, file, protocol=protocol)
    old = []
    for segment in bare:
        blocks = []
        for block in segment["blocks"]:
            history = [dict(addr=block["address"], real_size=block["requested_size"], frames=USER)]
            blocks.append(dict(size=block["size"], state=block["state"], **({"history": history} if block["frames"] == [] and
                                                                            block["state"] != "inactive" else {})))
        old.append(dict(device=1, address=segment["address"], total_size=segment["total_size"], stream=0, blocks=blocks))
    with open("old.pickle", "wb") as file:
        pickle.dump(old, file, protocol=2)
    for name, them in (("gpt2", whole), ("bare", bare)):
        print(name, "reserved", sum(s["total_size"] for s in them), "allocated", sum(s["allocated_size"] for s in them),
              "requested", sum(s["requested_size"] for s in them), "segments", len(them))
    parameters = [size for size, frames in live if frames is MOVED]
    print("parameters", len(parameters), sum(parameters), sum(-(-size // 512) * 512 for size in parameters))
    print("torch", torch.__version__)


main()
