"""A key becomes normal numbers: the words of ChaCha20 (RFC 8439), by Box and Muller's transform.

Whoever lacks the key cannot tell the words from uniform ones. Where llvmlite is there a CPU makes
sixteen blocks of them at once, in vectors; torch's operators make the same on any device, on a CPU
in fifty times the time.

>>> key = np.arange(8, dtype=np.uint32)
>>> numbers = normals(key, 0, torch.empty(1000))
>>> numbers.shape, bool(numbers.std() > 0.9)
(torch.Size([1000]), True)
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crtlib import machine
from crtlib.models.compiled import Number
from crtlib.training.devices import near

LANES = 16
GROUP = LANES * 16
"""Numbers that are made together: of sixteen blocks, as many words each."""
MOST = GROUP * 2**28
"""Of one key: the RFC counts blocks by a word."""
CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")
SQRT_HALF = 0x3F3504F3
"""The bits of sqrt(1/2) in float32."""
AT_ONCE, AT_ONCE_ON_A_GPU = 2**16, 2**24
"""Numbers that torch's operators make at once: in the cache, or in few kernels."""
Key = np.ndarray  # (8,) uint32
LOCK = threading.Lock()


def secret_key() -> Key:
    """256 bits from the operating system's cryptographic generator."""
    return np.frombuffer(os.urandom(32), dtype="<u4")


def normals(key: Key, first: int, like: Tensor) -> Tensor:
    """Independent ``N(0, 1)`` of the shape, type and device of ``like``: those numbered ``first``,
    a multiple of ``GROUP``, and on, among the key's.

    Each pair is made of 64 bits: 40 for its radius, which ends at 7.5, 22 for its angle within a
    quadrant, and two signs; in float32 whatever the type. Raises ValueError beyond the ``MOST``
    numbers that a key has.
    """
    count = -(-like.numel() // GROUP)
    if first % GROUP or not 0 <= first <= MOST - count * GROUP:
        raise ValueError(f"first={first}: must be a multiple of {GROUP}, and end below {MOST}")
    out = torch.empty(count * GROUP, dtype=torch.float32, device=like.device)
    group = first // GROUP
    with LOCK:
        fill = _compiled() if near(like) else None
    if fill is not None:
        fixed = _fixed(key)  # a name keeps it until it is read
        fill(fixed.ctypes.data, group, count, out.data_ptr())
    else:
        for piece in out.split(AT_ONCE if near(like) else AT_ONCE_ON_A_GPU):
            blocks = len(piece) // 16
            piece.copy_(box_muller(words(key, group * LANES, blocks, like.device)))
            group += blocks // LANES
    return out[: like.numel()].view(like.shape).to(like.dtype)


def _fixed(key: Key) -> np.ndarray:
    """What the blocks of a key begin with, (12,) uint32."""
    return np.concatenate([CONSTANTS, key]).astype(np.uint32)


# --------------------------------------------------------------------------- torch's operators
def words(key: Key, first: int, count: int, device: torch.device) -> Tensor:
    """The words of blocks ``first``, ..., ``first + count - 1`` of the key with a nonce of zeros,
    (16, count) int32, to be read as unsigned."""
    start = torch.zeros(16, count, dtype=torch.int32, device=device)
    for row, word in zip(start, _fixed(key).view(np.int32).tolist(), strict=False):
        row.fill_(word)
    # Four rows of four words: what is done to columns is then done to diagonals.
    start[12] = torch.arange(first, first + count, device=device).to(torch.int32)
    a, b, c, d = start.clone().view(4, 4, count)
    for _ in range(10):
        a, b, c, d = _quarters(a, b, c, d)
        a, b, c, d = _quarters(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.stack([a, b, c, d]).view(16, count).add_(start)


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    """The RFC's quarter round, of four columns at once; the sums of int32 wrap around."""
    for left, right in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, left)
        c = c + d
        b = _rotated(b ^ c, right)
    return a, b, c, d


def _rotated(x: Tensor, by: int) -> Tensor:
    return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))


def box_muller(words: Tensor) -> Tensor:
    """As many normal numbers as words, (16, count), with a count that is a multiple of ``LANES``.
    Rows i and i + 8 make pairs, and the numbers lie as :func:`_compiled` writes them."""
    one, two = (words.long() & 0xFFFFFFFF).split(8)
    u = one.float() * 2.0**-32 + ((two & 0xFF).float() + 0.5) * 2.0**-40
    radius = (-u.log()).sqrt()
    x = (((two >> 8 & 0x3FFFFF) - 2**21).float() + 0.5) * (math.pi * 2.0**-23)
    cos, sin = x.cos(), x.sin()  # of the angle less 45 degrees, so the root of 2 is gone
    numbers = torch.cat([radius * (cos - sin), radius * (cos + sin)])
    signs = torch.cat([two >> 31, two >> 30 & 1])
    return (numbers * (1 - 2 * signs)).view(16, -1, LANES).transpose(0, 1).flatten()


# --------------------------------------------------------------------------- machine code
@functools.cache
def _compiled() -> Callable[..., object] | None:
    """``fill(state, first, count, out)``: addresses of the constants with the key and of the
    numbers, and the number of the first group."""
    if not machine.compiles():
        return None
    from llvmlite import ir

    module, long, word = ir.Module(), ir.IntType(64), ir.IntType(32)
    fill, builder = machine.routine(
        module, "fill", [word.as_pointer(), long, long, ir.FloatType().as_pointer()]
    )
    state, first, count, out = fill.args
    lanes, numbers = ir.VectorType(word, LANES), ir.VectorType(ir.FloatType(), LANES)
    root = ir.Function(module, ir.FunctionType(numbers, [numbers]), f"llvm.sqrt.v{LANES}f32")
    fixed = [_spread(builder, builder.load(builder.gep(state, [long(i)]))) for i in range(12)]
    with machine.loop(builder, count) as k:
        counter = builder.trunc(builder.mul(builder.add(first, k), long(LANES)), word)
        counter = builder.add(_spread(builder, counter), lanes(list(range(LANES))))
        start = [*fixed, counter, *[machine.constant(lanes, 0)] * 3]
        made = _rounds(builder, start)
        rows = builder.gep(out, [builder.mul(k, long(GROUP))])
        for i in range(8):
            pair = _pair(builder, root, made[i], made[i + 8])
            for row, value in zip((i, i + 8), pair, strict=True):
                place = builder.gep(rows, [long(row * LANES)])
                builder.store(value, builder.bitcast(place, numbers.as_pointer()), align=4)
    builder.ret_void()
    engine = machine.engine(module)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 2, ctypes.c_void_p)(
        engine.get_function_address("fill")
    )
    call.keeps = engine  # type: ignore[attr-defined] # it owns the machine code
    return call


def _spread(builder: Any, value: Any) -> Any:
    """It, in every lane."""
    from llvmlite import ir

    vector = ir.VectorType(value.type, LANES)
    one = builder.insert_element(vector(ir.Undefined), value, ir.IntType(32)(0))
    zeros = machine.constant(ir.VectorType(ir.IntType(32), LANES), 0)
    return builder.shuffle_vector(one, vector(ir.Undefined), zeros)


def _rounds(builder: Any, start: list[Any]) -> list[Any]:
    """The block function: twenty rounds, and the sum with where they began."""
    from llvmlite import ir

    before, long = builder.block, ir.IntType(64)
    body, after = builder.append_basic_block(), builder.append_basic_block()
    builder.branch(body)
    builder.position_at_end(body)
    turn = builder.phi(long)
    x = [builder.phi(word.type) for word in start]
    turn.add_incoming(long(0), before)
    for phi, word in zip(x, start, strict=True):
        phi.add_incoming(word, before)
    new = list(x)
    for shift in (0, 1):  # columns, then diagonals
        for i in range(4):
            places = [4 * row + (i + shift * row) % 4 for row in range(4)]
            quarter = _quarter(builder, *(new[place] for place in places))
            for place, word in zip(places, quarter, strict=True):
                new[place] = word
    for phi, word in zip(x, new, strict=True):
        phi.add_incoming(word, body)
    following = builder.add(turn, long(1))
    turn.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", following, long(10)), body, after)
    builder.position_at_end(after)
    return [builder.add(a, b) for a, b in zip(new, start, strict=True)]


def _quarter(builder: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
    def rotated(x: Any, by: int) -> Any:
        left = builder.shl(x, machine.constant(x.type, by))
        return builder.or_(left, builder.lshr(x, machine.constant(x.type, 32 - by)))

    for left, right in ((16, 12), (8, 7)):
        a = builder.add(a, b)
        d = rotated(builder.xor(d, a), left)
        c = builder.add(c, d)
        b = rotated(builder.xor(b, c), right)
    return a, b, c, d


def _pair(builder: Any, root: Any, one: Any, two: Any) -> tuple[Any, Any]:
    """As :func:`box_muller`: two vectors of normal numbers from two of words."""
    from llvmlite import ir

    kind, word = ir.VectorType(ir.FloatType(), LANES), one.type

    def number(x: Any) -> Number:
        return Number(builder, builder.sitofp(x, kind))

    def bits(x: Any, shift: int, mask: int) -> Any:
        x = builder.lshr(x, machine.constant(word, shift))
        return builder.and_(x, machine.constant(word, mask))

    def signed(x: Number, shift: int) -> Any:
        sign = builder.shl(bits(two, shift, 1), machine.constant(word, 31))
        return builder.bitcast(builder.xor(builder.bitcast(x.value, word), sign), kind)

    u = Number(builder, builder.uitofp(one, kind)) * 2.0**-32
    u = u + (number(bits(two, 0, 0xFF)) + 0.5) * 2.0**-40
    radius = Number(builder, builder.call(root, [_minus_log(builder, u).value]))
    x = builder.sub(bits(two, 8, 0x3FFFFF), machine.constant(word, 2**21))
    x = (number(x) + 0.5) * (math.pi * 2.0**-23)
    square = x * x
    cos, sin = (_series(square, first) for first in (0, 1))
    sin = sin * x
    return signed(radius * (cos - sin), 31), signed(radius * (cos + sin), 30)


def _series(square: Number, first: int) -> Number:
    """cos x (``first`` 0) or sin x / x (1), |x| <= pi / 4, of x squared: to float32's precision."""
    terms = [(1.0, -1.0)[n % 2] / math.factorial(2 * n + first) for n in range(5)]
    total = square * terms[4] + terms[3]
    for term in terms[2::-1]:
        total = total * square + term
    return total


def _minus_log(builder: Any, u: Number) -> Number:
    """-ln u of normal numbers in (0, 1]: u is ``m 2^k``, sqrt(1/2) <= m < sqrt(2), and ln m twice
    the inverse hyperbolic tangent of ``(m - 1) / (m + 1)``."""
    from llvmlite import ir

    word = ir.VectorType(ir.IntType(32), LANES)
    bits = builder.bitcast(u.value, word)
    shift = machine.constant(word, 23)
    k = builder.ashr(builder.sub(bits, machine.constant(word, SQRT_HALF)), shift)
    m = Number(builder, builder.bitcast(builder.sub(bits, builder.shl(k, shift)), u.value.type))
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    total = square * (1 / 9) + 1 / 7
    for n in (5, 3):
        total = total * square + 1 / n
    log_m = s * square * total * 2.0 + s * 2.0
    log_u = Number(builder, builder.sitofp(k, u.value.type)) * math.log(2) + log_m
    return log_u * -1.0
