"""Apply a function to batches, in their order, several at a time on an executor.

>>> from concurrent.futures import ThreadPoolExecutor
>>> with ThreadPoolExecutor(2) as executor:
...     list(map_in_order(sum, iter([[1, 2], [3], []]), executor))
[([1, 2], 3), ([3], 3), ([], 0)]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from crtlib.text.shards import Shards

In = TypeVar("In")
Out = TypeVar("Out")
BATCHES_AHEAD = 8
"""Batches that are handed out before the first comes back: memory holds no more of them."""


def map_in_order(
    call: Callable[[In], Out],
    batches: Iterator[In],
    executor: Executor | None,
    shards: Shards | None = None,
) -> Iterator[tuple[In, Out]]:
    """Each batch with the result of ``call`` on it, computed in this process if there is no
    executor. A batch and its result must be picklable. A result that ``shards`` hold is not
    computed again, and any other is kept there: it must be a JSON value, and tuples come back as
    lists."""

    def begin(number: int, batch: In) -> tuple[In, Callable[[], Out]]:
        known = shards.read(str(number)) if shards else None
        if known is not None:
            return batch, lambda: known
        if executor is None:
            return batch, partial(keep, number, lambda: call(batch))
        return batch, partial(keep, number, executor.submit(call, batch).result)

    def keep(number: int, result: Callable[[], Out]) -> Out:
        found = result()
        if shards:
            shards.write(str(number), found)
        return found

    begun = itertools.starmap(begin, enumerate(batches))
    ahead = list(itertools.islice(begun, BATCHES_AHEAD if executor else 1))
    while ahead:
        batch, result = ahead.pop(0)
        yield batch, result()
        ahead += itertools.islice(begun, 1)
