"""Several processes that train one model: each clips its share of every batch, one adds the noise.

Clipped gradients add up, so it does not matter which process clips an example: each example is
clipped alone, in one process, and the bound on what one point moves is the same as with one
process. The first process draws the batches and sends them to the others, so that they share one
sample. It alone draws noise and adds it to its own sum, so the total over all processes holds the
noise exactly once. Events, and so the accounting, are those of one process.

The processes are started by ``torchrun``, which states their number in the environment. What they
send to each other is not encrypted and holds sums without noise: use a network of your own.

>>> process_group()
ProcessGroup(rank=0, size=1)
>>> process_group().share([3, 1, 2])
[3, 1, 2]
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crtlib.training.gradient_entries import fill_missing_gradients, gradient_buffer

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model, as seen by one of them, which may be the only one."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        """Whether this process draws, writes and speaks for all."""
        return self.rank == 0

    def share(self, items: Sequence[T], key: Callable[[T], int] | None = None) -> Sequence[T]:
        """This process's part of ``items``; each item is in the part of exactly one process. With
        a ``key``, for instance a length, the parts have about the same total."""
        if self.size == 1:
            return items
        return (items if key is None else sorted(items, key=key))[self.rank :: self.size]

    def broadcast_batches(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield, in every process, the batches (n,) that the first process draws."""
        if self.size == 1:
            yield from batches
            return
        while True:
            batch = next(batches, None) if self.is_leader else None
            size = self._from_leader(torch.tensor([-1 if batch is None else len(batch)]))
            if int(size) < 0:
                return
            yield self._from_leader(
                torch.empty(int(size), dtype=torch.long) if batch is None else batch
            )

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make ``.grad`` in every process the sum of those of all; None counts as zeros."""
        if self.size == 1:
            return
        fill_missing_gradients(parameters)
        grads = [gradient_buffer(p) for p in parameters]
        flat = torch.cat([grad.flatten() for grad in grads])  # one message
        dist.all_reduce(flat)
        for grad, piece in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(piece.view_as(grad))

    def total(self, number: int) -> int:
        """The sum over all processes of a number on the host."""
        if self.size == 1:
            return number
        numbers = torch.tensor([number])
        dist.all_reduce(numbers)
        return int(numbers)

    def wait(self) -> None:
        """Return when all processes have called this."""
        self.total(0)

    def check_agreement(self, digest: str) -> None:
        """Raise ValueError, in all processes, if the ``digest`` (hexadecimal) of what they are
        about to do differs: with different points, one could be read twice in a batch."""
        if self.size == 1:
            return
        own_digest = torch.tensor(list(bytes.fromhex(digest)))
        if self.total(int(not torch.equal(own_digest, self._from_leader(own_digest.clone())))):
            raise ValueError(
                f"processes={self.size}: must be given the same model, points, settings and "
                "checkpoint; all must see one file system"
            )

    def _from_leader(self, x: Tensor) -> Tensor:
        """Overwrite ``x`` with the first process's ``x``, and return it."""
        dist.broadcast(x, 0)
        return x


_current_group = ProcessGroup()


def process_group() -> ProcessGroup:
    """The processes that train together now: see :func:`join_process_group`."""
    return _current_group


def count_launched_processes() -> int:
    """The number of processes that ``torchrun`` has started, including this one; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1


@contextlib.contextmanager
def join_process_group(**options: Any) -> Iterator[ProcessGroup]:
    """While active, share trainings in this process with the other processes, if ``torchrun`` has
    started several. ``options`` are those of ``torch.distributed.init_process_group``. Each process
    takes the GPU with its own number on its machine."""
    global _current_group
    if count_launched_processes() == 1 and not options:
        yield _current_group
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", **options)
    _current_group = ProcessGroup(dist.get_rank(), dist.get_world_size())
    try:
        yield _current_group
    finally:
        _current_group = ProcessGroup()
        dist.destroy_process_group()
