"""The claims of CRT's Figures 2 to 6 as tests on a results table: agrees, differs, cannot be told.

>>> judged("lower", [0.8, 0.9, 0.85], 1.0), judged("lower", [0.8, 1.3, 0.9], 1.0)
('agrees', 'cannot be told here')
>>> judged("higher", [0.8, 0.9, 0.85], 1.0)
'differs'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import special

from crtbook import utility
from crtbook.claims import rules
from crtbook.claims.rules import AGREES, CLOSE, DIFFERS, PART, UNTOLD, Outcome
from crtlib.attacks import exposure, membership


def judged(side: Literal["lower", "higher"], values: Sequence[float], than: float) -> str:
    """Whether the mean of ``values``, one a seed, is below or above ``than``: the verdict of
    :func:`crtbook.claims.rules.lower` or ``higher``."""
    return (rules.lower if side == "lower" else rules.higher)(values, than).verdict


def claims(table: pd.DataFrame, *, gamma: float = 0.1) -> pd.DataFrame:
    """One row a claim, corpus and model: what was measured, with its 95 % interval, the verdict.

    ``table`` is the results of :func:`crtbook.grids.crt_grid`. Perplexities are over
    words, at ``gamma``; ratios are paired by seed, and judged one at a time (:func:`judged`).
    Attacks are judged by chance bands that hold for all points of one corpus and attack together
    (:func:`attack_verdicts`).
    """
    rows = []
    for corpus, part in table.groupby("corpus", sort=False):
        found: list[dict[str, Any]] = []
        for model, runs in part.groupby("model", sort=False):
            found += [{"model": model} | row for row in _utility(runs, gamma)]
        found += _gpt_against_lstm(part, gamma)
        for figure, name, points in attacks(part):
            for model, seen in points.groupby("model", sort=False):
                zero = utility.exact(str(corpus), part.policy.iloc[0])  # else gamma = 0 misses, too
                verdicts = attack_verdicts(figure, name, seen, perfect_at_zero=zero)
                found += [{"model": model} | r for r in verdicts]
        rows += [{"corpus": corpus} | row for row in found]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("figure", kind="stable")


COLUMNS = ["figure", "claim", "corpus", "model", "measured", "verdict"]


def _row(figure: str, claim: str, measured: str, verdict: str) -> dict[str, str]:
    return {"figure": figure, "claim": claim, "measured": measured, "verdict": verdict}


def perplexity(part: pd.DataFrame, method: str, gamma: float) -> pd.Series:
    """Test perplexity over words by seed; DP-SGD is the same at every gamma."""
    same = part.method == method
    if method != "dpsgd":
        same &= np.isclose(part.gamma, gamma)
    return part[same & (part.metric == "test_ppl_words")].set_index("seed").value


def _ratio(claim: str, than: float, over: pd.Series, under: pd.Series) -> list[dict[str, str]]:
    ratio = (over / under).dropna()
    if ratio.empty:
        return []
    told = rules.lower(ratio.tolist(), than, unit="times")
    return [_row("2", claim, told.ours, told.verdict)]


def _utility(part: pd.DataFrame, gamma: float) -> list[dict[str, str]]:
    ppl = {m: perplexity(part, m, gamma) for m in ("sgd", "dpsgd", "selective", "crt")}
    close = f"CRT's perplexity is close to non-private training's (at most {CLOSE:g} times)"
    rows = _ratio(close, CLOSE, ppl["crt"], ppl["sgd"])
    rows += _ratio("CRT's perplexity is no worse than DP-SGD's", 1.0, ppl["crt"], ppl["dpsgd"])
    return rows + _ratio(
        "CRT's perplexity is no worse than S-DP's", 1.0, ppl["crt"], ppl["selective"]
    )


def _gpt_against_lstm(part: pd.DataFrame, gamma: float) -> list[dict[str, str]]:
    rows = []
    for method, name in (("crt", "CRT"), ("dpsgd", "DP-SGD")):
        by = {str(m): perplexity(runs, method, gamma) for m, runs in part.groupby("model")}
        claim = f"{name}-GPT has a lower perplexity than {name}-LSTM"
        for gpt in sorted(set(by) - {"lstm"}) if "lstm" in by else ():
            rows += [{"model": f"{gpt}, lstm"} | r for r in _ratio(claim, 1.0, by[gpt], by["lstm"])]
    return rows


def attacks(part: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Figure, statistic, and its points: model, method, gamma, mean, std, seeds, low, high."""
    if "exposure" in set(part.metric):
        points = exposure.summary(part).rename(columns={"max_mean": "mean", "max_std": "std"})
        planted = int(part[part.metric == "exposure"].item.max()) + 1
        cells = part.groupby(["model", "method", "gamma"]).ngroups
        seeds = int(points.seeds.min())
        band = exposure.chance_band(canaries=planted, seeds=seeds, points=cells)
        yield "3", "highest canary exposure, bits", points.assign(low=band.low, high=band.high)
    points = membership.summary(part)
    for figure, metric in (("4", "mia_accuracy"), ("5", "group_accuracy")):
        name = {"4": "membership accuracy", "5": "group membership accuracy"}[figure]
        yield figure, name, points[points.metric == metric]


def attack_verdicts(
    figure: str, name: str, points: pd.DataFrame, *, perfect_at_zero: bool = True
) -> list[dict[str, str]]:
    """The claims about one attack on one model; ``points`` as from a summary of the attack.

    That something leaks: it agrees where all points are above the band; it differs where, of every
    point, even the upper end of the 95 % interval over seeds is inside; else it cannot be told.
    That something does not leak: it agrees where no point is above the band, *and* the attack has
    been seen to work, on non-private training; without that it cannot be told.
    """
    of = {m: rows for m, rows in points.groupby("method")}
    none = points.iloc[:0]
    leaky, selective = of.get("sgd", none), of.get("selective", none)
    zero, more = leaky[leaky.gamma == 0], leaky[leaky.gamma > 0]
    works = bool((more["mean"] > more.high).any())
    rows = []
    if perfect_at_zero:
        rows = _calm(figure, f"Non-private at γ = 0: {name} is at chance", zero, works)
    rows += _leaks(figure, f"Non-private at γ > 0: {name} is above chance", more)
    missed = selective[selective.gamma > 0]
    rows += _leaks(figure, f"S-DP at γ > 0: {name} is above chance", missed)
    return rows + _calm(figure, f"CRT at every γ: {name} is at chance", of.get("crt", none), works)


def extremes(points: pd.DataFrame) -> pd.DataFrame:
    """The points with the 95 % t-interval of their means: ``least`` and ``most``."""
    n = points.seeds
    half = special.stdtrit((n - 1).clip(lower=1), 0.975) * points["std"].fillna(0) / np.sqrt(n)
    return points.assign(least=points["mean"] - half, most=points["mean"] + half)


def _range(points: pd.DataFrame) -> str:
    low, high = points["mean"].min(), points["mean"].max()
    told = f"{low:.2f} to {high:.2f}" if len(points) > 1 else f"{low:.2f}"
    above = int((points["mean"] > points.high).sum())
    return f"{told}, {above} of {len(points)} above the chance band"


def leaks(points: pd.DataFrame) -> Outcome:
    """The claim that an attack finds something at each of these points; the interval is that of
    the least of them."""
    ends = extremes(points)
    above = int((ends["mean"] > ends.high).sum())
    calm = bool(((ends.most <= ends.high) & (ends.seeds >= rules.RUNS)).all())
    some = PART if above else UNTOLD
    return _of_points(ends, "min", DIFFERS if calm else AGREES if above == len(ends) else some,
                      "every point must be above the chance band of its figure")  # fmt: skip


def calm(points: pd.DataFrame, works: bool) -> Outcome:
    """The claim that an attack which ``works`` elsewhere finds nothing at any of these points; the
    interval is that of the largest of them."""
    ends = extremes(points)
    above = int((ends["mean"] > ends.high).sum())
    verdict = (
        (DIFFERS if 2 * above >= len(ends) else PART) if above else AGREES if works else UNTOLD
    )
    return _of_points(ends, "max", verdict,
                      "no point may be above the chance band of its figure, and the attack must "
                      "have been seen to work on non-private training")  # fmt: skip


def _of_points(
    ends: pd.DataFrame, which: Literal["min", "max"], verdict: str, rule: str
) -> Outcome:
    label: Any = ends["mean"].idxmin() if which == "min" else ends["mean"].idxmax()
    at = ends.loc[label]
    known = at.seeds >= rules.RUNS
    return Outcome(
        verdict=verdict, ours=_range(ends), rule=rule, value=float(at["mean"]),
        low=float(at.least) if known else None, high=float(at.most) if known else None,
        why=f"the chance band reaches from {at.low:.3g} to {at.high:.3g}",
    )  # fmt: skip


def _leaks(figure: str, claim: str, points: pd.DataFrame) -> list[dict[str, str]]:
    told = [leaks(points)] if len(points) else []
    return [_row(figure, claim, each.ours, each.verdict) for each in told]


def _calm(figure: str, claim: str, points: pd.DataFrame, works: bool) -> list[dict[str, str]]:
    told = [calm(points, works)] if len(points) else []
    return [_row(figure, claim, each.ours, each.verdict) for each in told]


def figure_6(
    *, epsilon: float = 1.0, gamma: float = 0.1, delta: float = 8e-5, printed: float = 0.12
) -> pd.DataFrame:
    """The number that Section 5.4 prints, under four ways to account the same training (batches of
    a tenth of the points, 100 steps; each calibrated to ``epsilon`` for adding or removing)."""
    from crtlib.accounting import confidentiality, ledger
    from crtlib.accounting.events import SampledGaussian

    batches: dict[str, Any] = {"sampling_probability": 0.1, "steps": 100}
    ways = {
        "Renyi accountant (Opacus), a point added or removed": ("rdp", "add_or_remove"),
        "Renyi accountant (autodp), a point added or removed": ("autodp", "add_or_remove"),
        "tight accountant, a point added or removed": ("pld", "add_or_remove"),
        "tight accountant, the secret replaced by its mask": ("pld", "replace"),
    }
    rows = []
    for name, (accountant, relation) in ways.items():
        sigma = ledger.noise_multiplier(
            epsilon=epsilon, delta=delta, accountant=accountant, **batches
        )
        value = confidentiality.bayes_at_fixed_delta(
            SampledGaussian(noise_multiplier=sigma, **batches),
            gamma=gamma,
            delta=delta,
            accountant=accountant,
            neighbouring_relation=relation,
        )
        claim = f"ε′ = {epsilon:g}, γ = {gamma:g} give ε = {printed:g}: {name}"
        verdict = "agrees" if f"{value:.2f}" == f"{printed:.2f}" else "differs"
        rows.append({"corpus": "any", "model": "any"} | _row("6", claim, f"{value:.4f}", verdict))
    return pd.DataFrame(rows)[COLUMNS]
