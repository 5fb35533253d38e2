"""Randomness of a private step: noise and uniforms, seeded or from the operating system.

>>> uniform(3, torch.Generator().manual_seed(0)).shape
torch.Size([3])
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from crtlib.training.bookkeeping import gradient
from crtlib.training.devices import near, sent

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

    ``generator`` is the noise's own, apart from data order and initialisation. ``"secure"`` draws
    from the operating system's cryptographic generator, slower and not reproducible: a
    ``torch.Generator`` is a Mersenne twister, whose output can be predicted from enough of it.
    """
    if not (std >= 0 and math.isfinite(std)):
        raise ValueError(f"std={std}: must be finite and not negative")
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    if std == 0:
        return
    if not all(map(near, parameters)):  # few kernels, for as much memory as the gradient takes
        grads = [gradient(p) for p in parameters]
        torch._foreach_add_(grads, [normals(grad, generator) for grad in grads], alpha=std)
        return
    for p in parameters:
        for piece in gradient(p).view(-1).split(2**16):  # it stays in the cache
            piece.add_(normals(piece, generator), alpha=std)


def normals(like: Tensor, generator: Random) -> Tensor:
    """Independent ``N(0, 1)`` of the shape, type and device of ``like``: see :func:`add_noise`."""
    if not isinstance(generator, str):
        return torch.empty_like(like).normal_(generator=generator)
    # Box and Muller's transform of 53-bit uniforms in (0, 1].
    half = (like.numel() + 1) // 2
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64).reshape(2, half)
    u = torch.from_numpy(((bits >> np.uint64(11)) + 1).astype(np.float64) * 2.0**-53)
    u = sent(u, like.device)
    radius, angle = (-2 * u[0].log()).sqrt(), 2 * math.pi * u[1]
    normals = torch.cat([radius * angle.cos(), radius * angle.sin()])[: like.numel()]
    return normals.view_as(like).to(like.dtype)


def uniform(n: int, generator: Random) -> Tensor:
    """``n`` float64 uniforms of [0, 1), 53 bits each; "secure" asks the operating system."""
    if not isinstance(generator, str):
        return torch.rand(n, generator=generator, dtype=torch.float64)
    bits = np.frombuffer(os.urandom(8 * n), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)
