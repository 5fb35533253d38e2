"""How much of what is labelled a policy finds.

>>> from crtlib.text.records import Point, Secret
>>> missed(Point("0", "ann", "my ID is 12", (Secret("id", 9, 11),)), ())
(Secret(kind='id', start=9, end=11),)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import pandas as pd

from crtlib.intervals import clopper_pearson_upper
from crtlib.screening.redact import redact
from crtlib.text.records import Point, Secret


def missed(point: Point, spans: Sequence[Secret]) -> tuple[Secret, ...]:
    """The labelled secrets of which ``spans`` (sorted) leave anything in clear."""
    left = []
    for s in point.secrets:
        at = s.start
        for f in spans:
            if f.start <= at:
                at = max(at, f.end)
        if at < s.end:
            left.append(s)
    return tuple(left)


def recall(
    points: Sequence[Point], labels: Sequence[tuple[Secret, ...]], *, confidence: float = 0.95
) -> pd.DataFrame:
    """How many labelled secrets the flagged spans ``labels`` catch, by kind and in the row "all".

    A secret is caught where every one of its characters is flagged and no gap is between the
    spans: half a telephone number in clear is a miss. Columns: ``secrets``, ``caught``, ``recall``,
    ``miss_upper`` (upper confidence bound of the miss rate, so 1 - it bounds recall from below),
    ``flagged`` (spans of that kind by the policy), ``precision`` (the share of them that touch a
    secret) and its lower bound ``precision_lower``. NaN where there is nothing to divide by. The
    bounds are for independent secrets: copies of one value promise less.
    """
    secrets: dict[str, int] = defaultdict(int)
    caught: dict[str, int] = defaultdict(int)
    flagged: dict[str, int] = defaultdict(int)
    right: dict[str, int] = defaultdict(int)
    for p, spans in zip(points, labels, strict=True):
        left = missed(p, spans)
        for s in p.secrets:
            secrets[s.kind] += 1
            caught[s.kind] += s not in left
        for f in spans:
            flagged[f.kind] += 1
            right[f.kind] += any(f.start < s.end and s.start < f.end for s in p.secrets)
    rows = {}
    for kind in (*sorted({*secrets, *flagged}), "all"):
        n, c, f, r = (
            sum(d.values()) if kind == "all" else d[kind] for d in (secrets, caught, flagged, right)
        )
        rows[kind] = {
            "secrets": n,
            "caught": c,
            "recall": c / n if n else math.nan,
            "miss_upper": clopper_pearson_upper(n - c, n, confidence=confidence),
            "flagged": f,
            "precision": r / f if f else math.nan,
            "precision_lower": 1 - clopper_pearson_upper(f - r, f, confidence=confidence),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("kind")
    return table.astype(dict.fromkeys(("secrets", "caught", "flagged"), int))


def label_stability(
    policy: Callable[[Sequence[Point]], list[tuple[Secret, ...]]], points: Sequence[Point]
) -> tuple[int, int]:
    """How many labelled secrets change other labels when they are masked; and how many there are.

    The neighbour of Definition 2 is labelled anew and redacted. It must then read as the original,
    redacted, with the secret masked as well: what Proposition 5 needs.
    """
    pairs = [(p, s, redact(p, [s])) for p in points for s in p.secrets]
    labels = dict(zip((p.id for p in points), policy(points), strict=True))
    after = policy([neighbour for _, _, neighbour in pairs])
    changed = sum(
        redact(p, [*labels[p.id], s]).text != redact(neighbour, spans).text
        for (p, s, neighbour), spans in zip(pairs, after, strict=True)
    )
    return changed, len(pairs)
