"""Screening as one call: redact, deduplicate, split, and say how often the policies are wrong.

>>> from crtlib.text import customersim
>>> corpus = customersim.simulate(30, 0)
>>> screened = screen(corpus, policy="regex:customersim", conservative="regex:customersim")
>>> screened.summary["rates"]["miss"]["count"], screened.summary["missed_secrets"]
(0, 0)
>>> screened.rates.trace.of, round(screened.rates.gamma, 3)
(30, 0.116)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from crtlib.screening import dedup as dedup_module
from crtlib.screening import policies, rates, recall
from crtlib.screening.by_name import policy_by_name
from crtlib.screening.policy import Labels, Policy
from crtlib.screening.prepare import Dedup, Duplicates, Prepared, prepare
from crtlib.screening.teaching import Shift, shift
from crtlib.text import units
from crtlib.text.records import Corpus, Point


@dataclass(frozen=True)
class Screened:
    """What screening made of a corpus, and what is known of its policies.

    ``flags`` and ``cautious_flags`` are the spans of ``pi`` (with the dial) and ``pi_c`` in
    ``points``. ``recall`` has a table for each policy where there are labels, for people; ``rates``
    is what a guarantee asks for. ``shift``: how unlike the text is to what taught a policy, once
    for each. ``summary`` holds all of it for JSON, and no text.
    """

    points: tuple[Point, ...]
    flags: Labels
    cautious_flags: Labels
    prepared: Prepared
    rates: rates.Rates
    recall: dict[str, pd.DataFrame]
    shift: tuple[Shift, ...]
    summary: dict[str, Any]

    def notes(self) -> list[str]:
        """What a reader of the numbers must know, a sentence each."""
        notes = [
            f"the text is not what taught the policy: {s}; its numbers are for text like its labels"
            for s in self.shift
        ]
        if self.rates.trace.how == "unknown":
            notes.append(
                "without labels nothing is known of what was missed, and a certificate will be void"
            )
        if self.rates.left_out:
            notes.append(
                f"{self.rates.left_out} labelled points taught a policy and do not judge it"
            )
        if not self.prepared.redacted_spans:
            notes.append("pi flagged nothing, so nothing was redacted")
        if not self.prepared.public:
            notes.append("no point is public, so CRT is DP-SGD on redacted text")
        return notes

    def text(self) -> str:
        """The summary for a terminal."""
        lines = [
            f"{name:>18}  {'no labels' if value is None else value}"
            for name, value in self.summary.items()
            if not isinstance(value, (dict, list))
        ]
        for name, table in self.recall.items():
            which = "policy" if name == "pi" else "conservative"
            lines += ["", f"recall of {name} ({self.summary[which]}) on the labels"]
            lines.append(table.to_string(float_format=lambda x: f"{x:.4g}"))
        if self.recall:
            lines += ["", "miss_upper and precision_lower are bounds for independent secrets;"]
            lines += ["those of a guarantee, one secret a user:", "", self.rates.table()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes())])


def screen(
    source: Corpus | Sequence[Point],
    *,
    policy: str | Policy,
    conservative: str | Policy = policies.everything,
    unit: str = "turn",
    gamma: float = 0.0,
    seed: int = 0,
    dedup: Dedup = "all",
    dedup_by: dedup_module.Method = "exact",
    duplicates: Duplicates = "mask",
    labels: Sequence[Point] | None = None,
    judged: int = 1,
    cluster: rates.Cluster = "user",
    name: str = "",
) -> Screened:
    """Algorithm 1 on a corpus, or on points that are cut already (``unit`` then says how).

    ``policy`` and ``conservative`` are pi and pi_c, by name or as values. ``gamma``: the share of
    what pi finds that it is to miss, for experiments. ``labels`` are labelled points that judge
    the policies, whole and in the same unit; None: the points themselves, where any is labelled.
    ``judged`` and ``cluster`` are those of :func:`crtlib.screening.rates.rates`. ``name`` is how
    the summary calls the corpus. Raises ``ValueError`` for what does not fit.
    """
    points = units.points(source, unit=unit) if isinstance(source, Corpus) else tuple(source)
    pi_found = policy_by_name(policy) if isinstance(policy, str) else policy
    pi_c = policy_by_name(conservative) if isinstance(conservative, str) else conservative
    pi = policies.miss(pi_found, gamma, seed)
    flags, cautious = pi(points), pi_c(points)
    prepared = prepare(
        points,
        flags,
        cautious,
        dedup=dedup,
        duplicates=duplicates,
        pattern=dedup_module.pattern(points, dedup_by),
    )
    own = {"flags": flags, "cautious_flags": cautious} if labels is None else {}
    given = points if labels is None else labels
    found = rates.rates(given, pi, pi_c, cluster=cluster, judged=judged, seed=seed, **own)
    taught = dict.fromkeys((*pi.taught_by, *pi_c.taught_by))
    unlike = tuple(shift(points, known) for known in taught)
    tables = _tables(points, flags, cautious)
    options = {
        "corpus": name or (source.name if isinstance(source, Corpus) else ""),
        "unit": unit,
        "policy": pi_found.name,
        "conservative": pi_c.name,
        "gamma": gamma,
        "seed": seed,
        "dedup": dedup,
        "dedup_by": dedup_by,
        "duplicates_become": duplicates,
    }
    summary = options | _counts(prepared, labelled=bool(tables))
    summary |= {"rates": found.to_json(), "labels": found.labels_json() if found.secrets else None}
    summary["shift"] = [asdict(s) for s in unlike] or None
    if tables:
        kinds = {n: json.loads(t.to_json(orient="index") or "{}") for n, t in tables.items()}
        summary["recall"] = kinds
    return Screened(points, flags, cautious, prepared, found, tables, unlike, summary)


def _tables(points: Sequence[Point], flags: Labels, cautious: Labels) -> dict[str, pd.DataFrame]:
    """Recall of both policies by kind, where anything is labelled."""
    if not any(p.secrets for p in points):
        return {}
    pairs = {"pi": flags, "pi_c": cautious}
    return {name: recall.recall(points, spans, confidence=0.975) for name, spans in pairs.items()}


def _counts(prepared: Prepared, *, labelled: bool) -> dict[str, Any]:
    in_public = sum(len(p.secrets) for p in prepared.public)
    return {
        "points": prepared.points,
        "duplicates": prepared.duplicates,
        "redacted_spans": prepared.redacted_spans,
        "redacted_points": prepared.redacted_points,
        "public": len(prepared.public),
        "private": len(prepared.private),
        "missed_secrets": prepared.missed_secrets if labelled else None,
        "secrets_in_public": in_public if labelled else None,
    }
