"""What a GPU changes: the host must not wait for it, and it wants much at once.

>>> near(torch.ones(2)), sent(torch.ones(2), torch.device("cpu")).device.type
(True, 'cpu')

How products of float32 are rounded: a model's may be, those of norms and sums are not.

A GPU multiplies TF32 (float32 with ten bits of mantissa) several times as fast as float32. In a
forward or backward pass that does no harm: whatever gradient comes out is what is clipped. A norm
that is wrong by a thousandth would let the gradient of an example exceed the bound by as much. So
:mod:`crtlib.training.bookkeeping` takes norms and sums inside of :data:`exact`, also where somebody
has asked torch for less; on a CPU that may be bfloat16 (``set_float32_matmul_precision``).

The setting is one of the whole process: it is counted who needs what, and whoever is exact wins.

>>> before = torch.get_float32_matmul_precision()
>>> torch.set_float32_matmul_precision("medium")
>>> with exact:
...     _read()
('ieee', 'ieee')
>>> torch.get_float32_matmul_precision()
'medium'
>>> torch.set_float32_matmul_precision(before)
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, ClassVar

import torch
from torch import Tensor

HOST = frozenset({"cpu"})
"""Kinds of device that are the host itself. From others a number is read by waiting until all work
is done that was asked for before, so nothing that a step computes may be read while it runs."""


def is_host(device: torch.device) -> bool:
    """Whether it is the host itself."""
    return device.type in HOST


def near(x: Tensor) -> bool:
    """Whether its numbers can be read without waiting."""
    return is_host(x.device)


def sent(x: Tensor, device: torch.device) -> Tensor:
    """``x`` of the host on ``device``, without waiting until it is there."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def device_by_name(name: str) -> str:
    """The device of this name: ``auto`` is CUDA where torch finds it, else the CPU. Raises
    ``ValueError`` for a device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise ValueError(f"device={name!r}: must be auto or cpu; torch finds no other here")
    return name


Values = tuple[str, ...]
_PLACES: Any = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
_EXACT: Values = "ieee", "ieee"
_FAST: Values = "tf32", "ieee"


def _read() -> Values:
    return tuple(place.fp32_precision for place in _PLACES)


def _as_shipped() -> bool:
    """Whether nobody has asked for less than float32: a look, where reading takes longer."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was asked for in a way that has no such name
        return False


class _Held:
    """A way of rounding that holds while anybody is inside of it, in any thread."""

    lock = threading.Lock()
    many: ClassVar[dict[Values, int]] = {_EXACT: 0, _FAST: 0}
    own: Values = _EXACT
    now: Values = _EXACT

    def __init__(self, values: Values) -> None:
        self.values = values

    def __enter__(self) -> None:
        with self.lock:
            if not any(self.many.values()):  # what somebody else has set
                shipped = self.values is _EXACT and _as_shipped()
                _Held.own = _Held.now = _EXACT if shipped else _read()
            self.many[self.values] += 1
            self._set()

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.many[self.values] -= 1
            self._set()

    def _set(self) -> None:
        wanted = next((v for v in (_EXACT, _FAST) if self.many[v]), self.own)
        if wanted != self.now:
            for place, value in zip(_PLACES, wanted, strict=True):
                place.fp32_precision = value
            _Held.now = wanted


exact = _Held(_EXACT)
"""While active, products of float32 are of float32."""


def fast(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """While active, products of float32 on a GPU are of TF32, but inside of :data:`exact`."""
    return _Held(_FAST) if device.type == "cuda" else contextlib.nullcontext()
