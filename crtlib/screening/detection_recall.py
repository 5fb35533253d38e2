"""How many labelled secrets a policy finds, for people; guarantees use the rates of
:mod:`crtlib.screening.rates`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd

from crtlib.intervals import clopper_pearson_upper
from crtlib.screening.redaction import find_missed_secrets, overlapping_pairs, redact
from crtlib.text.records import Point, Secret


def recall_by_kind(
    points: Sequence[Point], flags: Sequence[Sequence[Secret]], *, confidence: float = 0.95
) -> pd.DataFrame:
    """How many labelled secrets the flagged spans ``flags`` catch, by kind and in the row "all".

    A secret is caught if every one of its characters is flagged, spaces included: half a telephone
    number in clear is a miss.

    Columns: ``secrets``, ``caught``, ``recall``, ``miss_upper`` (upper confidence bound on the miss
    rate; 1 minus it bounds recall from below), ``flagged`` (spans of that kind by the policy),
    ``precision`` (the share of them that touch a secret) and its lower bound ``precision_lower``.
    NaN where there is nothing to divide by.

    The bounds assume independent secrets, which copies of one value are not. So no guarantee uses
    them; :func:`crtlib.screening.rates.measure_rates` has bounds for clustered labels.
    """
    counts = {name: Counter[str]() for name in ("secrets", "missed", "flagged", "right")}
    for point, spans in zip(points, flags, strict=True):
        spans_on_secrets = {span for span, _ in overlapping_pairs(spans, point.secrets)}
        counts["secrets"].update(s.kind for s in point.secrets)
        counts["missed"].update(s.kind for s in find_missed_secrets(point, spans))
        counts["flagged"].update(s.kind for s in spans)
        counts["right"].update(s.kind for s in spans_on_secrets)
    table = pd.DataFrame(counts, dtype=object).fillna(0).astype(int).sort_index()
    table.loc["all"] = table.sum()
    secrets, missed, flagged, on_secrets = (table[name] for name in counts)
    upper = np.vectorize(partial(clopper_pearson_upper, confidence=confidence), otypes=[float])
    columns = {
        "secrets": secrets,
        "caught": secrets - missed,
        "recall": (secrets - missed) / secrets,
        "miss_upper": upper(missed, secrets),
        "flagged": flagged,
        "precision": on_secrets / flagged,
        "precision_lower": 1 - upper(flagged - on_secrets, flagged),
    }
    return pd.DataFrame(columns).rename_axis("kind")


def count_unstable_flags(
    policy: Callable[[Sequence[Point]], Sequence[Sequence[Secret]]], points: Sequence[Point]
) -> tuple[int, int]:
    """How many labelled secrets change other flags when they are masked, and how many there are.

    The policy reads the neighbour of Definition 2 as well, and both are redacted. The neighbour
    must then read the same as the original with the secret masked, which is what Proposition 5
    needs.
    """
    pairs = [
        (p, s, spans, redact(p, [s]))
        for p, spans in zip(points, policy(points), strict=True)
        for s in p.secrets
    ]
    flags_after = policy([neighbour for *_, neighbour in pairs])
    changed = sum(
        redact(p, [*spans, s]).text != redact(neighbour, spans_after).text
        for (p, s, spans, neighbour), spans_after in zip(pairs, flags_after, strict=True)
    )
    return changed, len(pairs)
