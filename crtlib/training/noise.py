"""Randomness of a private step: noise and uniforms, seeded or from the operating system.

>>> draw_uniforms(3, torch.Generator().manual_seed(0)).shape
torch.Size([3])
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor, nn

from crtlib.checks import check_allowed
from crtlib.training.devices import is_on_host
from crtlib.training.gradient_entries import fill_missing_gradients, gradient_buffer

# --------------------------------------------------------------------------- noise
SECURE: Final = "secure"
RandomSource = torch.Generator | Literal["secure"]
GPU_CIPHER_BLOCKS_AT_ONCE = 2**21
"""Blocks of the cipher, of eight numbers each, that are made together by a few kernels."""
CPU_NUMBERS_AT_ONCE = 2**16
"""Numbers of noise that are made together on a CPU, few enough to stay in its cache."""


@torch.no_grad()
def add_noise(
    parameters: Sequence[nn.Parameter],
    *,
    std: float,
    generator: RandomSource,
) -> None:
    """Add independent ``N(0, std^2)`` to every number of ``.grad`` (zeros where it is ``None``).

    Args:
        parameters: All trainable parameters, of any shapes.
        std: The standard deviation: the noise multiplier times the clip norm.
        generator: Used for noise only, apart from data order and initialisation. ``"secure"`` draws
            a key from the operating system's cryptographic generator, and the noise from that key
            by ChaCha20, so it cannot be reproduced. A ``torch.Generator`` is a Mersenne twister,
            whose output can be predicted from enough of it.

    Raises:
        ValueError: For a standard deviation that is negative or not finite.

    Guarantee:
        Every number gets noise of its own with that standard deviation, whether it has a gradient
        or not. Tests:
        ``tests/training/test_noise_of_a_step.py::test_noise_of_every_number_is_the_accounted_one``,
        ``tests/training/test_loop.py::test_an_empty_batch_still_adds_noise_and_counts``.
    """
    check_allowed("std", std, 0 <= std < math.inf, "finite and not negative")
    fill_missing_gradients(parameters)
    if std == 0:
        return
    grads, draw = [gradient_buffer(p) for p in parameters], _make_normal_sampler(generator)
    if all(map(is_on_host, grads)):
        for pieces in _pieces_for_the_cache(grads):
            for piece, numbers in zip(pieces, draw(pieces), strict=True):
                piece.add_(numbers, alpha=std)
        return
    # Few kernels, at the cost of as much memory as the gradient takes.
    sizes = [grad.numel() for grad in grads]
    normals = draw([grads[0].new_empty(sum(sizes))])[0].split(sizes)
    noises = [x.view_as(grad).to(grad) for x, grad in zip(normals, grads, strict=True)]
    torch._foreach_add_(grads, noises, alpha=std)


def _pieces_for_the_cache(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield all numbers of ``tensors`` in order, as lists of flat pieces. A list holds at most as
    many numbers as one draw makes, so that many small tensors share one draw.

    >>> [[len(x) for x in pieces] for pieces in _pieces_for_the_cache(
    ...     [torch.zeros(3), torch.zeros(2, 2), torch.zeros(70_000), torch.zeros(5)])]
    [[3, 4], [65536], [4464, 5]]
    """
    pieces: list[Tensor] = []
    for tensor in tensors:
        for piece in tensor.view(-1).split(CPU_NUMBERS_AT_ONCE):
            if pieces and sum(map(len, pieces)) + len(piece) > CPU_NUMBERS_AT_ONCE:
                yield pieces
                pieces = []
            pieces.append(piece)
    if pieces:
        yield pieces


def draw_normals(like: Tensor, generator: RandomSource) -> Tensor:
    """Draw independent ``N(0, 1)`` with the shape, type and device of ``like``: see
    :func:`add_noise`."""
    return _make_normal_sampler(generator)([like])[0]


def _make_normal_sampler(
    generator: RandomSource,
) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """Return a function that draws fresh normals with the shapes and types of some tensors on one
    device; if secure, from keys that are not kept. The normals last until its next call."""
    if not isinstance(generator, str):
        return lambda like: [torch.empty_like(x).normal_(generator=generator) for x in like]
    draw_on_host = _HostNormals()

    def draw(like: Sequence[Tensor]) -> list[Tensor]:
        sizes = [x.numel() for x in like]
        if is_on_host(like[0]):
            numbers = draw_on_host(sum(sizes))
        else:
            blocks = -(-sum(sizes) // 8)
            block_counts = [
                min(GPU_CIPHER_BLOCKS_AT_ONCE, blocks - k)
                for k in range(0, blocks, GPU_CIPHER_BLOCKS_AT_ONCE)
            ]
            normals = [_normals_from_key(os.urandom(32), n, like[0].device) for n in block_counts]
            numbers = torch.cat(normals or [like[0].new_empty(0)])[: sum(sizes)]
        pieces = numbers.split(sizes)
        return [x.view_as(tensor).to(tensor.dtype) for x, tensor in zip(pieces, like, strict=True)]

    return draw


class _HostNormals:
    """Draw fresh float32 normals from one key of the operating system, in memory that the next call
    overwrites. Each word of the cipher's stream is used once."""

    def __init__(self) -> None:
        self._stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), None).encryptor()
        self._reserve(blocks=1)

    def _reserve(self, blocks: int) -> None:
        self._zeros, self._words = bytes(64 * blocks), bytearray(64 * blocks)
        self._numbers = torch.empty(16 * blocks, dtype=torch.float32)

    def __call__(self, count: int) -> Tensor:
        blocks = max(1, -(-count // 8))
        if 64 * blocks > len(self._zeros):
            self._reserve(blocks)
        self._stream.update_into(
            memoryview(self._zeros)[: 64 * blocks], memoryview(self._words)[: 64 * blocks]
        )
        words = torch.frombuffer(self._words, dtype=torch.int32, count=16 * blocks)
        return box_muller(words.view(16, -1), self._numbers[: 16 * blocks])[:count]


def _normals_from_key(key: bytes, count: int, device: torch.device) -> Tensor:
    """The (8 * count,) normals of ``count`` blocks, made by one kernel if there is Triton."""
    if device.type == "cuda" and importlib.util.find_spec("triton"):
        from crtlib.training.noise_kernel import triton_normals_from_key

        return triton_normals_from_key(key, count, device)
    return box_muller(chacha20_words(key, count, device))


def box_muller(words: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Independent ``N(0, 1)`` from uniform words, by Box and Muller's transform.

    Args:
        words: (16, n) int32 on any device; they are overwritten. A pair of numbers takes four words
            of a column: three for its radius, without their sign bits, and one for its angle.
        numbers: (16 * n,) float32 on the same device to work in; new memory where None.

    Returns:
        (8 * n,) float32, the first half of ``numbers``. A radius has 94 bits, so no number lies
        beyond 11.42, as true Gaussian noise could. So a record that moves one coordinate by s
        standard deviations can show up where noise alone cannot be, with a probability of at most
        ``sf(11.42 - s)`` per step. That is 3e-19 at s = 2.5 (replacement at a noise multiplier of
        0.8). It adds as much to delta for every step that a point is expected in
        (:func:`crtlib.accounting.events.delta_of_noise_end`). No accountant charges it; where it
        is more than a thousandth of delta, a certificate is void.
    """
    if numbers is None:
        numbers = torch.empty(words.numel(), dtype=torch.float32, device=words.device)
    words[:12].bitwise_and_(0x7FFFFFFF)
    high, middle, low, turn = numbers.view_as(words).copy_(words).view(4, -1)
    # Sums of numbers without a sign keep all digits of a tiny u.
    u = low.add_(0.5).mul_(2.0**-31).add_(middle).mul_(2.0**-31).add_(high)
    radius = u.mul_(2.0**-31).log_().mul_(-2).sqrt_()
    turn.mul_(math.pi * 2.0**-31)
    torch.cos(turn, out=high).mul_(radius)
    torch.sin(turn, out=middle).mul_(radius)
    return numbers[: words.numel() // 2]


def chacha20_words(key: bytes, count: int, device: torch.device) -> Tensor:
    """The first ``count`` blocks of ChaCha20 (RFC 8439; counter and nonce begin at zero) by torch's
    operators, for a GPU: (16, count) int32, to be read as unsigned."""
    start = torch.zeros(16, count, dtype=torch.int32, device=device)
    for row, word in zip(start, memoryview(b"expand 32-byte k" + key).cast("i"), strict=False):
        row.fill_(word)
    # Four rows of four words: each round works on the columns, then on the diagonals.
    start[12] = torch.arange(count, device=device)
    a, b, c, d = start.clone().view(4, 4, count)
    for _ in range(10):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.stack([a, b, c, d]).view(16, count).add_(start)


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    """The RFC's quarter round, on four columns at once; sums of int32 wrap around."""

    def rotated(x: Tensor, bits: int) -> Tensor:
        return (x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))

    for d_bits, b_bits in ((16, 12), (8, 7)):
        a = a + b
        d = rotated(d ^ a, d_bits)
        c = c + d
        b = rotated(b ^ c, b_bits)
    return a, b, c, d


def draw_uniforms(n: int, generator: RandomSource) -> Tensor:
    """Draw ``n`` float64 uniforms in [0, 1), 53 bits each; "secure" draws from the operating
    system."""
    if not isinstance(generator, str):
        return torch.rand(n, generator=generator, dtype=torch.float64)
    bits = np.frombuffer(os.urandom(8 * n), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)
