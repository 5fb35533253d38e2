"""Which datasets must not be told apart: the predicates of secret protection (Hush!, Section 3).

For each secret a predicate says when two examples are the same but for that secret. Any such
equivalence is a *view*: what of an example stays as it is. What a release computes from the views
alone is equal for adjacent datasets, so it costs none of any promise:

>>> def masked(text: str) -> str:
...     return text.replace("Ada", "<MASK>").replace("Bob", "<MASK>")
>>> adjacent(["ask Ada", "hi"], ["ask Bob", "hi"], holders={0}, view=masked)
True
>>> adjacent(["ask Ada", "hi"], ["tell Bob", "hi"], holders={0}, view=masked)
False
>>> adjacent(["ask Ada", "hi"], ["tell Bob", "hi"], holders={0})  # the predicate that is always 1
True
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeVar

Example = TypeVar("Example")


def anything(example: object) -> Hashable:
    """The view of the predicate that is always 1: of an example that holds the secret nothing
    stays. The promises of :mod:`crtlib.accounting.secrets` hold for it, and so for every other."""
    return None


def adjacent(
    one: Sequence[Example],
    other: Sequence[Example],
    *,
    holders: Collection[int],
    view: Callable[[Example], Hashable] = anything,
) -> bool:
    """Whether two datasets may differ in one secret: they have as many examples, those that do not
    hold it (``holders``: the numbers of those that do) are equal, and the others look the same."""
    return len(one) == len(other) and all(
        a == b or (i in holders and view(a) == view(b))
        for i, (a, b) in enumerate(zip(one, other, strict=True))
    )
