"""How much of what is labelled a policy finds: for people; guarantees ask for :mod:`.rates`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import pandas as pd

from crtlib.intervals import clopper_pearson_upper
from crtlib.screening.redact import missed, overlaps, redact
from crtlib.text.records import Point, Secret


def recall(
    points: Sequence[Point], labels: Sequence[Sequence[Secret]], *, confidence: float = 0.95
) -> pd.DataFrame:
    """How many labelled secrets the flagged spans ``labels`` catch, by kind and in the row "all".

    A secret is caught where every one of its characters is flagged and no gap is between the
    spans: half a telephone number in clear is a miss. Columns: ``secrets``, ``caught``, ``recall``,
    ``miss_upper`` (upper confidence bound of the miss rate, so 1 - it bounds recall from below),
    ``flagged`` (spans of that kind by the policy), ``precision`` (the share of them that touch a
    secret) and its lower bound ``precision_lower``. NaN where there is nothing to divide by. The
    bounds are for independent secrets: copies of one value promise less, so no guarantee uses them
    (:func:`crtlib.screening.rates.rates` has bounds for clustered labels).
    """
    secrets: Counter[str] = Counter()
    misses: Counter[str] = Counter()
    flagged: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for p, spans in zip(points, labels, strict=True):
        secrets.update(s.kind for s in p.secrets)
        misses.update(s.kind for s in missed(p, spans))
        flagged.update(f.kind for f in spans)
        right.update(f.kind for f in {f for f, _ in overlaps(spans, p.secrets)})
    rows = {}
    for kind in (*sorted({*secrets, *flagged}), "all"):
        n, m, f, r = (
            sum(d.values()) if kind == "all" else d[kind] for d in (secrets, misses, flagged, right)
        )
        rows[kind] = {
            "secrets": n,
            "caught": n - m,
            "recall": (n - m) / n if n else math.nan,
            "miss_upper": clopper_pearson_upper(m, n, confidence=confidence),
            "flagged": f,
            "precision": r / f if f else math.nan,
            "precision_lower": 1 - clopper_pearson_upper(f - r, f, confidence=confidence),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("kind")
    return table.astype(dict.fromkeys(("secrets", "caught", "flagged"), int))


def label_stability(
    policy: Callable[[Sequence[Point]], Sequence[Sequence[Secret]]], points: Sequence[Point]
) -> tuple[int, int]:
    """How many labelled secrets change other labels when they are masked; and how many there are.

    The neighbour of Definition 2 is labelled anew and redacted. It must then read as the original,
    redacted, with the secret masked as well: what Proposition 5 needs.
    """
    pairs = [
        (p, s, spans, redact(p, [s]))
        for p, spans in zip(points, policy(points), strict=True)
        for s in p.secrets
    ]
    after = policy([neighbour for *_, neighbour in pairs])
    changed = sum(
        redact(p, [*spans, s]).text != redact(neighbour, again).text
        for (p, s, spans, neighbour), again in zip(pairs, after, strict=True)
    )
    return changed, len(pairs)
