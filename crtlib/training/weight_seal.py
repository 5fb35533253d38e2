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

HOOKS_OF_A_MODULE = (
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip
HOOKS_OF_A_PARAMETER = "_backward_hooks", "_post_accumulate_grad_hooks"
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


@dataclass(frozen=True)
class ReadingSeal:
    """How a model read texts when it was tried (:mod:`crtlib.training.probe`): its modules, what
    each does, and what is hooked to it. A hook that is added later may let the texts of a batch
    change what one of them adds, though no weight is another.

    >>> model = torch.nn.Linear(2, 1)
    >>> seal = ReadingSeal.of(model)
    >>> seal.refuse_changed_reading(model)
    >>> _ = model.register_forward_hook(lambda layer, x, y: y - y.mean(0))
    >>> seal.refuse_changed_reading(model)
    Traceback (most recent call last):
    ...
    ValueError: model: a Linear was hooked, replaced or given another forward since it was tried
    """

    marks: Mapping[str, tuple[object, ...]]

    @classmethod
    def of(cls, model: nn.Module) -> ReadingSeal:
        """The model as it is now."""
        every = vars(nn.modules.module)
        marks: dict[str, tuple[object, ...]] = {
            "of all": tuple(tuple(every[f"_global{kind}"].values()) for kind in HOOKS_OF_A_MODULE)
        }
        for name, module in model.named_modules():
            hooks = (tuple(getattr(module, kind).values()) for kind in HOOKS_OF_A_MODULE)
            own = vars(module).get("forward")
            marks[f"module {name}"] = (module, type(module), type(module).forward, own, *hooks)
        for name, p in model.named_parameters():
            every_hook = (getattr(p, kind, None) or {} for kind in HOOKS_OF_A_PARAMETER)
            marks[f"parameter {name}"] = tuple(tuple(hooks.values()) for hooks in every_hook)
        return cls(marks)

    def refuse_changed_reading(self, model: nn.Module) -> None:
        """Raise ValueError, by name, where something else would be called now.

        Guarantee:
            Test: ``tests/training/test_own_loop.py::test_a_hook_of_a_script_is_refused``.
        """
        now = ReadingSeal.of(model).marks
        for place in sorted(self.marks.keys() | now.keys()):
            if self.marks.get(place) != now.get(place):
                name = place.removeprefix("module ").removeprefix("parameter ")
                what = repr(name) if name else f"a {type(model).__name__}"
                raise ValueError(
                    f"model: {what} was hooked, replaced or given another forward since it was "
                    "tried"
                )


def _sum_of_bits(x: Tensor) -> Tensor:
    """Another number where a bit of ``x`` is another, but for chance."""
    flat = x.detach().contiguous().view(-1)
    return flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64)
