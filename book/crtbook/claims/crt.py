"""What the recorded runs of CRT say of its claims: one outcome an edition, corpus and model.

>>> laptop = {"crt_laptop": editions()["crt_laptop"]}
>>> told = ratio(laptop, over="crt", under="dpsgd")
>>> sorted({one.corpus for one in told}), {one.verdict for one in told}
(['customersim', 'schema_guided'], {'agrees'})
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from crtbook import tables, utility
from crtbook.claims import figures, rules
from crtbook.claims.rules import CLOSE, Outcome
from crtlib.attacks import exposure
from crtlib.text import canaries

Editions = Mapping[str, pd.DataFrame]
"""Recorded tables of Figures 2 to 5 by name."""

GAMMA = 0.1
"""The miss rate at which perplexities are compared: that of the paper's Figure 2."""


@functools.cache
def editions() -> Editions:
    """The tables that are recorded here; GPT-2 from a public start is a model of its own."""
    names = ("crt_laptop", "public_start_laptop", "crt_paper", "crt_at_hand")
    found = {name: table for name in names if (table := tables.edition(name)) is not None}
    if "public_start_laptop" in found:
        started = found["public_start_laptop"]
        found["public_start_laptop"] = started[started.init != "random"].assign(model="gpt2_public")
    return found


def _parts(given: Editions, by: tuple[str, ...]) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    for name, table in given.items():
        for key, part in table.groupby(list(by), sort=False):
            where = dict(zip(by, map(str, key), strict=True))
            yield {"edition": size(part), "source": name} | where, part


def size(part: pd.DataFrame) -> str:
    """How large the runs of a table are, in words: 300 dialogues, LSTM 64."""
    dialogues = sorted(part.dialogues.unique())
    shapes = sorted(f"{m} {h}" for m, h in part[["model", "hidden"]].drop_duplicates().to_numpy())
    return f"{', '.join(map(str, dialogues))} dialogues, {', '.join(shapes)}"


def _told(where: Mapping[str, str], metric: str, outcome: Outcome) -> Outcome:
    facts = {**vars(outcome), **where}
    facts["source"] = f"{where['source']}: {metric}"
    return Outcome(**facts)


def ratio(
    given: Editions,
    *,
    over: str,
    under: str,
    than: float | str = 1.0,
    models: str = "",
    corpus: str = "",
) -> list[Outcome]:
    """Test perplexity over words of one method over that of another, paired by seed; of one corpus
    (its name, or what it begins with) or of all."""
    line = CLOSE if than == "close" else float(than)
    out = []
    for where, part in _parts(given, ("corpus", "model")):
        if not (where["model"].startswith(models) and where["corpus"].startswith(corpus)):
            continue
        both = figures.perplexity(part, over, GAMMA) / figures.perplexity(part, under, GAMMA)
        if len(both := both.dropna()):
            told = rules.lower(both.tolist(), line, unit="times")
            out.append(_told(where, "test_ppl_words", told))
    return out


def architectures(given: Editions, *, method: str) -> list[Outcome]:
    """Perplexity of GPT-2 over that of the LSTM, paired by seed, the same method and corpus."""
    out = []
    ours = ("crt_laptop", "public_start_laptop")
    whole = pd.concat([t for n, t in given.items() if n in ours], ignore_index=True)
    for corpus, part in whole.groupby("corpus", sort=False):
        by = {str(m): figures.perplexity(runs, method, GAMMA) for m, runs in part.groupby("model")}
        for gpt in sorted(set(by) - {"lstm"}) if "lstm" in by else ():
            if len(both := (by[gpt] / by["lstm"]).dropna()):
                where = {"source": "crt_laptop", "corpus": str(corpus), "model": f"{gpt}, lstm",
                         "edition": size(part)}  # fmt: skip
                told = rules.lower(both.tolist(), 1.0, unit="times")
                out.append(_told(where, "test_ppl_words", told))
    return out


def easier(given: Editions, *, method: str, corpus: str, than: str) -> list[Outcome]:
    """Whether perplexity on one corpus is lower than on another, LSTM, paired by seed, each corpus
    in the first edition that has it. ``than`` is its name, or what it begins with. Where it was not
    run, the other corpora of people stand in, and levels of another corpus are not comparable."""
    ours: dict[str, pd.Series] = {}
    sizes: dict[str, str] = {}
    for where, part in _parts(given, ("corpus", "model")):
        if where["model"] == "lstm" and where["corpus"] not in ours:
            ours[where["corpus"]] = figures.perplexity(part, method, GAMMA)
            sizes[where["corpus"]] = f"{where['source']}, {where['edition']}"
    other = next((name for name in ours if name.startswith(than)), None)
    if other:
        told = rules.lower((ours[corpus] / ours[other]).dropna().tolist(), 1.0, unit="times")
        names: Iterable[str] = (corpus, other)
    else:
        names = (corpus, *sorted(set(ours) - {corpus}))
        words = "; ".join(f"{c} {ours[c].mean():.3g}" for c in names)
        told = rules.another_level(words, f"no recorded table has the corpus {than}")
    edition = "; ".join(dict.fromkeys(sizes[c].partition(", ")[2] for c in names))
    source = ", ".join(dict.fromkeys(sizes[c].partition(",")[0] for c in names))
    where = {"source": source, "model": "lstm", "edition": edition, "corpus": ", ".join(names)}
    return [_told(where, "test_ppl_words", told)]


# --------------------------------------------------------------------------- attacks
NAMED = "mia_address_accuracy"
ATTACKS = {"exposure": "3", "membership": "4", "group": "5"}


_SEEN: dict[tuple[int, int, float], dict[str, pd.DataFrame]] = {}


def _points(part: pd.DataFrame, attack: str) -> pd.DataFrame:
    """The points of one figure; all three are made at once, and once."""
    key = (len(part), hash(tuple(part.run.unique())), float(part.value.sum()))
    if key not in _SEEN:
        _SEEN[key] = {figure: points for figure, _, points in figures.attacks(part)}
    return _SEEN[key].get(ATTACKS[attack], pd.DataFrame())


def attacked(
    given: Editions, *, attack: str, method: str, claim: str, zero: bool = False
) -> list[Outcome]:
    """What an attack finds of a method: that it ``claim`` "leaks" or is "calm", at gamma = 0 only
    (``zero``, where the policy is perfect), or for a method that leaks above it."""
    out = []
    for where, part in _parts(given, ("corpus",)):
        perfect = utility.exact(where["corpus"], str(part.policy.iloc[0]))
        points = _points(part, attack)
        for model, seen in points.groupby("model", sort=False) if len(points) else ():
            base = seen[(seen.method == "sgd") & (seen.gamma > 0)]
            works = bool((base["mean"] > base.high).any())
            rows = seen[seen.method == method]
            if zero:
                rows = rows[rows.gamma == 0] if perfect else rows.iloc[:0]
            elif claim == "leaks":
                rows = rows[rows.gamma > 0]
            if len(rows):
                told = figures.leaks(rows) if claim == "leaks" else figures.calm(rows, works)
                where = where | {"model": str(model)}
                out.append(_told(where, f"{attack} against gamma", told))
    return out


def almost_nothing(given: Editions, *, method: str) -> list[Outcome]:
    """The literal claim that the highest of ten exposures is almost 0: at most one bit at every
    gamma. A model that knows nothing has more."""
    out = []
    chance = exposure.chance_band(canaries=10).mean
    for where, part in _parts(given, ("corpus", "model")):
        rows = _points(part, "exposure")
        rows = rows[rows.method == method] if len(rows) else rows
        if len(rows):
            ends = figures.extremes(rows)
            label: Any = ends["mean"].idxmax()
            at = ends.loc[label]
            values = part[(part.method == method) & (part.metric == "exposure")
                          & np.isclose(part.gamma, at.gamma)]  # fmt: skip
            told = rules.lower(values.groupby("seed").value.max().tolist(), rules.BIT, unit="bits")
            why = f"a model that knows nothing has {chance:.1f} bits"
            told = Outcome(**{**vars(told), "why": why})
            out.append(_told(where, "exposure, highest of ten", told))
    return out


def grouped(given: Editions, *, method: str) -> list[Outcome]:
    """Whether groups are inferred better than single secrets at a certain gamma above 0: somewhere,
    with the interval widened for the number of gammas."""
    out = []
    for where, part in _parts(given, ("corpus", "model")):
        rows = part[(part.method == method) & (part.gamma > 0)]
        wide = rows[rows.metric.isin(["mia_accuracy", "group_accuracy"])].pivot_table(
            index=["gamma", "seed"], columns="metric", values="value"
        )
        if len(wide.columns) < 2:
            continue
        gaps = (wide.group_accuracy - wide.mia_accuracy).groupby("gamma").agg(list)
        best = max(gaps, key=lambda gap: float(np.mean(gap)))
        told = rules.higher(best, 0.0)
        out.append(_told(where, "group_accuracy - mia_accuracy", told))
    return out


def missed(given: Editions, *, method: str = "crt") -> list[Outcome]:
    """Ours: that membership of the secrets which the policy missed is at chance for a method."""
    from crtlib.attacks import membership

    out = []
    for where, part in _parts(given, ("corpus", "model")):
        points = membership.summary(part)
        points = points[points.metric == "mia_missed_accuracy"]
        base = points[points.method == "sgd"]
        rows = points[points.method == method]
        if len(rows):
            told = figures.calm(rows, bool((base["mean"] > base.high).any()))
            out.append(_told(where, "mia_missed_accuracy", told))
    return out


def named(given: Editions, *, corpus: str, method: str = "sgd") -> list[Outcome]:
    """Membership with the kind of secret that the paper takes on a corpus (addresses; in MultiWOZ
    reference numbers): whether a method leaks it at some miss rate above 0."""
    from crtlib.attacks import membership

    alone = tables.edition("addresses_laptop")
    every = {**given} if alone is None else {**given, "addresses_laptop": alone}
    out = []
    for where, part in _parts(every, ("corpus", "model")):
        if where["corpus"] != corpus or not (part.metric == NAMED).any():
            continue
        points = membership.summary(part)
        rows = points[(points.metric == NAMED) & (points.method == method) & (points.gamma > 0)]
        if len(rows):
            out.append(_told(where, NAMED, figures.leaks(rows)))
    return out or [rules.absent(f"no recorded run on {corpus} has it alone")]


# --------------------------------------------------------------------------- what is proved
def _constants(part: pd.DataFrame, method: str, gamma: float) -> pd.Series | None:
    rows = part[(part.method == method) & ((method == "dpsgd") | np.isclose(part.gamma, gamma))]
    rows = rows[rows.metric == "steps"]
    return rows.iloc[0] if len(rows) else None


def promised(part: pd.DataFrame, method: str, gamma: float, relation: str) -> float:
    """Epsilon at the end of the runs of a method, for a policy that misses a share ``gamma``."""
    run = _constants(part, method, gamma)
    if run is None:
        return math.nan
    return utility.spent(
        method,
        sampling_probability=run.sampling_probability,
        noise_multiplier=run.noise_multiplier,
        steps=int(run.value),
        gamma=gamma,
        delta=run.delta,
        neighbouring_relation=relation,
    )


def smaller_epsilon(given: Editions) -> list[Outcome]:
    """Whether CRT ends at a smaller epsilon than DP-SGD at equal epsilon', by either relation."""
    out = []
    for where, part in _parts(given, ("corpus", "model")):
        if not utility.exact(where["corpus"], str(part.policy.iloc[0])):
            continue
        pairs = {
            relation: [promised(part, m, GAMMA, relation) for m in ("crt", "dpsgd")]
            for relation in ("add_or_remove", "replace")
        }
        if any(map(math.isnan, pairs["replace"])):
            continue
        words = "; ".join(f"{a:.2f} against {b:.2f} ({r})" for r, (a, b) in pairs.items())
        told = rules.holds(
            all(a < b for a, b in pairs.values()), words, "CRT's epsilon must be below DP-SGD's",
            pairs["add_or_remove"][0],
        )  # fmt: skip
        out.append(_told(where, "steps, accounted", told))
    return out


def selective_epsilon(given: Editions, *, gamma: float) -> list[Outcome]:
    """What S-DP promises: something finite with a perfect policy, and nothing with another."""
    out = []
    for where, part in _parts(given, ("corpus", "model")):
        epsilon = promised(part, "selective", gamma, "replace")
        if not math.isnan(epsilon):
            told = rules.holds(
                math.isinf(epsilon) == (gamma > 0), f"ε = {epsilon:,.2f}",
                "infinite where the policy misses, finite where it does not", epsilon,
            )  # fmt: skip
            out.append(_told(where, "steps, accounted", told))
    return out


def faster(given: Editions, *, method: str = "crt") -> list[Outcome]:
    """Seconds of an epoch with GPT-2 over those with the LSTM: a level, which holds for the sizes
    of the models."""
    out = []
    for where, part in _parts(given, ("corpus",)):
        runs = part[part.method == method].drop_duplicates("run")
        each = (runs.seconds / runs.epochs).groupby([runs.model, runs.seed]).mean()
        models = set(runs.model)
        if {"lstm", "gpt2"} <= models:
            both = (each["gpt2"] / each["lstm"]).dropna()
            words = rules.span(*rules.interval(both.tolist()), "times")
            told = rules.another_level(words, "neither model has the paper's size")
            out.append(_told(where | {"model": "gpt2, lstm"}, "seconds / epochs", told))
    return out


def most_exposed(given: Editions) -> list[Outcome]:
    """The exposure of a canary that ranks first."""
    most = math.log2(canaries.SPACE)
    top = max(float(t[t.metric == "exposure"].value.max()) for t in given.values())
    first = rules.printed(most, "19.93")
    reached = rules.holds(abs(top - most) < 1e-9, f"reached: {top:.2f}", "must occur")
    return [
        Outcome(**{**vars(rules.all_of([first, reached])), "value": most, "source": "crt_laptop"})
    ]


MEASURES: dict[str, Callable[..., list[Outcome]]] = {
    f.__name__: f
    for f in (ratio, architectures, easier, attacked, almost_nothing, grouped, missed, named,
              smaller_epsilon, selective_epsilon, faster, most_exposed)
}  # fmt: skip
