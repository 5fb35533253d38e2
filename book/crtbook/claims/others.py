"""What the recorded tables of screening and of Hush! say of the claims about them.

>>> [one.verdict for one in recall(policy="regex", corpus="customersim", least=1.0)]
['agrees']
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from crtbook import tables
from crtbook.claims import rules
from crtbook.claims.rules import Outcome
from crtbook.secrets import as_promised, chosen

SCREENING, SECRETS = "screening_laptop", "secrets_laptop"


def nothing(table: str = "", corpus: str = "", metric: str = "") -> list[Outcome]:
    """A claim whose number no recorded run gives; what is missing is looked for, not assumed.

    Raises ``ValueError`` where it is there: then the claim needs a measure.
    """
    names = [table] if table else tables.names()
    found = {name: part for name in names if (part := tables.edition(name)) is not None}
    if table and not found:
        return [rules.absent(f"no table {table} is recorded")]
    if corpus and not any("corpus" in t and corpus in set(t.corpus) for t in found.values()):
        return [rules.absent(f"no recorded run reads {corpus}")]
    if metric and not any("metric" in t and metric in set(t.metric) for t in found.values()):
        return [rules.absent(f"no recorded run has measured {metric}")]
    raise ValueError(f"claim: {table or corpus or metric} is recorded, so it needs a measure")


# --------------------------------------------------------------------------- screening
def _screening(part: str, policy: str, corpus: str) -> pd.DataFrame:
    table = tables.recorded(SCREENING)
    rows = table[(table.part == part) & (table.corpus == corpus)]
    return rows[(rows.policy == policy)] if policy else rows


def _told(outcome: Outcome, source: str, corpus: str, size: str) -> list[Outcome]:
    facts = {"source": f"{SCREENING}: {source}", "corpus": corpus, "edition": size}
    return [Outcome(**(vars(outcome) | facts))]


def recall(*, policy: str, corpus: str, least: float) -> list[Outcome]:
    """The recall of a policy on held-out labels of all kinds."""
    rows = _screening("recall", policy, corpus)
    row = rows[(rows.kind == "all") & (rows["where"] == "held out")].iloc[0]
    told = rules.share(int(row.caught), of=int(row.secrets), least=least)
    return _told(told, "recall", corpus, f"{int(row.secrets)} held-out secrets")


def false_alarms(*, policy: str, corpus: str, few: bool) -> list[Outcome]:
    """Whether fewer (or more) of the flags are wrong than right."""
    rows = _screening("recall", policy, corpus)
    row = rows[(rows.kind == "all") & (rows["where"] == "held out")].iloc[0]
    flagged, right = int(row.flagged), round(row.precision * row.flagged)
    wrong = flagged - right
    told = rules.share(right if few else wrong, of=flagged, least=0.5)
    return _told(told, "precision" if few else "1 - precision", corpus, f"{flagged} flags")


def bloom() -> list[Outcome]:
    """Whether a Bloom filter finds at least the duplicates that comparing finds."""
    rows = tables.recorded(SCREENING)
    rows = rows[rows.part == "dedup"].pivot_table(
        index=["corpus", "scope"], columns="method", values="masked"
    )
    gap = (rows.bloom - rows.exact).dropna()
    told = rules.holds(
        bool((gap >= 0).all()), f"{int((gap < 0).sum())} false negatives on {len(gap)} texts, "
        f"{int(gap.clip(lower=0).sum())} false positives", "must miss no duplicate",
    )  # fmt: skip
    corpora = ", ".join(sorted(set(rows.index.get_level_values("corpus"))))
    return _told(told, "masked", corpora, "all turns")


# --------------------------------------------------------------------------- Hush!
def _secrets(study: str) -> pd.DataFrame | None:
    table = tables.edition(SECRETS)
    return None if table is None else table[table.study == study]


def _secret_told(outcome: Outcome, metric: str, table: pd.DataFrame) -> list[Outcome]:
    facts = {"source": f"{SECRETS}: {metric}", "corpus": ", ".join(sorted(set(table.corpus)))}
    return [Outcome(**(vars(outcome) | facts))]


def preprocessing(*, noisy: bool, sign: str) -> list[Outcome]:
    """Test loss of the best C of the paper's program less that without preprocessing, paired by
    seed: "lower", or at most a tenth of a nat "higher"."""
    table = _secrets("masked")
    if table is None:
        return [rules.absent(f"no table {SECRETS} is recorded")]
    best = chosen(as_promised(table))
    best = best[(best.noisy == noisy) & (best.targets == "linear")]
    loss = best.pivot_table(index="seed", columns="scale", values="test")
    some = loss.drop(columns=np.inf)
    gap = some[some.mean().idxmin()] - loss[np.inf]
    told = rules.lower(gap.tolist(), 0.0 if sign == "lower" else 0.1, unit="nats")
    return _secret_told(told, "test", table)


def tenth() -> list[Outcome]:
    """Whether the promises hold for what runs with a tenth of the noise: of every such run, the
    worst ratio of what is accounted to what was promised."""
    table = _secrets("masked")
    if table is None or "simulated" not in table or not (table.simulated == 10).any():
        return [rules.absent("no recorded run has a tenth of the noise")]
    worst = table[(table.metric == "worst") & (table.simulated == 10)].value
    told = rules.holds(
        bool((worst <= 1).all()), f"some secret is bounded by {worst.min():.1f} to "
        f"{worst.max():.1f} times what it was promised", "at most 1 times", float(worst.max()),
    )  # fmt: skip
    return _secret_told(told, "worst", table)


def kept() -> list[Outcome]:
    """Whether the share of the examples that is kept rises with C."""
    table = _secrets("masked")
    if table is None:
        return [rules.absent(f"no table {SECRETS} is recorded")]
    table = as_promised(table)
    rows = table[(table.metric == "kept") & (table.targets == "linear")]
    shares = rows.assign(scale=rows.scale.astype(float).fillna(np.inf)).groupby("scale").value
    means = shares.mean().sort_index()
    told = rules.holds(
        bool((means.diff().dropna() >= 0).all()), ", ".join(f"{v:.0%}" for v in means),
        "must not fall as C grows",
    )  # fmt: skip
    return _secret_told(told, "kept", table)


def extraction(*, metric: str, noise: str) -> list[Outcome]:
    """What the least noise above 0 (or the largest noise) does to a metric, against none."""
    table = _secrets("extraction")
    if table is None:
        return [rules.absent(f"no table {SECRETS} is recorded")]
    rows = table[table.metric == metric]
    wide = rows.pivot_table(index=["hidden", "seed"], columns="noise_multiplier", values="value")
    levels = sorted(c for c in map(float, wide.columns.tolist()) if c > 0)
    at = levels[0] if noise == "least" else levels[-1]
    if metric == "loss":
        told = rules.lower((wide[at] - wide[0.0]).tolist(), 0.1, unit="nats")
    elif noise == "least":
        told = rules.lower((wide[at] - wide[0.0]).tolist(), 0.0, unit="probes")
    else:
        told = rules.higher(wide[at].tolist(), 0.0, unit="probes")
    return _secret_told(told, metric, table)


MEASURES: dict[str, Callable[..., list[Outcome]]] = {
    f.__name__: f
    for f in (nothing, recall, false_alarms, bloom, preprocessing, tenth, kept, extraction)
}  # fmt: skip
