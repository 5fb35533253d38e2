"""Randomness of a private step: noise and uniforms, seeded or from the operating system.

>>> draw_uniforms(3, torch.Generator().manual_seed(0)).shape
torch.Size([3])
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Sequence
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
"""Blocks of the cipher, of eight numbers each, that few kernels make together."""


@torch.no_grad()
def add_noise(
    parameters: Sequence[nn.Parameter],
    *,
    std: float,
    generator: RandomSource,
) -> None:
    """Add independent ``N(0, std^2)`` to every number of ``.grad`` (zeros where it is ``None``).

    ``generator`` is the noise's own, apart from data order and initialisation. ``"secure"`` draws a
    key from the operating system's cryptographic generator, and by ChaCha20 the noise from that
    key, not reproducible: a ``torch.Generator`` is a Mersenne twister, whose output can be
    predicted from enough of it.
    """
    check_allowed("std", std, 0 <= std < math.inf, "finite and not negative")
    fill_missing_gradients(parameters)
    if std == 0:
        return
    grads, draw = [gradient_buffer(p) for p in parameters], _make_normal_sampler(generator)
    if all(map(is_on_host, grads)):
        for grad in grads:
            for piece in grad.view(-1).split(2**16):  # it stays in the cache
                piece.add_(draw(piece), alpha=std)
        return
    # Few kernels, for as much memory as the gradient takes.
    sizes = [grad.numel() for grad in grads]
    drawn = draw(grads[0].new_empty(sum(sizes))).split(sizes)
    numbers = [x.view_as(grad).to(grad) for x, grad in zip(drawn, grads, strict=True)]
    torch._foreach_add_(grads, numbers, alpha=std)


def draw_normals(like: Tensor, generator: RandomSource) -> Tensor:
    """Independent ``N(0, 1)`` of the shape, type and device of ``like``: see :func:`add_noise`."""
    return _make_normal_sampler(generator)(like)


def _make_normal_sampler(generator: RandomSource) -> Callable[[Tensor], Tensor]:
    """A function that makes ever new :func:`draw_normals`, where secure of keys that nothing
    keeps."""
    if not isinstance(generator, str):
        return lambda like: torch.empty_like(like).normal_(generator=generator)
    stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), None).encryptor()

    def draw(like: Tensor) -> Tensor:
        blocks = -(-like.numel() // 8)
        if is_on_host(like):
            drawn = bytearray(stream.update(bytes(64 * blocks))) or bytearray(64)
            numbers = box_muller(torch.frombuffer(drawn, dtype=torch.int32).view(16, -1))
        else:
            sizes = [
                min(GPU_CIPHER_BLOCKS_AT_ONCE, blocks - k)
                for k in range(0, blocks, GPU_CIPHER_BLOCKS_AT_ONCE)
            ]
            pieces = [_normals_from_key(os.urandom(32), n, like.device) for n in sizes]
            numbers = torch.cat(pieces or [like.new_empty(0)])
        return numbers[: like.numel()].view_as(like).to(like.dtype)

    return draw


def _normals_from_key(key: bytes, count: int, device: torch.device) -> Tensor:
    """The (8 * count,) normals of so many blocks: by one kernel where there is Triton."""
    if device.type == "cuda" and importlib.util.find_spec("triton"):
        from crtlib.training.noise_kernel import triton_normals_from_key

        return triton_normals_from_key(key, count, device)
    return box_muller(chacha20_words(key, count, device))


def box_muller(words: Tensor) -> Tensor:
    """Independent ``N(0, 1)`` from uniform words, by Box and Muller's transform.

    Args:
        words: (16, n) int32 on any device. A pair of numbers takes four of a column: three for its
            radius, of which the signs are left out, and one for its angle.

    Returns:
        (8 * n,) float32. A radius has 94 bits, so no number lies beyond 11.42. True Gaussian noise
        would: a record that moves one coordinate by s standard deviations shows where noise alone
        cannot be with a probability of at most ``sf(11.42 - s)`` in a step. That is 3e-19 at
        s = 2.5 (replacement at a noise multiplier of 0.8), and adds as much to delta for every
        step that a point is expected in; no accountant charges it.
    """
    # Sums of numbers without a sign keep all digits of a tiny u.
    high, middle, low = (words[:12] & 0x7FFFFFFF).float().view(3, -1)
    u = high + (middle + (low + 0.5) * 2.0**-31) * 2.0**-31
    radius = (u * 2.0**-31).log().mul(-2).sqrt()
    turn = words[12:].float().flatten() * (math.pi * 2.0**-31)
    return torch.cat([radius * turn.cos(), radius * turn.sin()])


def chacha20_words(key: bytes, count: int, device: torch.device) -> Tensor:
    """The first ``count`` blocks of ChaCha20 (RFC 8439; counter and nonce begin at zero) by torch's
    operators, for a GPU: (16, count) int32, to be read as unsigned."""
    start = torch.zeros(16, count, dtype=torch.int32, device=device)
    for row, word in zip(start, memoryview(b"expand 32-byte k" + key).cast("i"), strict=False):
        row.fill_(word)
    # Four rows of four words: what is done to columns is then done to diagonals.
    start[12] = torch.arange(count, device=device)
    a, b, c, d = start.clone().view(4, 4, count)
    for _ in range(10):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.stack([a, b, c, d]).view(16, count).add_(start)


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    """The RFC's quarter round, of four columns at once; the sums of int32 wrap around."""

    def rotated(x: Tensor, by: int) -> Tensor:
        return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))

    for left, right in ((16, 12), (8, 7)):
        a = a + b
        d = rotated(d ^ a, left)
        c = c + d
        b = rotated(b ^ c, right)
    return a, b, c, d


def draw_uniforms(n: int, generator: RandomSource) -> Tensor:
    """``n`` float64 uniforms of [0, 1), 53 bits each; "secure" asks the operating system."""
    if not isinstance(generator, str):
        return torch.rand(n, generator=generator, dtype=torch.float64)
    bits = np.frombuffer(os.urandom(8 * n), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)
