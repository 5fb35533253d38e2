"""Noise on a GPU by one Triton kernel, which reads a key and writes four bytes per number.

The words are those of ChaCha20 (RFC 8439) and the numbers those of
:func:`crtlib.training.noise.box_muller`, in the same places.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CIPHER_BLOCKS_PER_PROGRAM = 128
"""Blocks of the cipher that one program makes, one in each lane."""


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _store_normal_pairs(out, offsets, half, inside, h, m, low, angle):
    high = (h & 0x7FFFFFFF).to(tl.float32)
    middle = (m & 0x7FFFFFFF).to(tl.float32)
    least = ((low & 0x7FFFFFFF).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2^-31
    u = (high + (middle + least) * 4.656612873077393e-10) * 4.656612873077393e-10
    radius = tl.sqrt(-2.0 * tl.log(u))
    turn = angle.to(tl.int32, bitcast=True).to(tl.float32) * 1.462918079267160e-09  # pi 2^-31
    tl.store(out + offsets, radius * tl.cos(turn), mask=inside)
    tl.store(out + half + offsets, radius * tl.sin(turn), mask=inside)


@triton.jit
def _normals_kernel(key, out, count, block: tl.constexpr):
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    zero = tl.zeros((block,), tl.uint32)
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s4, s5, s6, s7 = (
        zero + tl.load(key),
        zero + tl.load(key + 1),
        zero + tl.load(key + 2),
        zero + tl.load(key + 3),
    )
    s8, s9, s10, s11 = (
        zero + tl.load(key + 4),
        zero + tl.load(key + 5),
        zero + tl.load(key + 6),
        zero + tl.load(key + 7),
    )
    counter = offsets.to(tl.uint32)
    a0, a1, a2, a3, b0, b1, b2, b3 = s0, s1, s2, s3, s4, s5, s6, s7
    c0, c1, c2, c3, d0, d1, d2, d3 = s8, s9, s10, s11, counter, zero, zero, zero
    for _ in range(10):
        a0, b0, c0, d0 = _quarter_round(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter_round(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter_round(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter_round(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter_round(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter_round(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter_round(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter_round(a3, b0, c1, d2)
    inside, half = offsets < count, 4 * count
    _store_normal_pairs(out, offsets, half, inside, a0 + s0, b0 + s4, c0 + s8, d0 + counter)
    _store_normal_pairs(out, count + offsets, half, inside, a1 + s1, b1 + s5, c1 + s9, d1)
    _store_normal_pairs(out, 2 * count + offsets, half, inside, a2 + s2, b2 + s6, c2 + s10, d2)
    _store_normal_pairs(out, 3 * count + offsets, half, inside, a3 + s3, b3 + s7, c3 + s11, d3)


def triton_normals_from_key(key: bytes, count: int, device: torch.device) -> Tensor:
    """The (8 * count,) float32 normals of the first ``count`` <= 2^28 blocks under a ``key`` of 32
    bytes. Raises ValueError for more blocks, whose indices would overflow."""
    if not 0 < count <= 2**28:
        raise ValueError(f"count={count}: must be from 1 to 2^28")
    words = torch.frombuffer(bytearray(key), dtype=torch.int32).view(torch.uint32).to(device)
    out = torch.empty(8 * count, device=device, dtype=torch.float32)
    _normals_kernel[(-(-count // CIPHER_BLOCKS_PER_PROGRAM),)](
        words, out, count, CIPHER_BLOCKS_PER_PROGRAM
    )
    return out
