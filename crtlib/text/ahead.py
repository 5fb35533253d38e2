"""A function on batches, in their order, some of them at a time on an executor.

>>> from concurrent.futures import ThreadPoolExecutor
>>> with ThreadPoolExecutor(2) as executor:
...     list(in_order(sum, iter([[1, 2], [3], []]), executor))
[3, 3, 0]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")
AHEAD = 8
"""Batches that are handed out before the first is back: memory holds no more of them."""


def in_order(
    call: Callable[[In], Out], lots: Iterator[In], executor: Executor | None
) -> Iterator[Out]:
    """``call`` on each batch; here where there is no executor. A batch and its result must be
    picklable."""
    if executor is None:
        yield from map(call, lots)
        return
    ahead = [executor.submit(call, lot) for lot in itertools.islice(lots, AHEAD)]
    while ahead:
        yield ahead.pop(0).result()
        ahead += [executor.submit(call, lot) for lot in itertools.islice(lots, 1)]
