"""The rounding of float32 products: allowed in a model, not in norms and sums.

A GPU multiplies TF32 (float32 with ten bits of mantissa) several times as fast as float32. In a
forward or backward pass that does little harm: whatever gradient comes out is what is clipped, and
sums are float32, so it hardly depends on the other texts of a batch. (In bfloat16 sums are rounded
too, by how long the longest text is, and
:class:`crtlib.training.loop.Training` does not take it for private steps.) But a
norm that is wrong by a thousandth would let the gradient of an example exceed the bound by as much.
So :mod:`crtlib.training.gradient_recorder` takes norms and sums inside of :data:`float32_matmul`,
even if torch was set to less (``set_float32_matmul_precision``), which on a CPU may mean bfloat16.

The setting belongs to the whole process. So the active contexts of each precision are counted, and
the exact one wins.

>>> before = torch.get_float32_matmul_precision()
>>> torch.set_float32_matmul_precision("medium")
>>> with float32_matmul:
...     _read_precisions()
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

BackendPrecisions = tuple[str, ...]
_MATMUL_BACKENDS: Any = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
_FLOAT32_PRECISIONS: BackendPrecisions = "ieee", "ieee"
_TF32_PRECISIONS: BackendPrecisions = "tf32", "ieee"


def _read_precisions() -> BackendPrecisions:
    return tuple(backend.fp32_precision for backend in _MATMUL_BACKENDS)


def _is_default_precision() -> bool:
    """Whether torch is set to full float32: a quick look, as reading the settings takes longer."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was set in a way that this function has no name for
        return False


class _PrecisionContext:
    """A precision that holds while any thread is inside the context."""

    lock = threading.Lock()
    active: ClassVar[dict[BackendPrecisions, int]] = {_FLOAT32_PRECISIONS: 0, _TF32_PRECISIONS: 0}
    """The number of active contexts by precision."""
    outside: BackendPrecisions = _FLOAT32_PRECISIONS
    """What was set before the first context began, and is set again after the last."""
    current: BackendPrecisions = _FLOAT32_PRECISIONS
    """What is set now."""

    def __init__(self, values: BackendPrecisions) -> None:
        self.values = values

    def __enter__(self) -> None:
        with self.lock:
            if not any(self.active.values()):
                is_default = self.values is _FLOAT32_PRECISIONS and _is_default_precision()
                _PrecisionContext.outside = _PrecisionContext.current = (
                    _FLOAT32_PRECISIONS if is_default else _read_precisions()
                )
            self.active[self.values] += 1
            self._set()

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.active[self.values] -= 1
            self._set()

    def _set(self) -> None:
        wanted = next(
            (v for v in (_FLOAT32_PRECISIONS, _TF32_PRECISIONS) if self.active[v]), self.outside
        )
        if wanted != self.current:
            for backend, value in zip(_MATMUL_BACKENDS, wanted, strict=True):
                backend.fp32_precision = value
            _PrecisionContext.current = wanted


float32_matmul = _PrecisionContext(_FLOAT32_PRECISIONS)
"""While active, float32 products are computed in full float32."""


def tf32_matmul(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """While active, float32 products on a GPU use TF32, except inside of
    :data:`float32_matmul`."""
    return (
        _PrecisionContext(_TF32_PRECISIONS) if device.type == "cuda" else contextlib.nullcontext()
    )
