"""What tells that nobody but a step has changed a model.

>>> import torch
>>> model = torch.nn.Linear(2, 1)
>>> seal = WeightSeal.of(model, bits_of="learning")
>>> int(seal.count_changed())
0
>>> escapes_the_count_of_torch = model.weight.data.mul_(1.01)
>>> seal.refuse_disturbed_model()
>>> int(seal.count_changed())
1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class WeightSeal:
    """The parameters of a model as a step left them: which of them learn, how often torch has
    counted each as changed, and a sum of the bits of some, which ``.data`` does not escape. Sums
    stay on the device, where nothing waits for them."""

    model: nn.Module
    marks: Mapping[str, tuple[int, int, bool]]
    sums: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, model: nn.Module, *, bits_of: Literal["learning", "frozen"] | None = None
    ) -> WeightSeal:
        """The model as it is now. ``bits_of``: of which parameters the bits are summed up, a pass
        over their memory."""
        named = [*model.named_parameters()]
        return cls(
            model,
            {name: (id(p), p._version, p.requires_grad) for name, p in named},
            {
                name: _sum_of_bits(p)
                for name, p in named
                if bits_of is not None and p.requires_grad == (bits_of == "learning")
            },
        )

    def refuse_disturbed_model(self) -> None:
        """Raise ValueError, by name, for what the host can see: a parameter that was frozen, set
        free, replaced or changed in place, or that has a gradient."""
        now = dict(self.model.named_parameters())
        if moved := sorted(self.marks.keys() ^ now.keys()):
            raise ValueError(f"model: {moved[0]!r} was added or taken away between two steps")
        for name, p in now.items():
            same, version, learns = self.marks[name]
            if learns != p.requires_grad:
                raise ValueError(f"model: {name!r} was frozen or set free between two steps")
            if p.grad is not None:
                raise ValueError(f"model: {name!r} has a gradient that no step made")
            if (same, version) != (id(p), p._version):
                raise ValueError(f"model: {name!r} was changed outside of a step")

    def count_changed(self) -> Tensor:
        """Of how many parameters the bits have another sum: a scalar, on their device."""
        now = dict(self.model.named_parameters())
        changed = [_sum_of_bits(now[name]) != before for name, before in self.sums.items()]
        return torch.stack(changed).sum() if changed else torch.zeros((), dtype=torch.int64)


def _sum_of_bits(x: Tensor) -> Tensor:
    """Another number where a bit of ``x`` is another, but for chance."""
    flat = x.detach().contiguous().view(-1)
    return flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64)
