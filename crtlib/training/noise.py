"""Randomness of a private step: noise and uniforms, seeded or from the operating system.

>>> uniform(3, torch.Generator().manual_seed(0)).shape
torch.Size([3])
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from crtlib import machine
from crtlib.training import chacha
from crtlib.training.bookkeeping import gradient
from crtlib.training.devices import near

# --------------------------------------------------------------------------- noise
SECURE: Final = "secure"
Random = torch.Generator | Literal["secure"]


@torch.no_grad()
def add_noise(
    parameters: Sequence[nn.Parameter],
    *,
    std: float,
    generator: Random,
) -> None:
    """Add independent ``N(0, std^2)`` to every number of ``.grad`` (zeros where it is ``None``).

    ``generator`` is the noise's own, apart from data order and initialisation. ``"secure"`` draws a
    key from the operating system's cryptographic generator, and the noise from that key
    (:mod:`crtlib.training.chacha`), not reproducible: a ``torch.Generator`` is a Mersenne twister,
    whose output can be predicted from enough of it.
    """
    if not (std >= 0 and math.isfinite(std)):
        raise ValueError(f"std={std}: must be finite and not negative")
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    if std == 0:
        return
    grads, draw = [gradient(p) for p in parameters], _source(generator)
    if all(map(near, grads)):
        for grad in grads:
            for piece in grad.view(-1).split(2**16):  # it stays in the cache
                piece.add_(draw(piece), alpha=std)
        return
    # Few kernels, for as much memory as the gradient takes.
    if isinstance(generator, str):
        sizes = [grad.numel() for grad in grads]
        drawn = draw(grads[0].new_empty(sum(sizes))).split(sizes)
        numbers = [x.view_as(grad).to(grad) for x, grad in zip(drawn, grads, strict=True)]
    else:
        numbers = [draw(grad) for grad in grads]
    torch._foreach_add_(grads, numbers, alpha=std)


def normals(like: Tensor, generator: Random) -> Tensor:
    """Independent ``N(0, 1)`` of the shape, type and device of ``like``: see :func:`add_noise`."""
    return _source(generator)(like)


def _source(generator: Random) -> Callable[[Tensor], Tensor]:
    """A function that makes ever new :func:`normals`, where secure all of one key."""
    if not isinstance(generator, str):
        return lambda like: torch.empty_like(like).normal_(generator=generator)
    key, used = chacha.secret_key(), 0

    def draw(like: Tensor) -> Tensor:
        nonlocal used
        groups = -(-like.numel() // chacha.GROUP)
        if near(like) and not machine.compiles():  # faster than a key's by torch's operators
            words = np.frombuffer(os.urandom(4 * groups * chacha.GROUP), dtype=np.int32)
            made = chacha.box_muller(torch.tensor(words).view(16, -1))
            return made[: like.numel()].view_as(like).to(like.dtype)
        first, used = used, used + groups * chacha.GROUP
        return chacha.normals(key, first, like)

    return draw


def uniform(n: int, generator: Random) -> Tensor:
    """``n`` float64 uniforms of [0, 1), 53 bits each; "secure" asks the operating system."""
    if not isinstance(generator, str):
        return torch.rand(n, generator=generator, dtype=torch.float64)
    bits = np.frombuffer(os.urandom(8 * n), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)
