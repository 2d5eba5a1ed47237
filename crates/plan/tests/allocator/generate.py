"""Writes random.csv: what PyTorch's own allocator makes of requests that `allocator.rs` draws the same way.

    python generate.py DRIVE > random.csv     # DRIVE: the program that README.md builds
"""

import os
import subprocess
import sys

MASK = (1 << 64) - 1
EVENTS = 3000
EVERY = 500
GIB = 1 << 30

CONFS = [
    "",
    "max_split_size_mb:32",
    "max_split_size_mb:128,max_non_split_rounding_mb:64",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[1:1,4:2,>:4]",
    "large_segment_size_mb:64",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:32",
    "expandable_segments:True,roundup_power2_divisions:4",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.95,max_split_size_mb:20",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.8,expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:20",
]
# Bytes of the device, and the largest power of two of a request; without a limit the device is 2^50.
DEVICES = [(1 << 50, 30), (4 * GIB, 30), (1 * GIB, 27), (GIB // 4, 25)]


def script(seed, largest):
    """The requests, one a line, with a `p` where the counters are read."""
    state = seed

    def draw(end):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        return (state >> 33) % end

    live, lines = [], []
    for event in range(1, EVENTS + 1):
        # More is taken in one half of each 200 events and more given back in the other, as in a step.
        takes = 70 if event % 200 < 100 else 30
        if not live or draw(100) < takes:
            power = draw(largest + 1)
            lines.append(f"a {event} {(1 << power) + draw(1 << power)}")
            live.append(event)
        else:
            at = draw(len(live))
            lines.append(f"f {live[at]}")
            live[at] = live[-1]
            live.pop()
        if draw(1000) == 0:
            lines.append("c")
        if event % EVERY == 0:
            lines.append(f"p{event}")
    return "\n".join(lines) + "\n"


def main():
    print("conf,device,largest,seed,event,requested,allocated,peak_allocated,inactive_split,reserved,peak_reserved,"
          "segments,mallocs,frees,retries,out_of_memory")
    for conf in CONFS:
        for seed, (device, largest) in enumerate(DEVICES, 1):
            env = dict(os.environ, PYTORCH_ALLOC_CONF=conf, FAKE_DEVICE_BYTES=str(device))
            out = subprocess.run([sys.argv[1]], input=script(seed, largest), env=env, capture_output=True, text=True)
            if out.returncode:
                sys.exit(out.stderr)
            for line in out.stdout.splitlines():
                event, *counters = line.split()
                if event.startswith("p"):
                    print(",".join([f'"{conf}"', str(device), str(largest), str(seed), event[1:], *counters]))


main()
