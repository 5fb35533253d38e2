"""Adam and SGD: the numbers of ``torch.optim``, whose classes cost every process that trains
1.3 seconds.

A ``torch.optim.Optimizer`` brings torch's compiler with it, and that SymPy, when it is first made;
the functions that do the arithmetic, and are called here, do not.

>>> weight = torch.nn.Parameter(torch.ones(2))
>>> weight.grad = torch.tensor([0.5, 0.0])
>>> Sgd([weight], rate=0.1).step()
>>> weight.tolist()
[0.949999988079071, 1.0]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam


class Optimizer(Protocol):
    """Moves parameters by what is in their ``.grad``; those that have none stay."""

    rate: float

    def step(self) -> None:
        """One update."""

    def state_dict(self) -> dict[str, Any]:
        """What an update depends on besides the gradients, as ``torch.optim`` names it."""

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Take such a state over."""


class Sgd:
    """Stochastic gradient descent without momentum."""

    def __init__(self, parameters: Iterable[Tensor], *, rate: float = 1.0) -> None:
        self.parameters, self.rate = list(parameters), rate

    @torch.no_grad()
    def step(self) -> None:
        """``p -= rate * grad``."""
        for p in self.parameters:
            if p.grad is not None:
                p.add_(p.grad, alpha=-self.rate)

    def state_dict(self) -> dict[str, Any]:
        """Nothing is remembered."""
        return {"state": {}}

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Nothing is remembered."""


class Adam:
    """Kingma and Ba (2015) with torch's constants. ``fused``: one kernel for all parameters, which
    on a CPU rounds otherwise than the plain one."""

    BETA1, BETA2, EPS = 0.9, 0.999, 1e-8

    def __init__(
        self, parameters: Iterable[Tensor], *, rate: float = 1.0, fused: bool = False
    ) -> None:
        self.parameters, self.rate, self.fused = list(parameters), rate, fused
        self.state: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter with a gradient."""
        moved = [(k, p) for k, p in enumerate(self.parameters) if p.grad is not None]
        for k, p in moved:
            if k not in self.state:
                step = torch.zeros((), device=p.device if self.fused else "cpu")
                self.state[k] = {"step": step, "exp_avg": torch.zeros_like(p)}
                self.state[k]["exp_avg_sq"] = torch.zeros_like(p)
        if moved:
            states = [self.state[k] for k, _ in moved]
            averages = ([s[name] for s in states] for name in ("exp_avg", "exp_avg_sq"))
            adam(
                [p for _, p in moved],
                [p.grad for _, p in moved],  # type: ignore[misc]
                *averages,
                [],
                [s["step"] for s in states],
                foreach=False,
                fused=self.fused,
                amsgrad=False,
                beta1=self.BETA1,
                beta2=self.BETA2,
                lr=self.rate,
                weight_decay=0,
                eps=self.EPS,
                maximize=False,
            )

    def state_dict(self) -> dict[str, Any]:
        """The moments of each parameter, by its place."""
        return {"state": self.state}

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Take moments over, to where the parameters are."""
        self.state = {}
        for k, saved in content["state"].items():
            p = self.parameters[k]
            steps = saved["step"].clone().to(p.device if self.fused else "cpu")
            moments = {name: saved[name].clone().to(p) for name in ("exp_avg", "exp_avg_sq")}
            self.state[k] = {"step": steps, **moments}
