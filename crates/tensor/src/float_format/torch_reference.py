"""Prints `torch_reference.rs`: what PyTorch's own casts give, as tables and 64-bit FNV-1a hashes.

Needs torch 2.12 or later and ml_dtypes (which still converts to E4M3 without saturating, as torch did before 2.12):

    python crates/tensor/src/float_format/torch_reference.py > crates/tensor/src/float_format/torch_reference.rs

A hash runs over the output codes, little-endian, in the order of the inputs. NaN codes are replaced by the format's positive
quiet NaN first: payloads and signs of NaN differ between PyTorch's own scalar and vector paths.
"""

import ml_dtypes
import numpy
import torch

INT = {2: torch.int16, 1: torch.int8, 4: torch.int32}
UINT_MASK = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF}
FORMATS = {
    "f32": (torch.float32, 4, 0x7FC00000),
    "f16": (torch.float16, 2, 0x7E00),
    "bf16": (torch.bfloat16, 2, 0x7FC0),
    "f8e4m3": (torch.float8_e4m3fn, 1, 0x7F),
    "f8e5m2": (torch.float8_e5m2, 1, 0x7E),
}


def from_codes(codes, name):
    dtype, size, _ = FORMATS[name]
    wrapped = [c - (1 << 8 * size) if c >> (8 * size - 1) else c for c in codes]
    return torch.tensor(wrapped, dtype=INT[size]).view(dtype)


def codes_of(tensor, name):
    dtype, size, nan = FORMATS[name]
    assert tensor.dtype == dtype
    is_nan = tensor.to(torch.float32).isnan().tolist()
    codes = tensor.view(INT[size]).tolist()
    return [nan if n else c & UINT_MASK[size] for c, n in zip(codes, is_nan)]


def fnv1a(codes, size):
    state = 0xCBF29CE484222325
    for byte in b"".join(c.to_bytes(size, "little") for c in codes):
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


def hash_of(source, target, codes):
    out = codes_of(from_codes(codes, source).to(FORMATS[target][0]), target)
    return fnv1a(out, FORMATS[target][1])


def non_saturating_e4m3(source, codes):
    """ml_dtypes instead of torch: overflow to NaN."""
    values = from_codes(codes, source).to(torch.float32).numpy()
    with numpy.errstate(all="ignore"):
        out = values.astype(ml_dtypes.float8_e4m3fn).view(numpy.uint8).tolist()
    return fnv1a([0x7F if c & 0x7F == 0x7F else c for c in out], 1)


ALL16 = range(1 << 16)
INPUTS = {
    # Every code of the 16-bit formats.
    "all": ALL16,
    # f32 codes spread over the whole range with all low bits in play.
    "scattered": [i * 0x9E3779B1 & 0xFFFFFFFF for i in ALL16],
    # f32 codes at, just below and just above the middle between bf16 neighbours.
    "bf16_midpoints": [i << 16 | low for i in ALL16 for low in (0x7FFF, 0x8000, 0x8001)],
    # The same for f16 (13 bits dropped), over the exponents where f16 has values.
    "f16_midpoints": [
        s << 31 | e << 23 | m << 13 | low
        for s in (0, 1) for e in range(100, 145) for m in range(1 << 10) for low in (0x0FFF, 0x1000, 0x1001)
    ],
    # And for both 8-bit formats (20 and 21 bits dropped).
    "fp8_midpoints": [
        s << 31 | e << 23 | m << 19 | low
        for s in (0, 1) for e in range(100, 145) for m in range(1 << 4) for low in (0, 1, 0x7FFFF)
    ],
}
CASES = [
    ("f16", "f32", "all"), ("bf16", "f32", "all"),
    ("f16", "bf16", "all"), ("f16", "f8e4m3", "all"), ("f16", "f8e5m2", "all"),
    ("bf16", "f16", "all"), ("bf16", "f8e4m3", "all"), ("bf16", "f8e5m2", "all"),
    ("f32", "f16", "scattered"), ("f32", "bf16", "scattered"), ("f32", "f8e4m3", "scattered"), ("f32", "f8e5m2", "scattered"),
    ("f32", "bf16", "bf16_midpoints"), ("f32", "f16", "f16_midpoints"),
    ("f32", "f8e4m3", "fp8_midpoints"), ("f32", "f8e5m2", "fp8_midpoints"),
]

def entry(source, target, inputs, value):
    digits = f"{value:016x}"
    print(f'    ("{source}", "{target}", "{inputs}", 0x{"_".join(digits[i:i+4] for i in range(0, 16, 4))}),')


print(f"""//! Casts as `PyTorch` {torch.__version__.split('+')[0]} does them on a CPU. Generated: see `torch_reference.py` for the command and the meaning.

/// `(from, to, inputs, FNV-1a of the output codes)`. The casts to E4M3 saturate, those to E5M2 do not.
#[rustfmt::skip]
pub const CAST_HASHES: [(&str, &str, &str, u64); {len(CASES)}] = [""")
for case in CASES:
    entry(*case, hash_of(case[0], case[1], INPUTS[case[2]]))
E4M3_CASES = [case for case in CASES if case[1] == "f8e4m3"]
print(f"""];

/// The same for E4M3 without saturation, by `ml_dtypes` {ml_dtypes.__version__}.
#[rustfmt::skip]
pub const NON_SATURATING_E4M3_HASHES: [(&str, &str, &str, u64); {len(E4M3_CASES)}] = [""")
for case in E4M3_CASES:
    entry(*case, non_saturating_e4m3(case[0], INPUTS[case[2]]))
print("];")
for name in ("f8e4m3", "f8e5m2"):
    table = codes_of(from_codes(range(256), name).to(torch.float32), "f32")
    print(f"\n/// The `f32` codes of all 256 {name} codes.\n#[rustfmt::skip]\npub const {name.upper()}_TO_F32_BITS: [u32; 256] = [")
    for row in range(0, 256, 8):
        print("    " + " ".join(f"0x{c >> 16:04x}_{c & 0xFFFF:04x}," for c in table[row:row + 8]))
    print("];")
