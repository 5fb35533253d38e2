"""What a claim is: its words, what measures it, the line that decides, and two planted worlds.

>>> claims = {claim.id: claim for claim in read()}
>>> claims["crt-dedup-alone"].measure, claims["crt-dedup-alone"].if_true["dedup"]
('leaks', 0.75)

``claims.yml`` holds the claims, ``terms.yml`` the arms and the runs that they name. Nothing in
either is a verdict. ``if_true`` and ``if_false`` say, arm by arm and from the sentence alone, what
would have been measured if the sentence were true, and if it were not; a test plants both worlds
and asks for the verdict, so that a rule which answers another sentence, or the opposite, fails.
"""

import functools
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

import crtbook
from crtbook.claims import statistics

PAPERS = {
    "crt": "CRT (NAACL 2022)",
    "crt_acl": "CRT (ACL submission)",
    "report": "Leakage report (2021)",
    "hush": "Hush! (2025)",
    "ours": "a hypothesis of our own",
}
World = float | list[float] | dict[str, float | list[float]]
"""What an arm measures: a number; a list, one an epoch or an item; or either by metric."""


class Claim(BaseModel):
    """A sentence, and how it is decided.

    ``left`` and ``right`` are arms of ``terms.yml``; ``metric`` is that of both, ``other`` that of
    ``right`` where it is another one, and each of several metrics makes a row. ``cells`` are the
    columns whose every value makes a row; ``only`` narrows the rows; ``own`` is the paper's own
    corpus or model, without which a level cannot be compared. ``run`` names the run of
    ``terms.yml`` that would decide what is open (by default that of the table).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    paper: Literal["crt", "crt_acl", "report", "hush", "ours"]
    where: str
    chapter: str
    words: str
    number: str = ""
    measure: Literal[
        "ratio", "log_ratio", "difference", "value", "leaks", "calm", "rate", "zero", "some",
        "level", "calculation",
    ]  # fmt: skip
    tables: tuple[str, ...] = ("laptop", "paper", "at_hand", "converged")
    left: str = ""
    right: str = ""
    metric: str | tuple[str, ...] = ""
    other: str = ""
    at: str | int = "last"
    right_at: str | int = "last"
    reduce: str = "mean"
    side: Literal["above", "below", "close", "none", "most", "least", "rounds"] = "above"
    line: float | str = 0.0
    attack: Literal["exposure", "accuracy", "group"] = "exposure"
    call: str = ""
    given: Mapping[str, Any] = {}
    own: Mapping[str, Any] = {}
    only: Mapping[str, Any] = {}
    cells: tuple[str, ...] = ("corpus", "model")
    seeds: int = statistics.SEEDS
    run: str = ""
    why: str = ""
    if_true: Mapping[str, World]
    if_false: Mapping[str, World]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics, each of which makes rows of its own."""
        return (self.metric,) if isinstance(self.metric, str) else self.metric


def entries(name: str) -> Any:
    """What a file of this package holds: ``claims``, ``errata``, ``figures`` or ``terms``."""
    return crtbook.entries(f"claims/{name}")


@functools.cache
def read() -> tuple[Claim, ...]:
    """Every claim."""
    return tuple(Claim(**entry) for entry in entries("claims"))


@functools.cache
def terms() -> Mapping[str, Any]:
    """``arms``: columns of the rows that each holds; ``runs``: what would decide, and its cost."""
    found: Mapping[str, Any] = entries("terms")
    return found
