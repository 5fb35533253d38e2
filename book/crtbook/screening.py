"""What a pair of policies misses on a corpus: the three rates that the theorem needs, with bounds.

>>> study = ScreeningStudy(seed=0, policy="regex:customersim", heldout=20)
>>> rows = {name: number for name, _, _, number in study.run(Desk())}
>>> rows["trace_count"], rows["trace_of"], rows["trace_upper"] < 0.1
(0.0, 40.0, True)
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

import pandas as pd

from crtbook import runs
from crtbook.study import Desk, Row, Study, rows
from crtlib.experiments import crt
from crtlib.models.pretrained import fingerprint
from crtlib.options import Count, Whole, Word, value
from crtlib.screening import policies, tagger
from crtlib.screening.policy import Policy
from crtlib.screening.rates import NAMES, rates
from crtlib.text import corpora, records

TAUGHT = ("tagger", "tagger_conservative")
"""Policies that a study teaches itself, from the labelled part of its corpus."""


@value
class ScreeningStudy(Study):
    """The rates of ``policy`` as pi with ``conservative`` as pi_c, on ``heldout`` dialogues of each
    of two parts that taught nobody; ``labelled`` other dialogues teach the tagger."""

    kind: ClassVar[str] = "screening"

    policy: Word
    conservative: Word = "everything"
    corpus: Word = crt.DEFAULT
    unit: Literal["turn", "dialogue"] = "turn"
    labelled: Whole = 0
    heldout: Count = 100

    def reads(self) -> Iterable[str]:
        """Fingerprints of the corpus and of the policies' folders."""
        yield corpora.fingerprint(self.corpus)
        for name in (self.policy, self.conservative):
            if name.startswith(("tagger:", "tagger_conservative:", "list:")):
                yield fingerprint(name.partition(":")[2])

    def lacks(self) -> str | None:
        """The corpus that is not here, or not large enough."""
        return runs.lacking(self.corpus, 1 + 2 * self.heldout, self.labelled)

    def cost(self) -> float:
        """CPU seconds: teaching takes most of it."""
        parts = f"{self.policy}+{self.conservative}".split("+")
        taught = sum(part in TAUGHT for part in parts)
        return 2 + 0.02 * self.heldout + 0.15 * self.labelled * taught

    def run(self, desk: Desk) -> list[Row]:
        """Count, of, rate and upper bound of each rate, and what share of points pi flags."""
        split = crt.splits(self.corpus, "paper", 1, self.heldout, self.seed, self.labelled)
        points = tuple(
            p for part in (split.valid, split.test) for p in records.points(part, self.unit)
        )
        pi, pi_c = (self._policy(name) for name in (self.policy, self.conservative))
        flags, cautious = pi(points), pi_c(points)
        counted = rates(points, pi, pi_c, flags=flags, cautious_flags=cautious)
        either = [bool(f or c) for f, c in zip(flags, cautious, strict=True)]
        facts: dict[str, float] = {"points": len(points), "private": sum(either) / len(points)}
        facts["flagged"] = sum(map(bool, flags)) / len(points)
        for name in NAMES:
            rate = getattr(counted, name)
            facts |= {f"{name}_count": rate.count, f"{name}_of": rate.of}
            facts |= {f"{name}_rate": rate.rate or 0.0, f"{name}_upper": rate.upper}
        return rows(facts)

    def _policy(self, name: str) -> Policy:
        parts = [self._part(part) for part in name.split("+")]
        return parts[0] if len(parts) == 1 else policies.union(*parts)

    def _part(self, name: str) -> Policy:
        if name not in TAUGHT:
            return policies.policy_by_name(name, self.corpus)
        split = crt.splits(self.corpus, "paper", 1, self.heldout, self.seed, self.labelled)
        made = tagger.fit(records.points(split.labelled, unit=self.unit), seed=self.seed)
        return (tagger.redacting if name == "tagger" else tagger.conservative)(made)


def by_pair(table: pd.DataFrame) -> pd.DataFrame:
    """One row a corpus and pair of policies, a column a metric: the mean over seeds."""
    keys = ["corpus", "policy", "conservative"]
    return table.pivot_table(index=keys, columns="metric", values="value", sort=False).reset_index()
