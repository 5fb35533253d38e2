"""What a claim is: its words, what measures it, the line that decides, and two planted worlds.

>>> claims = {claim.id: claim for claim in load_claims()}
>>> claims["crt-dedup-alone"].measure, claims["crt-dedup-alone"].if_true["dedup"]
('leaks', 0.75)

``claims.yml`` holds the claims, ``terms.yml`` the arms and the runs that they name. Neither holds a
verdict. ``if_true`` and ``if_false`` state, arm by arm and from the sentence alone, what would have
been measured if the sentence were true, and if it were not. A test plants both worlds and checks
the verdicts, so a rule that answers another sentence, or the opposite one, fails.
"""

import functools
import hashlib
import json
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
DECISIVE = ("measure", "left", "right", "metric", "other", "at", "right_at", "reduce", "side",
            "line", "attack", "call", "given", "own", "only", "cells", "seeds", "epochs", "tables",
            "kind", "often", "holds")  # fmt: skip
"""The fields of a claim that decide its verdict: a change of one gives its rule a new date."""
EDITIONS = ("laptop", "paper", "at_hand", "converged", "settled", "tenth")
"""The editions that a claim reads where it names none. Each has its own date in ``rules.yml``: a
new one adds rows, and the rule of the others stays as it was."""
World = float | list[float] | dict[str, float | list[float]]
"""What an arm measures: a number; a list with one per epoch or per item; or either by metric."""


class Claim(BaseModel):
    """A sentence, and how it is decided.

    ``quote`` is the paper's, word for word: an ellipsis stands for words that are left out, and
    words in brackets are ours. ``asks`` states in our words what is judged, where the sentence
    alone does not; a cell of a table, and a hypothesis of our own, have no quote. A "remark"
    answers a sentence that no data could meet, and what agrees "by construction" is a test of our
    code: neither is counted. ``often`` means that the sentence says often, can, some or certain, so
    a row that differs beside one that agrees is right in part. ``holds`` states what is right in a
    sentence that a calculation refutes as it stands. ``epochs`` is the paper's number of epochs;
    runs with fewer refute nothing. ``dialogues`` is its number of texts, of a sentence about what
    noise costs: a row of fewer that differs says so, because noise costs less on more. ``beside``
    is the claim that shows whether the runs learned
    anything: where it differs on a row's corpus, the row says what was ``found``, with the mean of
    each arm and metric in braces.

    ``left`` and ``right`` are arms of ``terms.yml``; ``metric`` is that of both, ``other`` that of
    ``right`` where it has another. Each of several metrics makes a row. Each value of the columns
    ``cells`` makes a row; ``only`` restricts the rows; a "constant" is a number that no seed
    changes, as a count over a whole corpus; ``own`` is the paper's own corpus or model,
    without which a level cannot be compared. ``run`` names the run in ``terms.yml`` that would
    decide what is open (by default that of the table).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    paper: Literal["crt", "crt_acl", "report", "hush", "ours"]
    where: str
    chapter: str
    quote: str = ""
    asks: str = ""
    kind: Literal["claim", "remark", "by construction"] = "claim"
    often: bool = False
    holds: str = ""
    beside: str = ""
    found: str = ""
    epochs: int = 0
    dialogues: int = 0
    number: str = ""
    measure: Literal[
        "ratio", "log_ratio", "difference", "value", "leaks", "calm", "rate", "zero", "some",
        "worst", "level", "constant", "calculation",
    ]  # fmt: skip
    tables: tuple[str, ...] = EDITIONS
    left: str = ""
    right: str = ""
    metric: str | tuple[str, ...] = ""
    other: str = ""
    at: str | int = "last"
    right_at: str | int = "last"
    reduce: str = "mean"
    side: Literal["above", "below", "same or below", "close", "none", "most", "least",
                  "rounds"] = "above"  # fmt: skip
    line: float | str = 0.0
    attack: Literal["exposure", "accuracy", "group"] = "exposure"
    call: str = ""
    given: Mapping[str, Any] = {}
    own: Mapping[str, Any] = {}
    only: Mapping[str, Any] = {}
    cells: tuple[str, ...] = ("corpus", "model")
    seeds: int = statistics.MIN_SEEDS
    run: str = ""
    why: str = ""
    if_true: Mapping[str, World]
    if_false: Mapping[str, World]

    @property
    def words(self) -> str:
        """The sentence as it is shown: the quote in quotation marks, and what is judged."""
        return " ".join(filter(None, (f"“{self.quote}”" if self.quote else "", self.asks)))

    @property
    def rule(self) -> str:
        """A hash of the fields that decide, under which ``rules.yml`` keeps the rule's date."""
        fields = self.model_dump(mode="json", include={*DECISIVE})
        if self.tables == EDITIONS:
            del fields["tables"]
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics, each of which makes its own rows."""
        return (self.metric,) if isinstance(self.metric, str) else self.metric


def load_claims_file(name: str) -> Any:
    """Load a data file of this package: ``claims``, ``errata``, ``figures`` or ``terms``."""
    return crtbook.load_data_file(f"claims/{name}")


@functools.cache
def load_claims() -> tuple[Claim, ...]:
    """Every claim."""
    return tuple(Claim(**entry) for entry in load_claims_file("claims"))


@functools.cache
def load_terms() -> Mapping[str, Any]:
    """``arms``: columns of the rows that each holds; ``runs``: what would decide, and its cost."""
    terms: Mapping[str, Any] = load_claims_file("terms")
    return terms
